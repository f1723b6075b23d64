//! XDR, the external data representation (RFC 4506). Integers are big-endian, and every item is a multiple of four
//! bytes.

/// The reason why bytes from the network could not be decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The message ends inside an item.
    #[error("the message ends {missing} bytes too early")]
    Truncated {
        /// Bytes that the item still needed.
        missing: usize,
    },
    /// The length of a counted item exceeds the limit of its type.
    #[error("an item has length {length}, but at most {max} is allowed")]
    TooLong {
        /// The length in the message, in bytes or elements.
        length: u32,
        /// The limit of the type, in the unit of `length`.
        max: usize,
    },
    /// A boolean that is neither 0 nor 1.
    #[error("a boolean has the value {0}")]
    BadBool(u32),
    /// The protocol does not define this value of an enum or union discriminant.
    #[error("{value} is not a value of {ty}")]
    UnknownValue {
        /// The protocol's name of the type.
        ty: &'static str,
        /// The value received.
        value: u32,
    },
}

/// A type that can be encoded in XDR.
pub trait Encode {
    /// Appends the XDR representation, a multiple of four bytes, to `out`.
    fn encode(&self, out: &mut Vec<u8>);
}

/// A type whose XDR representation has one size. A struct of such fields is filled in on the stack and appended in one
/// step: a field by itself costs a check of the buffer's capacity.
pub(crate) trait Fixed {
    /// Size of the representation in bytes, a multiple of four.
    const SIZE: usize;

    /// Writes the representation into `out`, which has [`SIZE`](Self::SIZE) bytes.
    fn store(&self, out: &mut [u8]);
}

/// A type that can be decoded from XDR. A decoded value borrows from the message where possible.
pub trait Decode<'a>: Sized {
    /// Decodes one value and leaves `input` just behind it. After an error the position is unspecified.
    ///
    /// # Errors
    /// [`DecodeError`] if the bytes are not a valid representation of the type.
    fn decode(input: &mut Reader<'a>) -> Result<Self, DecodeError>;
}

/// Returns the number of pad bytes after an opaque item of `len` bytes, 0 to 3 (RFC 4506, section 4.10).
#[inline]
#[must_use]
pub const fn padding(len: usize) -> usize {
    len.wrapping_neg() & 3
}

/// Returns the size in bytes of a variable-length opaque item of `len` bytes: length word, bytes, padding.
#[inline]
#[must_use]
pub const fn opaque_size(len: usize) -> usize {
    4 + len + padding(len)
}

/// A cursor over one message.
#[derive(Debug, Clone, Copy)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Returns a reader at the first byte of `message`.
    #[inline]
    #[must_use]
    pub const fn new(message: &'a [u8]) -> Self {
        Self { rest: message }
    }

    /// Returns the number of bytes not yet read.
    #[inline]
    #[must_use]
    pub const fn remaining(&self) -> usize {
        self.rest.len()
    }

    /// Returns the bytes not yet read.
    #[inline]
    #[must_use]
    pub const fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// Takes `N` bytes. Fails with the number of missing bytes if fewer are left.
    #[inline]
    fn take<const N: usize>(&mut self) -> Result<&'a [u8; N], DecodeError> {
        match self.rest.split_first_chunk::<N>() {
            Some((head, rest)) => {
                self.rest = rest;
                Ok(head)
            }
            None => Err(DecodeError::Truncated { missing: N - self.rest.len() }),
        }
    }

    /// Takes `len` bytes. Fails with the number of missing bytes if fewer are left.
    #[inline]
    fn bytes(&mut self, len: usize) -> Result<&'a [u8], DecodeError> {
        match self.rest.split_at_checked(len) {
            Some((head, rest)) => {
                self.rest = rest;
                Ok(head)
            }
            None => Err(DecodeError::Truncated { missing: len - self.rest.len() }),
        }
    }

    /// Reads an unsigned integer (RFC 4506, section 4.2).
    ///
    /// # Errors
    /// [`DecodeError::Truncated`] if fewer than 4 bytes are left.
    #[inline]
    pub fn u32(&mut self) -> Result<u32, DecodeError> {
        self.take::<4>().map(|bytes| u32::from_be_bytes(*bytes))
    }

    /// Reads an unsigned hyper integer (RFC 4506, section 4.5).
    ///
    /// # Errors
    /// [`DecodeError::Truncated`] if fewer than 8 bytes are left.
    #[inline]
    pub fn u64(&mut self) -> Result<u64, DecodeError> {
        self.take::<8>().map(|bytes| u64::from_be_bytes(*bytes))
    }

    /// Reads a boolean (RFC 4506, section 4.4).
    ///
    /// # Errors
    /// [`DecodeError::BadBool`] for any value except 0 and 1; [`DecodeError::Truncated`] if fewer than 4 bytes are
    /// left.
    #[inline]
    pub fn bool(&mut self) -> Result<bool, DecodeError> {
        match self.u32()? {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(DecodeError::BadBool(other)),
        }
    }

    /// Reads `len` bytes and their padding (RFC 4506, section 4.9). Pad bytes must be present but may have any value.
    ///
    /// # Errors
    /// [`DecodeError::Truncated`] if the message ends within the bytes or the padding.
    #[inline]
    pub fn opaque_fixed(&mut self, len: usize) -> Result<&'a [u8], DecodeError> {
        let bytes = self.bytes(len)?;
        self.bytes(padding(len))?;
        Ok(bytes)
    }

    /// Reads a length word, that many bytes, and their padding (RFC 4506, section 4.10).
    ///
    /// # Errors
    /// [`DecodeError::TooLong`] if the length exceeds `max` bytes; [`DecodeError::Truncated`] if the message ends
    /// early.
    #[inline]
    pub fn opaque_var(&mut self, max: usize) -> Result<&'a [u8], DecodeError> {
        let length = self.u32()?;
        if length as usize > max {
            return Err(DecodeError::TooLong { length, max });
        }
        self.opaque_fixed(length as usize)
    }
}

/// Appends `bytes` and their padding, without a length word (RFC 4506, section 4.9).
#[inline]
pub fn encode_opaque_fixed(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(bytes);
    out.extend_from_slice(&[0; 3][..padding(bytes.len())]);
}

/// Overwrites the unsigned integer at the position `at`, which was appended before the value was known.
///
/// # Panics
/// `out` ends before the integer.
#[inline]
pub(crate) fn overwrite(out: &mut [u8], at: usize, value: u32) {
    let (number, _) = out[at..].as_chunks_mut::<4>();
    number[0] = value.to_be_bytes();
}

impl Encode for () {
    #[inline]
    fn encode(&self, _out: &mut Vec<u8>) {}
}

impl<'a> Decode<'a> for () {
    #[inline]
    fn decode(_input: &mut Reader<'a>) -> Result<Self, DecodeError> {
        Ok(())
    }
}

impl Encode for u32 {
    #[inline]
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.to_be_bytes());
    }
}

impl Fixed for u32 {
    const SIZE: usize = size_of::<u32>();

    #[inline]
    fn store(&self, out: &mut [u8]) {
        out.copy_from_slice(&self.to_be_bytes());
    }
}

impl<'a> Decode<'a> for u32 {
    #[inline]
    fn decode(input: &mut Reader<'a>) -> Result<Self, DecodeError> {
        input.u32()
    }
}

impl Encode for i32 {
    #[inline]
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.to_be_bytes());
    }
}

impl<'a> Decode<'a> for i32 {
    #[inline]
    fn decode(input: &mut Reader<'a>) -> Result<Self, DecodeError> {
        input.u32().map(u32::cast_signed)
    }
}

impl Encode for i64 {
    #[inline]
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.to_be_bytes());
    }
}

impl<'a> Decode<'a> for i64 {
    #[inline]
    fn decode(input: &mut Reader<'a>) -> Result<Self, DecodeError> {
        input.u64().map(u64::cast_signed)
    }
}

impl Encode for u64 {
    #[inline]
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.to_be_bytes());
    }
}

impl Fixed for u64 {
    const SIZE: usize = size_of::<u64>();

    #[inline]
    fn store(&self, out: &mut [u8]) {
        out.copy_from_slice(&self.to_be_bytes());
    }
}

impl<'a> Decode<'a> for u64 {
    #[inline]
    fn decode(input: &mut Reader<'a>) -> Result<Self, DecodeError> {
        input.u64()
    }
}

impl Encode for bool {
    #[inline]
    fn encode(&self, out: &mut Vec<u8>) {
        u32::from(*self).encode(out);
    }
}

impl Fixed for bool {
    const SIZE: usize = 4;

    #[inline]
    fn store(&self, out: &mut [u8]) {
        u32::from(*self).store(out);
    }
}

impl<'a> Decode<'a> for bool {
    #[inline]
    fn decode(input: &mut Reader<'a>) -> Result<Self, DecodeError> {
        input.bool()
    }
}

/// Fixed-length opaque data of a multiple of four bytes: verifiers, session identities.
impl<const N: usize> Encode for [u8; N] {
    #[inline]
    fn encode(&self, out: &mut Vec<u8>) {
        const { assert!(padding(N) == 0) };
        out.extend_from_slice(self);
    }
}

impl<const N: usize> Fixed for [u8; N] {
    const SIZE: usize = N;

    #[inline]
    fn store(&self, out: &mut [u8]) {
        const { assert!(padding(N) == 0) };
        out.copy_from_slice(self);
    }
}

impl<'a, const N: usize> Decode<'a> for [u8; N] {
    #[inline]
    fn decode(input: &mut Reader<'a>) -> Result<Self, DecodeError> {
        const { assert!(padding(N) == 0) };
        input.take::<N>().copied()
    }
}

/// Variable-length opaque data or a string, bounded only by the message. A server must answer an overlong name with
/// NFS3ERR_NAMETOOLONG, not with GARBAGE_ARGS, so the codec accepts it. Nothing is copied.
impl Encode for &[u8] {
    #[inline]
    fn encode(&self, out: &mut Vec<u8>) {
        debug_assert!(u32::try_from(self.len()).is_ok());
        (self.len() as u32).encode(out);
        encode_opaque_fixed(out, self);
    }
}

impl<'a> Decode<'a> for &'a [u8] {
    #[inline]
    fn decode(input: &mut Reader<'a>) -> Result<Self, DecodeError> {
        input.opaque_var(u32::MAX as usize)
    }
}

/// Optional data (RFC 4506, section 4.19).
impl<T: Encode> Encode for Option<T> {
    #[inline]
    fn encode(&self, out: &mut Vec<u8>) {
        self.is_some().encode(out);
        if let Some(value) = self {
            value.encode(out);
        }
    }
}

impl<'a, T: Decode<'a>> Decode<'a> for Option<T> {
    #[inline]
    fn decode(input: &mut Reader<'a>) -> Result<Self, DecodeError> {
        if input.bool()? { T::decode(input).map(Some) } else { Ok(None) }
    }
}

/// Most elements of a linked list; decoding fails above it. No real export or mount table is as long.
pub const MAX_LIST: usize = 4096;

/// A linked list of XDR (RFC 4506, section 4.19): a word 1 before each element, and a word 0 at the end.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[cfg_attr(test, derive(arbitrary::Arbitrary))]
pub struct List<T>(pub Vec<T>);

impl<T: Encode> Encode for List<T> {
    fn encode(&self, out: &mut Vec<u8>) {
        for item in &self.0 {
            true.encode(out);
            item.encode(out);
        }
        false.encode(out);
    }
}

impl<'a, T: Decode<'a>> Decode<'a> for List<T> {
    fn decode(input: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let mut items = Vec::new();
        while input.bool()? {
            if items.len() == MAX_LIST {
                return Err(DecodeError::TooLong { length: MAX_LIST as u32 + 1, max: MAX_LIST });
            }
            items.push(T::decode(input)?);
        }
        Ok(Self(items))
    }
}
