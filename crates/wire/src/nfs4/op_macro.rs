//! The macro that generates the operations of COMPOUND and of CB_COMPOUND from one table.

/// Declares the numbers, the arguments and the results of operations.
macro_rules! operations {
    (
        $(#[$number_meta:meta])* numbers $number:ident($xdr_name:literal);
        $(#[$args_meta:meta])* arguments $args:ident<$lt:lifetime>;
        $(#[$res_meta:meta])* results $res:ident<$res_lt:lifetime>;
        $($(#[$meta:meta])* $op:ident = $value:literal $name:literal $arg:ty => $result:ty,)*
    ) => {
        xdr_enum! {
            $(#[$number_meta])*
            pub enum $number($xdr_name) { $($(#[$meta])* $op = $value,)* }
        }

        impl $number {
            /// All operations in the order of their numbers.
            pub const ALL: &'static [$number] = &[$($number::$op),*];

            /// Returns the name in the spelling of the RFC, such as GETATTR.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $($number::$op => $name,)* }
            }
        }

        $(#[$args_meta])*
        // Operations are decoded one at a time and are not stored, so the size of the largest does not matter.
        #[allow(clippy::large_enum_variant)]
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[cfg_attr(test, derive(arbitrary::Arbitrary))]
        pub enum $args<$lt> { $($(#[$meta])* $op($arg),)* }

        impl<$lt> $crate::nfs4::Operation<$lt> for $args<$lt> {
            type Number = $number;
            const ILLEGAL: $number = $number::Illegal;

            #[inline]
            fn decode_arguments(
                number: $number,
                input: &mut $crate::xdr::Reader<$lt>,
            ) -> Result<Self, $crate::xdr::DecodeError> {
                match number {
                    $($number::$op => <$arg as $crate::xdr::Decode>::decode(input).map(Self::$op),)*
                }
            }

            #[inline]
            fn number(&self) -> $number {
                match self { $($args::$op(_) => $number::$op,)* }
            }
        }

        impl $crate::xdr::Encode for $args<'_> {
            fn encode(&self, out: &mut Vec<u8>) {
                $crate::xdr::Encode::encode(&$crate::nfs4::Operation::number(self), out);
                match self { $($args::$op(body) => $crate::xdr::Encode::encode(body, out),)* }
            }
        }

        impl<$lt> $crate::xdr::Decode<$lt> for $args<$lt> {
            fn decode(input: &mut $crate::xdr::Reader<$lt>) -> Result<Self, $crate::xdr::DecodeError> {
                let number = $crate::xdr::Decode::decode(input)?;
                <Self as $crate::nfs4::Operation>::decode_arguments(number, input)
            }
        }

        $(#[$res_meta])*
        // Results are encoded one at a time and are not stored, so the size of the largest does not matter.
        #[allow(clippy::large_enum_variant)]
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[cfg_attr(test, derive(arbitrary::Arbitrary))]
        pub enum $res<$res_lt> { $($(#[$meta])* $op($result),)* }

        impl $res<'_> {
            /// Returns the number of the operation.
            #[must_use]
            pub const fn number(&self) -> $number {
                match self { $($res::$op(_) => $number::$op,)* }
            }
        }

        impl $crate::nfs4::Outcome for $res<'_> {
            fn status(&self) -> $crate::nfs4::Nfsstat4 {
                match self { $($res::$op(result) => $crate::nfs4::Outcome::status(result),)* }
            }
        }

        impl $crate::xdr::Encode for $res<'_> {
            fn encode(&self, out: &mut Vec<u8>) {
                $crate::xdr::Encode::encode(&self.number(), out);
                match self { $($res::$op(body) => $crate::xdr::Encode::encode(body, out),)* }
            }
        }

        impl<$res_lt> $res<$res_lt> {
            /// Decodes the status and the body of a result of `number`.
            ///
            /// # Errors
            /// [`DecodeError`](crate::xdr::DecodeError) if they are malformed.
            pub fn decode_body(
                number: $number,
                input: &mut $crate::xdr::Reader<$res_lt>,
            ) -> Result<Self, $crate::xdr::DecodeError> {
                match number {
                    $($number::$op => $crate::xdr::Decode::decode(input).map(Self::$op),)*
                }
            }
        }

        impl<$res_lt> $crate::xdr::Decode<$res_lt> for $res<$res_lt> {
            fn decode(input: &mut $crate::xdr::Reader<$res_lt>) -> Result<Self, $crate::xdr::DecodeError> {
                let number = $crate::xdr::Decode::decode(input)?;
                Self::decode_body(number, input)
            }
        }

        #[cfg(test)]
        impl<$lt> $args<$lt> {
            /// Returns arbitrary arguments of one operation.
            pub(crate) fn arbitrary_of(
                number: $number,
                u: &mut arbitrary::Unstructured<$lt>,
            ) -> arbitrary::Result<Self> {
                match number {
                    $($number::$op => <$arg as arbitrary::Arbitrary>::arbitrary(u).map(Self::$op),)*
                }
            }
        }

        #[cfg(test)]
        impl<$res_lt> $res<$res_lt> {
            /// Returns an arbitrary result of one operation.
            pub(crate) fn arbitrary_of(
                number: $number,
                u: &mut arbitrary::Unstructured<$res_lt>,
            ) -> arbitrary::Result<Self> {
                match number {
                    $($number::$op => <$result as arbitrary::Arbitrary>::arbitrary(u).map(Self::$op),)*
                }
            }
        }
    };
}
