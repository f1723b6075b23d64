//! Macros that define an XDR type and generate its encoder and decoder from one definition.

/// Declares an XDR struct. Its fields are encoded and decoded in the order written. A struct whose declaration begins
/// with `fixed` is appended in one step, and may be a field of another one.
macro_rules! xdr_struct {
    (fixed $(#[$meta:meta])* pub struct $name:ident {
        $($(#[$field_meta:meta])* pub $field:ident: $ty:ty,)*
    }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[cfg_attr(test, derive(arbitrary::Arbitrary))]
        pub struct $name { $($(#[$field_meta])* pub $field: $ty,)* }

        impl $crate::xdr::Fixed for $name {
            const SIZE: usize = 0 $(+ <$ty as $crate::xdr::Fixed>::SIZE)*;

            #[inline]
            fn store(&self, out: &mut [u8]) {
                $(
                    let (own, out) = out.split_at_mut(<$ty as $crate::xdr::Fixed>::SIZE);
                    $crate::xdr::Fixed::store(&self.$field, own);
                )*
                debug_assert!(out.is_empty());
            }
        }

        impl $crate::xdr::Encode for $name {
            #[inline]
            fn encode(&self, out: &mut Vec<u8>) {
                let mut bytes = [0; <Self as $crate::xdr::Fixed>::SIZE];
                $crate::xdr::Fixed::store(self, &mut bytes);
                out.extend_from_slice(&bytes);
            }
        }

        impl<'de> $crate::xdr::Decode<'de> for $name {
            #[inline]
            fn decode(input: &mut $crate::xdr::Reader<'de>) -> Result<Self, $crate::xdr::DecodeError> {
                Ok(Self { $($field: $crate::xdr::Decode::decode(input)?,)* })
            }
        }
    };
    ($(#[$meta:meta])* pub struct $name:ident<$lt:lifetime> {
        $($(#[$field_meta:meta])* pub $field:ident: $ty:ty,)*
    }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[cfg_attr(test, derive(arbitrary::Arbitrary))]
        pub struct $name<$lt> { $($(#[$field_meta])* pub $field: $ty,)* }

        impl $crate::xdr::Encode for $name<'_> {
            #[inline]
            fn encode(&self, out: &mut Vec<u8>) {
                $($crate::xdr::Encode::encode(&self.$field, out);)*
            }
        }

        impl<$lt> $crate::xdr::Decode<$lt> for $name<$lt> {
            #[inline]
            fn decode(input: &mut $crate::xdr::Reader<$lt>) -> Result<Self, $crate::xdr::DecodeError> {
                Ok(Self { $($field: $crate::xdr::Decode::decode(input)?,)* })
            }
        }
    };
    ($(#[$meta:meta])* pub struct $name:ident {
        $($(#[$field_meta:meta])* pub $field:ident: $ty:ty,)*
    }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[cfg_attr(test, derive(arbitrary::Arbitrary))]
        pub struct $name { $($(#[$field_meta])* pub $field: $ty,)* }

        impl $crate::xdr::Encode for $name {
            #[inline]
            fn encode(&self, out: &mut Vec<u8>) {
                $($crate::xdr::Encode::encode(&self.$field, out);)*
            }
        }

        impl<'de> $crate::xdr::Decode<'de> for $name {
            #[inline]
            fn decode(input: &mut $crate::xdr::Reader<'de>) -> Result<Self, $crate::xdr::DecodeError> {
                Ok(Self { $($field: $crate::xdr::Decode::decode(input)?,)* })
            }
        }
    };
}

/// Declares an XDR enum. Decoding a value that is not listed fails; the error has the protocol's name of the type.
/// Tests get arbitrary values, unless the declaration begins with `by hand`.
macro_rules! xdr_enum {
    ($(#[$meta:meta])* pub enum $name:ident($xdr_name:literal) { $($body:tt)* }) => {
        xdr_enum! {
            by hand $(#[$meta])*
            #[cfg_attr(test, derive(arbitrary::Arbitrary))]
            pub enum $name($xdr_name) { $($body)* }
        }
    };
    (by hand $(#[$meta:meta])* pub enum $name:ident($xdr_name:literal) {
        $($(#[$variant_meta:meta])* $variant:ident = $value:literal,)*
    }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[repr(u32)]
        pub enum $name { $($(#[$variant_meta])* $variant = $value,)* }

        impl TryFrom<u32> for $name {
            type Error = $crate::xdr::DecodeError;
            #[inline]
            fn try_from(value: u32) -> Result<Self, Self::Error> {
                match value {
                    $($value => Ok(Self::$variant),)*
                    _ => Err($crate::xdr::DecodeError::UnknownValue { ty: $xdr_name, value }),
                }
            }
        }

        impl $crate::xdr::Fixed for $name {
            const SIZE: usize = 4;

            #[inline]
            fn store(&self, out: &mut [u8]) {
                $crate::xdr::Fixed::store(&(*self as u32), out);
            }
        }

        impl $crate::xdr::Encode for $name {
            #[inline]
            fn encode(&self, out: &mut Vec<u8>) {
                $crate::xdr::Encode::encode(&(*self as u32), out);
            }
        }

        impl<'de> $crate::xdr::Decode<'de> for $name {
            #[inline]
            fn decode(input: &mut $crate::xdr::Reader<'de>) -> Result<Self, $crate::xdr::DecodeError> {
                Self::try_from(input.u32()?)
            }
        }
    };
}

/// Declares an XDR union with an unsigned or enum discriminant. Each arm has a name for its value, or no value.
macro_rules! xdr_union {
    ($(#[$meta:meta])* pub enum $name:ident<$lt:lifetime>($xdr_name:literal) {
        $($(#[$arm_meta:meta])* $arm:ident $(($value:ident: $ty:ty))? = $number:literal,)*
    }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[cfg_attr(test, derive(arbitrary::Arbitrary))]
        pub enum $name<$lt> { $($(#[$arm_meta])* $arm $(($ty))?,)* }

        impl $crate::xdr::Encode for $name<'_> {
            fn encode(&self, out: &mut Vec<u8>) {
                match self { $(Self::$arm $(($value))? => {
                    $crate::xdr::Encode::encode(&{ $number as u32 }, out);
                    $($crate::xdr::Encode::encode($value, out);)?
                })* }
            }
        }

        impl<$lt> $crate::xdr::Decode<$lt> for $name<$lt> {
            fn decode(input: &mut $crate::xdr::Reader<$lt>) -> Result<Self, $crate::xdr::DecodeError> {
                Ok(match input.u32()? {
                    $($number => Self::$arm $((<$ty as $crate::xdr::Decode>::decode(input)?))?,)*
                    value => return Err($crate::xdr::DecodeError::UnknownValue { ty: $xdr_name, value }),
                })
            }
        }
    };
    ($(#[$meta:meta])* pub enum $name:ident($xdr_name:literal) {
        $($(#[$arm_meta:meta])* $arm:ident $(($value:ident: $ty:ty))? = $number:literal,)*
    }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[cfg_attr(test, derive(arbitrary::Arbitrary))]
        pub enum $name { $($(#[$arm_meta])* $arm $(($ty))?,)* }

        impl $crate::xdr::Encode for $name {
            fn encode(&self, out: &mut Vec<u8>) {
                match self { $(Self::$arm $(($value))? => {
                    $crate::xdr::Encode::encode(&{ $number as u32 }, out);
                    $($crate::xdr::Encode::encode($value, out);)?
                })* }
            }
        }

        impl<'de> $crate::xdr::Decode<'de> for $name {
            fn decode(input: &mut $crate::xdr::Reader<'de>) -> Result<Self, $crate::xdr::DecodeError> {
                Ok(match input.u32()? {
                    $($number => Self::$arm $((<$ty as $crate::xdr::Decode>::decode(input)?))?,)*
                    value => return Err($crate::xdr::DecodeError::UnknownValue { ty: $xdr_name, value }),
                })
            }
        }
    };
}
