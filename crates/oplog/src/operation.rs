//! A change that the log alone makes durable.

use smallvec::SmallVec;

use crate::Name;
use crate::codec::{Reader, put_identity, put_name};
use crate::identity::Identity;
use crate::object::LoggedObject;

/// A change that was carried out in the backing file system, and the reply to its client. All values are absolute, so a
/// repeated record changes nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    /// The number from one counter for all file systems. The change gets it under its locks, after it was carried out.
    /// A RENAME gets it before that, with its [`crate::RenameIntent`]. Numbers grow in the order in which changes with
    /// a common name or object are carried out. The places of the records in the log grow in that order too.
    pub number: u64,
    /// The file system, as in the keys of the cache.
    pub filesystem: u32,
    /// For each name that the change modified, the objects that it led to before and leads to now.
    pub entries: Bindings,
    /// The objects that the change touched, in their present state. They are the objects that it made, the objects
    /// whose attributes it set, and the directories of its names. Removed objects are not in the list.
    pub objects: Vec<LoggedObject>,
    /// The reply and its client, opaque to this crate.
    pub reply: Box<[u8]>,
}

/// The names that a change modified. RENAME modifies two.
pub type Bindings = SmallVec<[Binding; 2]>;

/// A name, and the objects that it led to before and after a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Binding {
    /// The directory.
    pub dir: Identity,
    /// The name in it, 1 to 255 bytes.
    pub name: Name,
    /// The object that the name led to before the change; `None` if there was no such name.
    pub was: Option<Identity>,
    /// The object that the name leads to after the change; `None` if the name is removed.
    pub now: Option<Identity>,
}

const WAS: u8 = 1;
const NOW: u8 = 2;

impl Operation {
    /// Appends the operation in the format of a record. The reply has no length, since it is the last part.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.number.to_le_bytes());
        out.extend_from_slice(&self.filesystem.to_le_bytes());
        out.push(self.entries.len() as u8);
        self.entries.iter().for_each(|entry| entry.encode(out));
        out.push(self.objects.len() as u8);
        self.objects.iter().for_each(|object| object.encode(out));
        out.extend_from_slice(&self.reply);
    }

    /// Takes an operation from all bytes that are left; `None` if they are not those of a record.
    pub(crate) fn decode(input: &mut Reader<'_>) -> Option<Self> {
        let (number, filesystem) = (input.u64()?, input.u32()?);
        let count = input.u8()?;
        let entries = (0..count).map(|_| Binding::decode(input)).collect::<Option<_>>()?;
        let count = input.u8()?;
        let objects = (0..count).map(|_| LoggedObject::decode(input)).collect::<Option<_>>()?;
        let reply = std::mem::take(&mut input.0).into();
        Some(Operation { number, filesystem, entries, objects, reply })
    }
}

impl Binding {
    /// Appends the binding in the format of a record.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        put_identity(&self.dir, out);
        put_name(&self.name, out);
        out.push(self.was.map_or(0, |_| WAS) | self.now.map_or(0, |_| NOW));
        [self.was, self.now].iter().flatten().for_each(|object| put_identity(object, out));
    }

    /// Takes a binding; `None` if the bytes are not those of a record.
    pub(crate) fn decode(input: &mut Reader<'_>) -> Option<Self> {
        let (dir, name, flags) = (input.identity()?, input.name()?, input.u8()?);
        if flags & !(WAS | NOW) != 0 {
            return None;
        }
        let was = if flags & WAS != 0 { Some(input.identity()?) } else { None };
        let now = if flags & NOW != 0 { Some(input.identity()?) } else { None };
        Some(Binding { dir, name, was, now })
    }
}
