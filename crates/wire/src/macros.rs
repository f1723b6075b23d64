//! Macros that define an XDR type and generate its encoder and decoder from one definition.

/// Declares an XDR struct. Its fields are encoded and decoded in the order written.
macro_rules! xdr_struct {
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
macro_rules! xdr_enum {
    ($(#[$meta:meta])* pub enum $name:ident($xdr_name:literal) {
        $($(#[$variant_meta:meta])* $variant:ident = $value:literal,)*
    }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[cfg_attr(test, derive(arbitrary::Arbitrary))]
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
