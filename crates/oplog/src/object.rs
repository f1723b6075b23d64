//! The record of an object after a change.

use crate::codec::{Reader, put_identity, put_time};
use crate::given::{Access, Given};
use crate::identity::Identity;

/// Seconds and nanoseconds since 1970-01-01 UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Time {
    /// Whole seconds; negative before 1970.
    pub sec: i64,
    /// Nanoseconds, 0 to 999,999,999.
    pub nsec: u32,
}

/// The type of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A regular file.
    File = 1,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A named pipe.
    Fifo,
    /// A local socket.
    Socket,
    /// A character device.
    Character,
    /// A block device.
    Block,
}

const KINDS: [Kind; 7] =
    [Kind::File, Kind::Directory, Kind::Symlink, Kind::Fifo, Kind::Socket, Kind::Character, Kind::Block];

/// The attributes that a change sets. The size is not among them: it is in the cache's own records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// The type of the object.
    pub kind: Kind,
    /// Permission bits with set-uid, set-gid and sticky: the low 12 bits of st_mode. They mean nothing for a symbolic
    /// link.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Owning group.
    pub gid: u32,
    /// Last access.
    pub atime: Time,
    /// Last change of the contents, at the time of this change. The effect of a later WRITE is in the cache's own
    /// records.
    pub mtime: Time,
}

/// The properties besides attributes that recovery needs to recreate an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum New {
    /// A file, directory, pipe or socket: nothing else is needed.
    Plain,
    /// The major and minor number of a device node.
    Device(u32, u32),
    /// The text of a symbolic link.
    Link(Box<[u8]>),
}

/// An object after a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoggedObject {
    /// The object.
    pub identity: Identity,
    /// The object's attributes.
    pub attributes: Attributes,
    /// The properties needed to recreate the object, if the change made it.
    pub new: Option<New>,
    /// The origin of mode, owner and group in [`LoggedObject::attributes`], and the properties that the change set
    /// with them.
    pub access: Access,
}

/// A bit beside the kind: the change did not set mode, owner and group.
const KEPT: u8 = 0x40;
/// A bit beside the kind: a [`Given`] follows.
const GIVEN: u8 = 0x80;

impl LoggedObject {
    /// Appends the object in the format of a record.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        let Attributes { kind, mode, uid, gid, atime, mtime } = self.attributes;
        put_identity(&self.identity, out);
        out.push(
            kind as u8
                | match self.access {
                    Access::Kept => KEPT,
                    Access::Set => 0,
                    Access::Given(_) => GIVEN,
                },
        );
        [mode, uid, gid].iter().for_each(|field| out.extend_from_slice(&field.to_le_bytes()));
        put_time(atime, out);
        put_time(mtime, out);
        match &self.new {
            None => out.push(0),
            Some(New::Plain) => out.push(1),
            Some(New::Device(major, minor)) => {
                out.push(2);
                out.extend_from_slice(&major.to_le_bytes());
                out.extend_from_slice(&minor.to_le_bytes());
            }
            Some(New::Link(text)) => {
                out.push(3);
                // The length fits: a text longer than a user record has no record.
                out.extend_from_slice(&(text.len() as u16).to_le_bytes());
                out.extend_from_slice(text);
            }
        }
        if let Access::Given(given) = &self.access {
            given.encode(out);
        }
    }

    /// Takes an object; `None` if the bytes are not those of a record.
    pub(crate) fn decode(input: &mut Reader<'_>) -> Option<Self> {
        let identity = input.identity()?;
        let kind = input.u8()?;
        let (access, kind) = (kind & (KEPT | GIVEN), kind & !(KEPT | GIVEN));
        let kind = *KINDS.get(usize::from(kind).checked_sub(1)?)?;
        let (mode, uid, gid) = (input.u32()?, input.u32()?, input.u32()?);
        let (atime, mtime) = (input.time()?, input.time()?);
        let new = match input.u8()? {
            0 => None,
            1 => Some(New::Plain),
            2 => Some(New::Device(input.u32()?, input.u32()?)),
            3 => {
                let len = u16::from_le_bytes(input.array()?);
                Some(New::Link(input.bytes(len.into())?.into()))
            }
            _ => return None,
        };
        let attributes = Attributes { kind, mode, uid, gid, atime, mtime };
        let access = match access {
            0 => Access::Set,
            KEPT => Access::Kept,
            GIVEN => Access::Given(Box::new(Given::decode(input)?)),
            _ => return None,
        };
        Some(LoggedObject { identity, attributes, new, access })
    }
}
