//! Replies of the transmission phase.

use super::{Cursor, ErrorCode, MAX_STRING, Malformed};

const SIMPLE_MAGIC: u32 = 0x6744_6698;
const STRUCTURED_MAGIC: u32 = 0x668e_33ef;
const EXTENDED_MAGIC: u32 = 0x6e8a_278c;

/// Bytes of the header of a simple reply.
pub const SIMPLE_REPLY: usize = 16;
/// Bytes of the header of a chunk of a structured reply.
pub const STRUCTURED_REPLY: usize = 20;
/// Bytes of the header of a chunk with extended headers.
pub const EXTENDED_REPLY: usize = 32;
/// The flag of the last chunk of a reply.
pub const REPLY_DONE: u16 = 1;

/// Types of chunks.
pub mod chunk_type {
    /// Nothing; ends a reply.
    pub const NONE: u16 = 0;
    /// Data of the export.
    pub const OFFSET_DATA: u16 = 1;
    /// Zeros of the export.
    pub const OFFSET_HOLE: u16 = 2;
    /// Extents with 32 bits of length and status.
    pub const BLOCK_STATUS: u16 = 5;
    /// Extents with 64 bits of length and status, for extended headers.
    pub const BLOCK_STATUS_EXT: u16 = 6;
    /// An error.
    pub const ERROR: u16 = (1 << 15) + 1;
    /// An error at an offset.
    pub const ERROR_OFFSET: u16 = (1 << 15) + 2;
}

/// The form of the replies on a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    /// Simple replies only.
    Simple,
    /// Structured replies.
    Structured,
    /// Extended headers.
    Extended,
}

impl Style {
    /// Returns true with extended headers.
    #[inline]
    #[must_use]
    pub fn is_extended(self) -> bool {
        self == Self::Extended
    }
}

/// Appends a whole reply without data: success.
#[inline]
pub fn encode_done(style: Style, cookie: u64, offset: u64, out: &mut Vec<u8>) {
    match style {
        // A simple reply without data is allowed among structured ones, and is shorter.
        Style::Simple | Style::Structured => encode_simple(cookie, 0, out),
        Style::Extended => {
            encode_chunk(style, REPLY_DONE, chunk_type::NONE, (cookie, offset), 0, out);
        }
    }
}

/// Appends a whole reply that reports an error. `message` is for a person; it is cut to [`MAX_STRING`] bytes, and
/// simple replies lack it.
pub fn encode_error(
    style: Style,
    (cookie, offset): (u64, u64),
    error: ErrorCode,
    message: &str,
    out: &mut Vec<u8>,
) {
    if style == Style::Simple {
        encode_simple(cookie, error as u32, out);
        return;
    }
    let message = &message[..message.floor_char_boundary(MAX_STRING)];
    let length = 6 + message.len() as u64;
    encode_chunk(style, REPLY_DONE, chunk_type::ERROR, (cookie, offset), length, out);
    out.extend_from_slice(&(error as u32).to_be_bytes());
    out.extend_from_slice(&(message.len() as u16).to_be_bytes());
    out.extend_from_slice(message.as_bytes());
}

/// Appends a whole reply to READ except its `len` bytes of data, which follow. `len` is above 0 and below 2^32 - 8.
#[inline]
pub fn encode_data_head(style: Style, (cookie, offset): (u64, u64), len: u64, out: &mut Vec<u8>) {
    if style == Style::Simple {
        encode_simple(cookie, 0, out);
        return;
    }
    encode_chunk(style, REPLY_DONE, chunk_type::OFFSET_DATA, (cookie, offset), 8 + len, out);
    out.extend_from_slice(&offset.to_be_bytes());
}

/// Appends a chunk with the extents of one metadata context: pairs of length and status. Without extended headers both
/// are below 2^32. For [`Style::Simple`] there is no such chunk, and nothing is appended.
pub fn encode_status(
    style: Style,
    (cookie, offset): (u64, u64),
    context: u32,
    extents: &[(u64, u64)],
    is_last: bool,
    out: &mut Vec<u8>,
) {
    let flags = if is_last { REPLY_DONE } else { 0 };
    let count = extents.len() as u64;
    match style {
        Style::Simple => {}
        Style::Structured => {
            encode_chunk(style, flags, chunk_type::BLOCK_STATUS, (cookie, offset), 4 + 8 * count, out);
            out.extend_from_slice(&context.to_be_bytes());
            for (len, status) in extents {
                out.extend_from_slice(&(*len as u32).to_be_bytes());
                out.extend_from_slice(&(*status as u32).to_be_bytes());
            }
        }
        Style::Extended => {
            encode_chunk(style, flags, chunk_type::BLOCK_STATUS_EXT, (cookie, offset), 8 + 16 * count, out);
            out.extend_from_slice(&context.to_be_bytes());
            out.extend_from_slice(&(count as u32).to_be_bytes());
            for (len, status) in extents {
                out.extend_from_slice(&len.to_be_bytes());
                out.extend_from_slice(&status.to_be_bytes());
            }
        }
    }
}

/// Appends the header of a simple reply. `error` 0 is success.
#[inline]
fn encode_simple(cookie: u64, error: u32, out: &mut Vec<u8>) {
    out.extend_from_slice(&SIMPLE_MAGIC.to_be_bytes());
    out.extend_from_slice(&error.to_be_bytes());
    out.extend_from_slice(&cookie.to_be_bytes());
}

/// Appends the header of a chunk with `length` bytes of data, in the form that was negotiated.
#[inline]
fn encode_chunk(
    style: Style,
    flags: u16,
    kind: u16,
    (cookie, offset): (u64, u64),
    length: u64,
    out: &mut Vec<u8>,
) {
    let magic = if style.is_extended() { EXTENDED_MAGIC } else { STRUCTURED_MAGIC };
    out.extend_from_slice(&magic.to_be_bytes());
    out.extend_from_slice(&flags.to_be_bytes());
    out.extend_from_slice(&kind.to_be_bytes());
    out.extend_from_slice(&cookie.to_be_bytes());
    if style.is_extended() {
        out.extend_from_slice(&offset.to_be_bytes());
        out.extend_from_slice(&length.to_be_bytes());
    } else {
        out.extend_from_slice(&(length as u32).to_be_bytes());
    }
}

/// The header of a reply, for a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplyHeader {
    /// A simple reply. The data of a READ follows if there is no error.
    Simple {
        /// The number of the error; 0 for success.
        error: u32,
        /// The number of the request.
        cookie: u64,
    },
    /// A chunk, whose payload follows.
    Chunk {
        /// True for the last chunk of the reply.
        is_last: bool,
        /// A number of [`chunk_type`].
        kind: u16,
        /// The number of the request.
        cookie: u64,
        /// Bytes of the payload.
        length: u64,
    },
}

impl ReplyHeader {
    /// Returns the number of bytes of the header that begins with these four bytes; none for any other message.
    #[must_use]
    pub fn size(magic: [u8; 4]) -> Option<usize> {
        match u32::from_be_bytes(magic) {
            SIMPLE_MAGIC => Some(SIMPLE_REPLY),
            STRUCTURED_MAGIC => Some(STRUCTURED_REPLY),
            EXTENDED_MAGIC => Some(EXTENDED_REPLY),
            _ => None,
        }
    }

    /// Decodes the header at the front of `bytes`.
    ///
    /// # Errors
    /// [`Malformed`], if these are not the bytes of a reply.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut cursor = Cursor(bytes);
        let magic = cursor.u32()?;
        if magic == SIMPLE_MAGIC {
            return Ok(Self::Simple { error: cursor.u32()?, cookie: cursor.u64()? });
        }
        let (flags, kind, cookie) = match magic {
            STRUCTURED_MAGIC | EXTENDED_MAGIC => (cursor.u16()?, cursor.u16()?, cursor.u64()?),
            _ => return Err(Malformed::Magic),
        };
        let length = match magic {
            STRUCTURED_MAGIC => cursor.u32()?.into(),
            _ => {
                cursor.u64()?;
                cursor.u64()?
            }
        };
        Ok(Self::Chunk { is_last: flags & REPLY_DONE != 0, kind, cookie, length })
    }
}

/// The payload of a chunk, for a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Chunk<'a> {
    /// Nothing.
    None,
    /// Data of the export.
    Data {
        /// Offset of the data in the export, in bytes.
        offset: u64,
        /// The data.
        data: &'a [u8],
    },
    /// Zeros of the export.
    Hole {
        /// Offset of the zeros in the export, in bytes.
        offset: u64,
        /// The number of zeros.
        length: u32,
    },
    /// Extents of one metadata context.
    Status {
        /// The number of the context.
        context: u32,
        /// The extents.
        extents: Descriptors<'a>,
    },
    /// An error.
    Error {
        /// The number of the error.
        error: u32,
        /// A text for a person.
        message: &'a str,
        /// The place of the error, if it is known.
        offset: Option<u64>,
    },
}

/// Extents as they arrived: pairs of length and status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Descriptors<'a> {
    bytes: &'a [u8],
    is_extended: bool,
}

impl<'a> Descriptors<'a> {
    /// Takes extents as they arrived. Fails with `Truncated` if there is none, or an incomplete one.
    fn new(bytes: &'a [u8], is_extended: bool) -> Result<Self, Malformed> {
        let size = if is_extended { 16 } else { 8 };
        if bytes.is_empty() || !bytes.len().is_multiple_of(size) {
            return Err(Malformed::Truncated);
        }
        Ok(Self { bytes, is_extended })
    }

    /// Returns the length and the status of each extent.
    pub fn iter(self) -> impl Iterator<Item = (u64, u64)> {
        let mut cursor = Cursor(self.bytes);
        std::iter::from_fn(move || {
            let mut next = || {
                if self.is_extended { cursor.u64().ok() } else { cursor.u32().ok().map(u64::from) }
            };
            Some((next()?, next()?))
        })
    }
}

impl<'a> Chunk<'a> {
    /// Decodes the whole payload of a chunk of this type.
    ///
    /// # Errors
    /// [`Malformed`]
    pub fn decode(kind: u16, payload: &'a [u8]) -> Result<Self, Malformed> {
        let mut cursor = Cursor(payload);
        let chunk = match kind {
            chunk_type::NONE => Self::None,
            chunk_type::OFFSET_DATA => {
                let offset = cursor.u64()?;
                if cursor.0.is_empty() {
                    return Err(Malformed::Truncated);
                }
                return Ok(Self::Data { offset, data: cursor.0 });
            }
            chunk_type::OFFSET_HOLE => Self::Hole { offset: cursor.u64()?, length: cursor.u32()? },
            chunk_type::BLOCK_STATUS => {
                let context = cursor.u32()?;
                return Ok(Self::Status { context, extents: Descriptors::new(cursor.0, false)? });
            }
            chunk_type::BLOCK_STATUS_EXT => {
                let (context, count) = (cursor.u32()?, cursor.u32()?);
                let extents = Descriptors::new(cursor.0, true)?;
                if cursor.0.len() as u64 != 16 * u64::from(count) {
                    return Err(Malformed::Value(count.into()));
                }
                return Ok(Self::Status { context, extents });
            }
            // Every error begins alike, and an unknown one is still an error.
            error if error >> 15 == 1 => {
                let (error, len) = (cursor.u32()?, cursor.u16()?);
                let message = cursor.text(len.into())?;
                let offset = if kind == chunk_type::ERROR_OFFSET { Some(cursor.u64()?) } else { None };
                return Ok(Self::Error { error, message, offset });
            }
            other => return Err(Malformed::Value(other.into())),
        };
        cursor.end()?;
        Ok(chunk)
    }
}
