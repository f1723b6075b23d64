//! Bounded items that borrow from the message: opaque bytes and arrays.

use std::marker::PhantomData;

use crate::xdr::{Decode, DecodeError, Encode, Reader};

/// Variable-length opaque data of at most `MAX` bytes. Decoding longer data fails.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Opaque<'a, const MAX: usize>(pub &'a [u8]);

impl<const MAX: usize> std::fmt::Debug for Opaque<'_, MAX> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Opaque(")?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
        f.write_str(")")
    }
}

impl<const MAX: usize> Encode for Opaque<'_, MAX> {
    #[inline]
    fn encode(&self, out: &mut Vec<u8>) {
        debug_assert!(self.0.len() <= MAX);
        self.0.encode(out);
    }
}

impl<'a, const MAX: usize> Decode<'a> for Opaque<'a, MAX> {
    #[inline]
    fn decode(input: &mut Reader<'a>) -> Result<Self, DecodeError> {
        input.opaque_var(MAX).map(Self)
    }
}

/// An array of at most `MAX` elements in a message (RFC 4506, section 4.13). The elements are checked when the array
/// is decoded, and read by iterating. Decoding a longer array fails.
pub struct Array<'a, T, const MAX: usize> {
    count: u32,
    // The elements, one after another.
    raw: &'a [u8],
    element: PhantomData<T>,
}

impl<T, const MAX: usize> Array<'_, T, MAX> {
    /// The array without elements.
    pub const EMPTY: Self = Self { count: 0, raw: &[], element: PhantomData };

    /// Returns the number of elements.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.count as usize
    }

    /// Returns true if the array has no elements.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }
}

impl<'a, T, const MAX: usize> Array<'a, T, MAX> {
    /// Encodes `items` at the end of `buffer` and returns the array of them. Returns `None` for more than `MAX` items.
    pub fn encoded(buffer: &'a mut Vec<u8>, items: &[T]) -> Option<Self>
    where
        T: Encode,
    {
        if items.len() > MAX {
            return None;
        }
        let start = buffer.len();
        items.iter().for_each(|item| item.encode(buffer));
        Some(Self { count: u32::try_from(items.len()).ok()?, raw: &buffer[start..], element: PhantomData })
    }

    /// Returns the elements in the order of the message.
    pub fn iter(&self) -> impl Iterator<Item = T> + use<'a, T, MAX>
    where
        T: Decode<'a>,
    {
        // Errors cannot happen here, because the elements were checked when the array was decoded.
        let mut input = Reader::new(self.raw);
        (0..self.count).map_while(move |_| T::decode(&mut input).ok())
    }
}

impl<T, const MAX: usize> Encode for Array<'_, T, MAX> {
    fn encode(&self, out: &mut Vec<u8>) {
        self.count.encode(out);
        out.extend_from_slice(self.raw);
    }
}

impl<'a, T: Decode<'a>, const MAX: usize> Decode<'a> for Array<'a, T, MAX> {
    fn decode(input: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let count = input.u32()?;
        if count as usize > MAX {
            return Err(DecodeError::TooLong { length: count, max: MAX });
        }
        let start = input.rest();
        for _ in 0..count {
            T::decode(input)?;
        }
        Ok(Self { count, raw: &start[..start.len() - input.remaining()], element: PhantomData })
    }
}

// A derived implementation would require `T: Clone`, and so on. These implementations do not.
impl<T, const MAX: usize> Clone for Array<'_, T, MAX> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T, const MAX: usize> Copy for Array<'_, T, MAX> {}

impl<T, const MAX: usize> PartialEq for Array<'_, T, MAX> {
    fn eq(&self, other: &Self) -> bool {
        self.count == other.count && self.raw == other.raw
    }
}

impl<T, const MAX: usize> Eq for Array<'_, T, MAX> {}

impl<T, const MAX: usize> Default for Array<'_, T, MAX> {
    fn default() -> Self {
        Self::EMPTY
    }
}

impl<'a, T: Decode<'a> + std::fmt::Debug, const MAX: usize> std::fmt::Debug for Array<'a, T, MAX> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}
