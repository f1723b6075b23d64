//! The data of options.

use super::{Cursor, Malformed, put_counted};

/// The number of an option.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum OptionId {
    /// Begins transmission; cannot be answered with an error. The data is the name.
    ExportName = 1,
    /// Ends the session.
    Abort = 2,
    /// Asks for the names of all exports.
    List = 3,
    /// Begins TLS.
    StartTls = 5,
    /// Asks about an export: [`InfoRequest`].
    Info = 6,
    /// Asks about an export, and begins transmission: [`InfoRequest`].
    Go = 7,
    /// Asks for structured replies.
    StructuredReply = 8,
    /// Asks for the metadata contexts of an export: [`MetaRequest`].
    ListMetaContext = 9,
    /// Selects metadata contexts: [`MetaRequest`].
    SetMetaContext = 10,
    /// Asks for extended headers.
    ExtendedHeaders = 11,
}

impl OptionId {
    /// Every option.
    pub const ALL: [Self; 10] = [
        Self::ExportName,
        Self::Abort,
        Self::List,
        Self::StartTls,
        Self::Info,
        Self::Go,
        Self::StructuredReply,
        Self::ListMetaContext,
        Self::SetMetaContext,
        Self::ExtendedHeaders,
    ];

    /// Returns the option of a number; none if the protocol does not define it.
    #[must_use]
    pub fn from_number(number: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|option| *option as u32 == number)
    }
}

/// The number of an item of information about an export.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub enum Info {
    /// Size and transmission flags.
    Export = 0,
    /// The canonical name.
    Name = 1,
    /// A text for a person.
    Description = 2,
    /// Smallest block, preferred block, largest payload.
    BlockSize = 3,
}

/// The items of information that a client asks for, as they arrived. Unknown numbers are allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InfoIds<'a>(&'a [u8]);

impl<'a> InfoIds<'a> {
    /// Returns the items of these big-endian numbers; none if `bytes` has an odd length.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Option<Self> {
        bytes.len().is_multiple_of(2).then_some(Self(bytes))
    }

    /// Returns true if `info` is asked for.
    #[must_use]
    pub fn has(self, info: Info) -> bool {
        self.0.chunks_exact(2).any(|id| id == (info as u16).to_be_bytes())
    }
}

/// The data of `NBD_OPT_INFO` and `NBD_OPT_GO`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InfoRequest<'a> {
    /// Name of the export; empty for the default export.
    pub name: &'a str,
    /// The items asked for.
    pub infos: InfoIds<'a>,
}

impl<'a> InfoRequest<'a> {
    /// Appends the data.
    pub fn encode(&self, out: &mut Vec<u8>) {
        put_counted(out, self.name);
        out.extend_from_slice(&((self.infos.0.len() / 2) as u16).to_be_bytes());
        out.extend_from_slice(self.infos.0);
    }

    /// Decodes the whole data of an option.
    ///
    /// # Errors
    /// [`Malformed`]
    pub fn decode(data: &'a [u8]) -> Result<Self, Malformed> {
        let mut cursor = Cursor(data);
        let name = cursor.counted()?;
        let count = usize::from(cursor.u16()?);
        let infos = InfoIds(cursor.bytes(2 * count)?);
        cursor.end()?;
        Ok(Self { name, infos })
    }
}

/// Valid strings with their lengths, as they arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Strings<'a>(&'a [u8]);

impl<'a> Strings<'a> {
    /// Returns the strings in order.
    pub fn iter(self) -> impl Iterator<Item = &'a str> {
        let mut cursor = Cursor(self.0);
        std::iter::from_fn(move || cursor.counted().ok())
    }
}

/// The data of `NBD_OPT_LIST_META_CONTEXT` and `NBD_OPT_SET_META_CONTEXT`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MetaRequest<'a> {
    /// Name of the export; empty for the default export.
    pub name: &'a str,
    /// Queries, each a namespace, a colon and a rest.
    pub queries: Strings<'a>,
}

impl<'a> MetaRequest<'a> {
    /// Appends the data of a request for `name` with these queries.
    pub fn encode(name: &str, queries: &[&str], out: &mut Vec<u8>) {
        put_counted(out, name);
        out.extend_from_slice(&(queries.len() as u32).to_be_bytes());
        queries.iter().for_each(|query| put_counted(out, query));
    }

    /// Decodes the whole data of an option.
    ///
    /// # Errors
    /// [`Malformed`]
    pub fn decode(data: &'a [u8]) -> Result<Self, Malformed> {
        let mut cursor = Cursor(data);
        let name = cursor.counted()?;
        let count = cursor.u32()?;
        let queries = Strings(cursor.0);
        for _ in 0..count {
            cursor.counted()?;
        }
        cursor.end()?;
        Ok(Self { name, queries })
    }
}
