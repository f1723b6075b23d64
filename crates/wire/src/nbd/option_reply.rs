//! Replies to options.

use super::{Cursor, Info, Malformed, OptionId, put_counted};

const MAGIC: u64 = 0x0003_e889_0455_65a9;

/// Bytes of an [`OptionReplyHeader`].
pub const OPTION_REPLY_HEADER: usize = 20;

/// Types of replies that are not refusals.
pub mod reply_type {
    /// The option is accepted; nothing follows for it.
    pub const ACK: u32 = 1;
    /// The name of an export.
    pub const SERVER: u32 = 2;
    /// An item of information about an export.
    pub const INFO: u32 = 3;
    /// A metadata context.
    pub const META_CONTEXT: u32 = 4;
}

/// The reason for the refusal of an option.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum RefusalId {
    /// The server does not know the option.
    Unsup = (1 << 31) + 1,
    /// The server's settings forbid the option.
    Policy = (1 << 31) + 2,
    /// The data of the option is not valid, or the option is not allowed now.
    Invalid = (1 << 31) + 3,
    /// The platform lacks something.
    Platform = (1 << 31) + 4,
    /// TLS has to come first.
    TlsReqd = (1 << 31) + 5,
    /// There is no such export.
    Unknown = (1 << 31) + 6,
    /// The server stops.
    Shutdown = (1 << 31) + 7,
    /// The client has to ask for the block sizes.
    BlockSizeReqd = (1 << 31) + 8,
    /// The request or its reply is too large.
    TooBig = (1 << 31) + 9,
    /// Extended headers have to come first, or exclude this option.
    ExtHeaderReqd = (1 << 31) + 10,
}

impl RefusalId {
    /// Every reason.
    pub const ALL: [Self; 10] = [
        Self::Unsup,
        Self::Policy,
        Self::Invalid,
        Self::Platform,
        Self::TlsReqd,
        Self::Unknown,
        Self::Shutdown,
        Self::BlockSizeReqd,
        Self::TooBig,
        Self::ExtHeaderReqd,
    ];
}

/// A reply to an option.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OptionReply<'a> {
    /// Success; the last reply.
    Ack,
    /// An export, for `NBD_OPT_LIST`.
    Server {
        /// Name of the export.
        name: &'a str,
    },
    /// Size and flags of an export.
    Export {
        /// Size in bytes.
        size: u64,
        /// Flags of [`transmission`](super::transmission).
        flags: u16,
    },
    /// The canonical name of an export.
    Name(&'a str),
    /// A text about an export.
    Description(&'a str),
    /// The sizes of requests.
    BlockSize {
        /// The unit of offsets and lengths in bytes.
        minimum: u32,
        /// The unit in bytes of requests that are fast.
        preferred: u32,
        /// The largest payload in bytes.
        maximum: u32,
    },
    /// An item that this code does not know.
    OtherInfo(u16),
    /// A metadata context.
    MetaContext {
        /// The number that replies use for the context.
        id: u32,
        /// The name of the context.
        name: &'a str,
    },
    /// A refusal; the last reply.
    Refused {
        /// The number of the reason ([`RefusalId`]).
        reason: u32,
        /// A text for a person.
        message: &'a str,
    },
}

impl<'a> OptionReply<'a> {
    /// Returns a refusal.
    #[must_use]
    pub fn refused(reason: RefusalId, message: &'a str) -> Self {
        Self::Refused { reason: reason as u32, message }
    }

    /// Appends the reply to the option with the number `option`.
    pub fn encode(&self, option: u32, out: &mut Vec<u8>) {
        let kind = match self {
            Self::Ack => reply_type::ACK,
            Self::Server { .. } => reply_type::SERVER,
            Self::MetaContext { .. } => reply_type::META_CONTEXT,
            Self::Refused { reason, .. } => *reason,
            _ => reply_type::INFO,
        };
        out.extend_from_slice(&MAGIC.to_be_bytes());
        out.extend_from_slice(&option.to_be_bytes());
        out.extend_from_slice(&kind.to_be_bytes());
        let start = out.len();
        out.extend_from_slice(&[0; 4]);
        self.encode_data(out);
        let length = (out.len() - start - 4) as u32;
        out[start..start + 4].copy_from_slice(&length.to_be_bytes());
    }

    /// Appends the data of the reply, without its header.
    fn encode_data(&self, out: &mut Vec<u8>) {
        let info = |out: &mut Vec<u8>, info: Info| out.extend_from_slice(&(info as u16).to_be_bytes());
        match *self {
            Self::Ack => {}
            Self::Server { name } => put_counted(out, name),
            Self::Export { size, flags } => {
                info(out, Info::Export);
                out.extend_from_slice(&size.to_be_bytes());
                out.extend_from_slice(&flags.to_be_bytes());
            }
            Self::Name(name) => {
                info(out, Info::Name);
                out.extend_from_slice(name.as_bytes());
            }
            Self::Description(text) => {
                info(out, Info::Description);
                out.extend_from_slice(text.as_bytes());
            }
            Self::BlockSize { minimum, preferred, maximum } => {
                info(out, Info::BlockSize);
                [minimum, preferred, maximum]
                    .iter()
                    .for_each(|size| out.extend_from_slice(&size.to_be_bytes()));
            }
            Self::OtherInfo(number) => out.extend_from_slice(&number.to_be_bytes()),
            Self::MetaContext { id, name } => {
                out.extend_from_slice(&id.to_be_bytes());
                out.extend_from_slice(name.as_bytes());
            }
            Self::Refused { message, .. } => out.extend_from_slice(message.as_bytes()),
        }
    }

    /// Decodes the data of a reply with this header, whose length the caller has checked.
    ///
    /// # Errors
    /// [`Malformed`]
    pub fn decode(header: OptionReplyHeader, data: &'a [u8]) -> Result<Self, Malformed> {
        let mut cursor = Cursor(data);
        let reply = match header.kind {
            reply_type::ACK => Self::Ack,
            reply_type::SERVER => {
                let name = cursor.counted()?;
                // The rest is a text for a person, which this code does not show.
                cursor.text(cursor.0.len())?;
                Self::Server { name }
            }
            reply_type::INFO => return Self::decode_info(cursor),
            reply_type::META_CONTEXT => {
                Self::MetaContext { id: cursor.u32()?, name: cursor.text(cursor.0.len())? }
            }
            reason if reason >> 31 == 1 => Self::Refused { reason, message: cursor.text(cursor.0.len())? },
            other => return Err(Malformed::Value(other.into())),
        };
        cursor.end()?;
        Ok(reply)
    }

    /// Decodes the data of NBD_REP_INFO. Information of an unknown kind is returned by its number, because servers
    /// may send more than was asked for.
    fn decode_info(mut cursor: Cursor<'a>) -> Result<Self, Malformed> {
        let reply = match cursor.u16()? {
            0 => Self::Export { size: cursor.u64()?, flags: cursor.u16()? },
            1 => Self::Name(cursor.text(cursor.0.len())?),
            2 => Self::Description(cursor.text(cursor.0.len())?),
            3 => Self::BlockSize { minimum: cursor.u32()?, preferred: cursor.u32()?, maximum: cursor.u32()? },
            other => return Ok(Self::OtherInfo(other)),
        };
        cursor.end()?;
        Ok(reply)
    }
}

/// The header of a reply to an option; its data follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OptionReplyHeader {
    /// Number of the option ([`OptionId`]).
    pub option: u32,
    /// A number of [`reply_type`] or a [`RefusalId`].
    pub kind: u32,
    /// Bytes of data.
    pub length: u32,
}

impl OptionReplyHeader {
    /// Decodes the header at the front of `bytes`.
    ///
    /// # Errors
    /// [`Malformed`], if these are not the bytes of a reply to an option.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut cursor = Cursor(bytes);
        if cursor.u64()? != MAGIC {
            return Err(Malformed::Magic);
        }
        Ok(Self { option: cursor.u32()?, kind: cursor.u32()?, length: cursor.u32()? })
    }

    /// Returns true if the reply is the last one to its option.
    #[must_use]
    pub fn is_last(self) -> bool {
        self.kind == reply_type::ACK || self.kind >> 31 == 1
    }

    /// Returns true if the reply is for `option`.
    #[must_use]
    pub fn is_for(self, option: OptionId) -> bool {
        self.option == option as u32
    }
}
