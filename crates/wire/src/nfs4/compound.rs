//! COMPOUND and CB_COMPOUND (RFC 8881, sections 16.2 and 20.2). The arguments are decoded, and the results are
//! appended, one operation at a time.

use std::marker::PhantomData;

use super::callback::{CbOp, CbOpcode};
use super::ops::{Op, Opcode};
use crate::xdr::{Decode, DecodeError, Encode, Reader, overwrite};

/// Longest tag in bytes; decoding fails above it.
pub const MAX_TAG: usize = 1024;

/// The arguments of an operation: [`Op`] or [`CbOp`].
pub trait Operation<'a>: Sized {
    /// The number of an operation.
    type Number: OperationNumber;
    /// The number of the operation that stands for numbers without a definition.
    const ILLEGAL: Self::Number;

    /// Decodes the arguments of the operation `number`.
    ///
    /// # Errors
    /// [`DecodeError`] if the arguments are malformed.
    fn decode_arguments(number: Self::Number, input: &mut Reader<'a>) -> Result<Self, DecodeError>;

    /// Returns the number of the operation.
    fn number(&self) -> Self::Number;
}

/// The number of an operation: [`Opcode`] or [`CbOpcode`].
pub trait OperationNumber: Copy + TryFrom<u32> + PartialEq + std::fmt::Debug {
    /// Returns the lowest minor version that defines the operation.
    fn since(self) -> u32;
}

impl OperationNumber for Opcode {
    #[inline]
    fn since(self) -> u32 {
        self.minor_version()
    }
}

impl OperationNumber for CbOpcode {
    #[inline]
    fn since(self) -> u32 {
        self.minor_version()
    }
}

/// An operation whose arguments cannot be decoded. The server answers it with NFS4ERR_BADXDR and ends the COMPOUND.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BadOperation<N> {
    /// The operation.
    pub number: N,
    /// Defect of its arguments.
    pub error: DecodeError,
}

/// A place between two operations of a COMPOUND. It stays valid as long as the record, and borrows nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Position {
    /// Index of the next operation.
    pub index: u32,
    /// Number of operations in the COMPOUND.
    pub count: u32,
    /// Minor version of the COMPOUND.
    pub minor_version: u32,
    // Bytes from the next operation to the end of the record.
    left: usize,
}

impl Position {
    /// Returns the offset in bytes of the next operation in its record of `record_len` bytes.
    #[must_use]
    pub const fn offset(&self, record_len: usize) -> usize {
        record_len.saturating_sub(self.left)
    }
}

/// The operations of a COMPOUND, decoded one at a time.
#[derive(Debug, Clone, Copy)]
pub struct Operations<'a, O> {
    input: Reader<'a>,
    index: u32,
    count: u32,
    minor_version: u32,
    operation: PhantomData<O>,
}

impl<'a, O: Operation<'a>> Operations<'a, O> {
    /// Returns the place before the next operation.
    #[must_use]
    pub const fn position(&self) -> Position {
        let Self { index, count, minor_version, .. } = *self;
        Position { index, count, minor_version, left: self.input.remaining() }
    }

    /// Returns the bytes of the operations that are left.
    #[must_use]
    pub const fn bytes(&self) -> &'a [u8] {
        self.input.rest()
    }

    /// Returns the operations from `position` on. `record` is the record from which the position comes.
    #[must_use]
    pub fn resume(record: &'a [u8], position: Position) -> Self {
        let Position { index, count, minor_version, .. } = position;
        let rest = record.get(position.offset(record.len())..).unwrap_or_default();
        Self { input: Reader::new(rest), index, count, minor_version, operation: PhantomData }
    }

    /// Returns the number of operations that are left.
    #[must_use]
    pub const fn left(&self) -> u32 {
        self.count.saturating_sub(self.index)
    }

    /// Reads the number of an operation. An unknown one, and one of a later minor version, becomes `ILLEGAL`, which
    /// the receiver refuses.
    #[inline]
    fn read_number(input: &mut Reader<'a>, minor_version: u32) -> Result<O::Number, DecodeError> {
        let number = O::Number::try_from(input.u32()?).unwrap_or(O::ILLEGAL);
        Ok(if number.since() > minor_version { O::ILLEGAL } else { number })
    }

    /// Returns the number of the next operation without decoding it. A number that the minor version does not define
    /// is the illegal operation. Returns `None` behind the last operation, and if the message ends early.
    #[must_use]
    pub fn peek(&self) -> Option<O::Number> {
        let mut input = self.input;
        if self.left() == 0 { None } else { Self::read_number(&mut input, self.minor_version).ok() }
    }

    /// Reads the number of the next operation. The caller decodes the arguments behind it by
    /// [`arguments`](Self::arguments): so they are decoded where they are used, and never moved.
    ///
    /// # Errors
    /// [`DecodeError`] if the message ends early.
    #[inline]
    pub fn next_number(&mut self) -> Option<Result<O::Number, DecodeError>> {
        if self.left() == 0 {
            return None;
        }
        self.index += 1;
        Some(Self::read_number(&mut self.input, self.minor_version))
    }

    /// Decodes the arguments of the operation whose number was read last. `T` is the type of its arguments.
    ///
    /// # Errors
    /// [`DecodeError`] if the arguments are malformed. The operations behind them cannot be found then.
    #[inline]
    pub fn arguments<T: Decode<'a>>(&mut self) -> Result<T, DecodeError> {
        T::decode(&mut self.input)
    }
}

impl<'a, O: Operation<'a>> Iterator for Operations<'a, O> {
    type Item = Result<O, BadOperation<O::Number>>;

    /// Decodes the next operation. After an error there are no further operations. If the number itself is missing, it
    /// is that of the illegal operation.
    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let decoded = match self.next_number()? {
            Ok(number) => {
                O::decode_arguments(number, &mut self.input).map_err(|error| BadOperation { number, error })
            }
            Err(error) => Err(BadOperation { number: O::ILLEGAL, error }),
        };
        if decoded.is_err() {
            self.count = self.index;
        }
        Some(decoded)
    }
}

/// `COMPOUND4args`: the arguments of COMPOUND, and its operations.
#[derive(Debug, Clone, Copy)]
pub struct Compound<'a> {
    /// Text that the reply repeats.
    pub tag: &'a [u8],
    /// Minor version. For a version that it does not serve, the server must not decode the operations.
    pub minor_version: u32,
    /// The operations.
    pub operations: Operations<'a, Op<'a>>,
}

impl<'a> Decode<'a> for Compound<'a> {
    /// Decodes up to the first operation. `input` ends where the record ends.
    fn decode(input: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let tag = input.opaque_var(MAX_TAG)?;
        let minor_version = input.u32()?;
        let count = input.u32()?;
        let operation = PhantomData;
        let operations = Operations { input: *input, index: 0, count, minor_version, operation };
        Ok(Self { tag, minor_version, operations })
    }
}

/// `CB_COMPOUND4args`: the arguments of CB_COMPOUND, and its operations.
#[derive(Debug, Clone, Copy)]
pub struct CbCompound<'a> {
    /// Text that the reply repeats.
    pub tag: &'a [u8],
    /// Minor version.
    pub minor_version: u32,
    /// Number of the callback in NFSv4.0; NFSv4.1 ignores it.
    pub callback_ident: u32,
    /// The operations.
    pub operations: Operations<'a, CbOp<'a>>,
}

impl<'a> Decode<'a> for CbCompound<'a> {
    /// Decodes up to the first operation. `input` ends where the record ends.
    fn decode(input: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let tag = input.opaque_var(MAX_TAG)?;
        let minor_version = input.u32()?;
        let callback_ident = input.u32()?;
        let count = input.u32()?;
        let operation = PhantomData;
        let operations = Operations { input: *input, index: 0, count, minor_version, operation };
        Ok(Self { tag, minor_version, callback_ident, operations })
    }
}

/// The arguments of COMPOUND or CB_COMPOUND while operations are appended to a buffer.
#[derive(Debug, Clone, Copy)]
pub struct CompoundWriter {
    count_at: usize,
    count: u32,
}

impl CompoundWriter {
    /// Appends the arguments of COMPOUND up to the first operation.
    pub fn begin(out: &mut Vec<u8>, tag: &[u8], minor_version: u32) -> Self {
        tag.encode(out);
        minor_version.encode(out);
        Self::count(out)
    }

    /// Appends the arguments of CB_COMPOUND up to the first operation.
    pub fn begin_callback(out: &mut Vec<u8>, tag: &[u8], minor_version: u32, callback_ident: u32) -> Self {
        tag.encode(out);
        minor_version.encode(out);
        callback_ident.encode(out);
        Self::count(out)
    }

    /// Appends the number of operations, which is 0 until operations are pushed.
    fn count(out: &mut Vec<u8>) -> Self {
        let count_at = out.len();
        0u32.encode(out);
        Self { count_at, count: 0 }
    }

    /// Appends an operation: an [`Op`] or a [`CbOp`].
    pub fn push<'a>(&mut self, out: &mut Vec<u8>, operation: &(impl Operation<'a> + Encode)) {
        operation.encode(out);
        self.count += 1;
        self.patch(out);
    }

    /// Counts an operation that the caller has appended itself, such as a WRITE with data in another buffer.
    #[inline]
    pub fn counted(&mut self, out: &mut [u8]) {
        self.count += 1;
        self.patch(out);
    }

    fn patch(&self, out: &mut [u8]) {
        overwrite(out, self.count_at, self.count);
    }
}
