//! The assertions of every fuzz target.

/// Decodes a value of each type from the start of `bytes`. Decoding must not panic. A decoded value must survive
/// encoding and decoding, and must not grow.
#[macro_export]
macro_rules! check {
    ($bytes:expr, $($ty:ty),* $(,)?) => {{$(
        if let Ok(value) = <$ty as $crate::Decode>::decode(&mut $crate::Reader::new($bytes)) {
            let mut out = Vec::new();
            $crate::Encode::encode(&value, &mut out);
            assert!(out.len() <= $bytes.len());
            let again = <$ty as $crate::Decode>::decode(&mut $crate::Reader::new(&out));
            assert_eq!(again, Ok(value));
        }
    )*}};
}

mod block;

pub use block::{at, blocks, hash, seal};
pub use forebay_wire::{Decode, Encode, Reader};
