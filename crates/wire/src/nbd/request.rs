//! Requests of the transmission phase.

use super::{Cursor, Malformed};

const COMPACT_MAGIC: u32 = 0x2560_9513;
const EXTENDED_MAGIC: u32 = 0x21e4_1c71;

/// Bytes of a request's header without extended headers.
pub const COMPACT_REQUEST: usize = 28;
/// Bytes of a request's header with extended headers.
pub const EXTENDED_REQUEST: usize = 32;

/// Flags of commands.
pub mod command_flags {
    /// The reply comes when the change is durable.
    pub const FUA: u16 = 1;
    /// WRITE_ZEROES keeps the space allocated.
    pub const NO_HOLE: u16 = 1 << 1;
    /// READ is answered with one piece of data.
    pub const DF: u16 = 1 << 2;
    /// BLOCK_STATUS is answered with one extent for each context.
    pub const REQ_ONE: u16 = 1 << 3;
    /// WRITE_ZEROES is refused if it is not faster than a WRITE.
    pub const FAST_ZERO: u16 = 1 << 4;
    /// With extended headers: the length is that of a payload.
    pub const PAYLOAD_LEN: u16 = 1 << 5;
}

/// The number of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub enum Command {
    /// Reads.
    Read = 0,
    /// Writes the payload.
    Write = 1,
    /// Ends the session; it has no reply.
    Disc = 2,
    /// Makes earlier changes durable.
    Flush = 3,
    /// Says that a range is not needed.
    Trim = 4,
    /// Says that a range will be read.
    Cache = 5,
    /// Makes a range read as zeros.
    WriteZeroes = 6,
    /// Asks for the status of a range.
    BlockStatus = 7,
}

impl Command {
    /// Every command.
    pub const ALL: [Self; 8] = [
        Self::Read,
        Self::Write,
        Self::Disc,
        Self::Flush,
        Self::Trim,
        Self::Cache,
        Self::WriteZeroes,
        Self::BlockStatus,
    ];

    /// Returns the command of a number; none if the protocol does not define it.
    #[inline]
    #[must_use]
    pub fn from_number(number: u16) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }
}

/// The header of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// Flags of [`command_flags`].
    pub flags: u16,
    /// Number of the [`Command`].
    pub command: u16,
    /// The client's number for the request.
    pub cookie: u64,
    /// Offset in the export, in bytes.
    pub offset: u64,
    /// Bytes of the payload or of the range; at most 32 bits without extended headers.
    pub length: u64,
}

impl Request {
    /// Decodes a header without or with extended headers from the front of `bytes`.
    ///
    /// # Errors
    /// [`Malformed`], if these are not the bytes of a request.
    #[inline]
    pub fn decode(bytes: &[u8], is_extended: bool) -> Result<Self, Malformed> {
        let mut cursor = Cursor(bytes);
        if cursor.u32()? != if is_extended { EXTENDED_MAGIC } else { COMPACT_MAGIC } {
            return Err(Malformed::Magic);
        }
        let (flags, command) = (cursor.u16()?, cursor.u16()?);
        let (cookie, offset) = (cursor.u64()?, cursor.u64()?);
        let length = if is_extended { cursor.u64()? } else { cursor.u32()?.into() };
        Ok(Self { flags, command, cookie, offset, length })
    }

    /// Appends the header without or with extended headers. A longer length than the header can have is cut.
    pub fn encode(&self, is_extended: bool, out: &mut Vec<u8>) {
        let magic = if is_extended { EXTENDED_MAGIC } else { COMPACT_MAGIC };
        out.extend_from_slice(&magic.to_be_bytes());
        out.extend_from_slice(&self.flags.to_be_bytes());
        out.extend_from_slice(&self.command.to_be_bytes());
        out.extend_from_slice(&self.cookie.to_be_bytes());
        out.extend_from_slice(&self.offset.to_be_bytes());
        match is_extended {
            true => out.extend_from_slice(&self.length.to_be_bytes()),
            false => out.extend_from_slice(&(self.length as u32).to_be_bytes()),
        }
    }

    /// Returns the number of bytes that follow the header.
    #[inline]
    #[must_use]
    pub fn payload(&self, is_extended: bool) -> u64 {
        let has_payload = match is_extended {
            true => self.flags & command_flags::PAYLOAD_LEN != 0,
            false => self.command == Command::Write as u16,
        };
        if has_payload { self.length } else { 0 }
    }
}
