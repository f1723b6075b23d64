//! `bitmap4`: sets of small numbers, such as attributes (RFC 8881, section 3.3.7).

use std::ops::{BitAnd, BitOr, Not};

use crate::xdr::{Decode, DecodeError, Encode, Reader};

/// Words that a [`Bitmap`] keeps. They hold the numbers 0 to 95.
pub const BITMAP_WORDS: usize = 3;
/// Most words of a bitmap in a message; decoding fails above it.
pub const MAX_BITMAP_WORDS: usize = 32;

/// A set of the numbers 0 to 95. Decoding ignores larger numbers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
#[cfg_attr(test, derive(arbitrary::Arbitrary))]
pub struct Bitmap(pub [u32; BITMAP_WORDS]);

impl Bitmap {
    /// The empty set.
    pub const EMPTY: Bitmap = Bitmap([0; BITMAP_WORDS]);

    /// Returns the set of `numbers`. Panics for a number above 95, which a constant shows at compile time.
    #[must_use]
    pub const fn of(numbers: &[u32]) -> Self {
        let mut words = [0; BITMAP_WORDS];
        let mut at = 0;
        while at < numbers.len() {
            words[(numbers[at] / 32) as usize] |= 1 << (numbers[at] % 32);
            at += 1;
        }
        Self(words)
    }

    /// Returns true if the set has `number`.
    #[inline]
    #[must_use]
    pub const fn contains(&self, number: u32) -> bool {
        let word = (number / 32) as usize;
        word < BITMAP_WORDS && self.0[word] & (1 << (number % 32)) != 0
    }

    /// Adds `number`. Does nothing for a number above 95.
    #[inline]
    pub const fn insert(&mut self, number: u32) {
        let word = (number / 32) as usize;
        if word < BITMAP_WORDS {
            self.0[word] |= 1 << (number % 32);
        }
    }

    /// Removes `number`.
    #[inline]
    pub const fn remove(&mut self, number: u32) {
        let word = (number / 32) as usize;
        if word < BITMAP_WORDS {
            self.0[word] &= !(1 << (number % 32));
        }
    }

    /// Returns true if the set has no number.
    #[inline]
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0[0] | self.0[1] | self.0[2] == 0
    }

    /// Returns true if `other` has every number of the set.
    #[inline]
    #[must_use]
    pub fn is_subset(&self, other: &Bitmap) -> bool {
        (*self & !*other).is_empty()
    }

    /// Returns the numbers in ascending order.
    #[inline]
    pub fn iter(&self) -> impl Iterator<Item = u32> + use<> {
        let [low, middle, high] = self.0.map(u128::from);
        let mut left = low | middle << 32 | high << 64;
        std::iter::from_fn(move || {
            let number = left.trailing_zeros();
            left &= left.wrapping_sub(1);
            (number < u128::BITS).then_some(number)
        })
    }

    /// Decodes a bitmap. Returns the numbers 0 to 95, and true if the message has a larger number.
    ///
    /// # Errors
    /// [`DecodeError`] if the message ends early, or if the bitmap has more than [`MAX_BITMAP_WORDS`] words.
    pub fn decode_with_rest(input: &mut Reader<'_>) -> Result<(Self, bool), DecodeError> {
        let length = input.u32()?;
        if length as usize > MAX_BITMAP_WORDS {
            return Err(DecodeError::TooLong { length, max: MAX_BITMAP_WORDS });
        }
        let (mut bitmap, mut larger) = (Self::EMPTY, false);
        for index in 0..length as usize {
            let word = input.u32()?;
            match bitmap.0.get_mut(index) {
                Some(kept) => *kept = word,
                None => larger |= word != 0,
            }
        }
        Ok((bitmap, larger))
    }
}

impl std::fmt::Debug for Bitmap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

impl BitAnd for Bitmap {
    type Output = Bitmap;
    #[inline]
    fn bitand(self, other: Bitmap) -> Bitmap {
        Bitmap([self.0[0] & other.0[0], self.0[1] & other.0[1], self.0[2] & other.0[2]])
    }
}

impl BitOr for Bitmap {
    type Output = Bitmap;
    #[inline]
    fn bitor(self, other: Bitmap) -> Bitmap {
        Bitmap([self.0[0] | other.0[0], self.0[1] | other.0[1], self.0[2] | other.0[2]])
    }
}

impl Not for Bitmap {
    type Output = Bitmap;
    #[inline]
    fn not(self) -> Bitmap {
        Bitmap(self.0.map(|word| !word))
    }
}

/// Words of zero at the end are not sent.
impl Encode for Bitmap {
    #[inline]
    fn encode(&self, out: &mut Vec<u8>) {
        let words = self.0.iter().rposition(|&word| word != 0).map_or(0, |last| last + 1);
        (words as u32).encode(out);
        self.0[..words].iter().for_each(|word| word.encode(out));
    }
}

impl<'a> Decode<'a> for Bitmap {
    #[inline]
    fn decode(input: &mut Reader<'a>) -> Result<Self, DecodeError> {
        Self::decode_with_rest(input).map(|(bitmap, _)| bitmap)
    }
}
