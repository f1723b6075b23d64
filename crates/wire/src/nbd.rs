//! NBD, the network block device protocol: fixed newstyle handshake and transmission, both directions.
//!
//! The source is `doc/proto.md` of NetworkBlockDevice/nbd, with its extension EXTENDED_HEADERS. Integers are
//! big-endian, without padding. The names in code style are those of that document.

mod handshake;
mod option;
mod option_reply;
mod reply;
mod request;

pub use handshake::{EXPORT_PADDING, GREETING, Greeting, OPTION_HEADER, OptionHeader, client, server};
pub use option::{Info, InfoIds, InfoRequest, MetaRequest, OptionId, Strings};
pub use option_reply::{OPTION_REPLY_HEADER, OptionReply, OptionReplyHeader, RefusalId, reply_type};
pub use reply::{
    Chunk, Descriptors, EXTENDED_REPLY, REPLY_DONE, ReplyHeader, SIMPLE_REPLY, STRUCTURED_REPLY, Style,
    chunk_type, encode_data_head, encode_done, encode_error, encode_status,
};
pub use request::{COMPACT_REQUEST, Command, EXTENDED_REQUEST, Request, command_flags};

/// The longest string in bytes: a name, a query or a message.
pub const MAX_STRING: usize = 4096;
/// The largest payload of a request in bytes that no peer may regard as an attack.
pub const MAX_PAYLOAD: u32 = 32 << 20;
/// The metadata context for allocated space and zeros.
pub const BASE_ALLOCATION: &str = "base:allocation";

/// Transmission flags: what an export can do.
pub mod transmission {
    /// Always set.
    pub const HAS_FLAGS: u16 = 1;
    /// The export refuses changes.
    pub const READ_ONLY: u16 = 1 << 1;
    /// FLUSH is available.
    pub const SEND_FLUSH: u16 = 1 << 2;
    /// The command flag FUA is available.
    pub const SEND_FUA: u16 = 1 << 3;
    /// The export has the characteristics of a rotating disk.
    pub const ROTATIONAL: u16 = 1 << 4;
    /// TRIM is available.
    pub const SEND_TRIM: u16 = 1 << 5;
    /// WRITE_ZEROES is available, with the command flag NO_HOLE.
    pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
    /// The command flag DF is available.
    pub const SEND_DF: u16 = 1 << 7;
    /// FLUSH and FUA on one connection cover the writes of all connections.
    pub const CAN_MULTI_CONN: u16 = 1 << 8;
    /// RESIZE is available (an extension; not offered here).
    pub const SEND_RESIZE: u16 = 1 << 9;
    /// CACHE is available.
    pub const SEND_CACHE: u16 = 1 << 10;
    /// The command flag FAST_ZERO is available.
    pub const SEND_FAST_ZERO: u16 = 1 << 11;
    /// BLOCK_STATUS with a payload is available.
    pub const BLOCK_STATUS_PAYLOAD: u16 = 1 << 12;
}

/// Status flags of the context [`BASE_ALLOCATION`].
pub mod allocation {
    /// No space is allocated for the extent.
    pub const HOLE: u64 = 1;
    /// The extent reads as zeros.
    pub const ZERO: u64 = 2;
}

/// An error of a command, as its reply has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum ErrorCode {
    /// The export is read-only.
    Perm = 1,
    /// Input or output failed.
    Io = 5,
    /// There is no memory.
    NoMem = 12,
    /// The request is not valid.
    Inval = 22,
    /// There is no space, or a write passes the end.
    NoSpc = 28,
    /// The request is too long.
    Overflow = 75,
    /// A fast answer is not possible.
    NotSup = 95,
    /// The server stops.
    Shutdown = 108,
}

impl ErrorCode {
    /// Every code.
    pub const ALL: [Self; 8] = [
        Self::Perm,
        Self::Io,
        Self::NoMem,
        Self::Inval,
        Self::NoSpc,
        Self::Overflow,
        Self::NotSup,
        Self::Shutdown,
    ];

    /// Returns the code of a number. An unexpected number counts as `Inval`, as the protocol asks.
    #[must_use]
    pub fn from_number(number: u32) -> Self {
        Self::ALL.into_iter().find(|code| *code as u32 == number).unwrap_or(Self::Inval)
    }
}

/// The reason why bytes from a peer could not be decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// The bytes do not begin with the magic number of the expected message.
    #[error("the message begins with a wrong magic number")]
    Magic,
    /// The message ends inside an item.
    #[error("the message ends inside an item")]
    Truncated,
    /// Bytes follow the message.
    #[error("the message has {0} bytes too many")]
    Excess(usize),
    /// A string is longer than [`MAX_STRING`].
    #[error("a string has {0} bytes, and 4096 are allowed")]
    TooLong(usize),
    /// A string is not UTF-8, or has a NUL character.
    #[error("a string is not valid text")]
    Text,
    /// A number has a value that the protocol does not define there.
    #[error("{0} is not a valid value here")]
    Value(u64),
}

/// A cursor over one message.
#[derive(Debug, Clone, Copy)]
struct Cursor<'a>(&'a [u8]);

impl<'a> Cursor<'a> {
    /// Takes `len` bytes. Fails with `Truncated` if fewer are left.
    fn bytes(&mut self, len: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or(Malformed::Truncated)?;
        self.0 = rest;
        Ok(taken)
    }

    /// Takes `N` bytes. Fails with `Truncated` if fewer are left.
    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(Malformed::Truncated)?;
        self.0 = rest;
        Ok(*taken)
    }

    fn u16(&mut self) -> Result<u16, Malformed> {
        self.array().map(u16::from_be_bytes)
    }

    fn u32(&mut self) -> Result<u32, Malformed> {
        self.array().map(u32::from_be_bytes)
    }

    fn u64(&mut self) -> Result<u64, Malformed> {
        self.array().map(u64::from_be_bytes)
    }

    /// Takes a string of `len` bytes.
    fn text(&mut self, len: usize) -> Result<&'a str, Malformed> {
        if len > MAX_STRING {
            return Err(Malformed::TooLong(len));
        }
        let text = std::str::from_utf8(self.bytes(len)?).map_err(|_| Malformed::Text)?;
        if text.contains('\0') { Err(Malformed::Text) } else { Ok(text) }
    }

    /// Takes a string with its length in front.
    fn counted(&mut self) -> Result<&'a str, Malformed> {
        let len = self.u32()?;
        self.text(len as usize)
    }

    /// Fails if bytes are left.
    fn end(&self) -> Result<(), Malformed> {
        if self.0.is_empty() { Ok(()) } else { Err(Malformed::Excess(self.0.len())) }
    }
}

/// Appends a string with its length in front.
fn put_counted(out: &mut Vec<u8>, text: &str) {
    out.extend_from_slice(&(text.len() as u32).to_be_bytes());
    out.extend_from_slice(text.as_bytes());
}
