//! The first messages of a connection, and the headers of options.

use super::{Cursor, Malformed};

const MAGIC: u64 = 0x4e42_444d_4147_4943;
const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;

/// Bytes of a [`Greeting`].
pub const GREETING: usize = 18;
/// Bytes of an [`OptionHeader`].
pub const OPTION_HEADER: usize = 16;
/// Zero bytes behind the answer to `NBD_OPT_EXPORT_NAME`, unless the client has set [`client::NO_ZEROES`].
pub const EXPORT_PADDING: usize = 124;

/// Handshake flags of the server.
pub mod server {
    /// `NBD_FLAG_FIXED_NEWSTYLE`: options are answered.
    pub const FIXED_NEWSTYLE: u16 = 1;
    /// `NBD_FLAG_NO_ZEROES`: the padding can be left out.
    pub const NO_ZEROES: u16 = 2;
}

/// Flags of the client, the first four bytes that it sends.
pub mod client {
    /// `NBD_FLAG_C_FIXED_NEWSTYLE`: the client understands answers to options.
    pub const FIXED_NEWSTYLE: u32 = 1;
    /// `NBD_FLAG_C_NO_ZEROES`: the padding is left out.
    pub const NO_ZEROES: u32 = 2;
}

/// The first message of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Greeting {
    /// Flags of [`server`].
    pub flags: u16,
}

impl Greeting {
    /// Returns the message.
    #[must_use]
    pub fn encode(self) -> Vec<u8> {
        [&MAGIC.to_be_bytes()[..], &OPTION_MAGIC.to_be_bytes(), &self.flags.to_be_bytes()].concat()
    }

    /// Decodes the [`GREETING`] bytes of a server.
    ///
    /// # Errors
    /// [`Malformed`], if the server does not offer the newstyle handshake.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut cursor = Cursor(bytes);
        if cursor.u64()? != MAGIC || cursor.u64()? != OPTION_MAGIC {
            return Err(Malformed::Magic);
        }
        let flags = cursor.u16()?;
        cursor.end()?;
        Ok(Self { flags })
    }
}

/// The header of an option; the data of the option follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OptionHeader {
    /// Number of the option ([`OptionId`](super::OptionId)).
    pub option: u32,
    /// Bytes of data.
    pub length: u32,
}

impl OptionHeader {
    /// Appends the header.
    pub fn encode(self, out: &mut Vec<u8>) {
        out.extend_from_slice(&OPTION_MAGIC.to_be_bytes());
        out.extend_from_slice(&self.option.to_be_bytes());
        out.extend_from_slice(&self.length.to_be_bytes());
    }

    /// Decodes the header at the front of `bytes`.
    ///
    /// # Errors
    /// [`Malformed`], if these are not the bytes of an option.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut cursor = Cursor(bytes);
        if cursor.u64()? != OPTION_MAGIC {
            return Err(Malformed::Magic);
        }
        Ok(Self { option: cursor.u32()?, length: cursor.u32()? })
    }
}
