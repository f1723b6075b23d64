//! A change that the log alone makes durable.

use smallvec::SmallVec;

use crate::Name;
use crate::codec::{Reader, put_identity, put_name};
use crate::identity::Identity;
use crate::object::Object;

/// A change that was carried out in the backing file system, and what its client is told: all in absolute terms, so that
/// saying it twice is saying it once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    /// Given out by one counter for all file systems, under the locks of the change, once it was carried out; for a RENAME
    /// before that, with its [`crate::RenameIntent`]. Grows in the order in which changes with a common name or object are
    /// carried out, and so does their place in the log.
    pub number: u64,
    /// The file system, as in the keys of the cache.
    pub filesystem: u32,
    /// What each name that it changed leads to now, and led to before.
    pub entries: Bindings,
    /// The objects that it touched, as they are now: what it made, what it set attributes of, the directories of its
    /// names. Not what it removed.
    pub objects: Vec<Object>,
    /// The reply, and whose it is: opaque here.
    pub reply: Box<[u8]>,
}

/// RENAME changes two names.
pub type Bindings = SmallVec<[Binding; 2]>;

/// What a name leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Binding {
    /// The directory.
    pub dir: Identity,
    /// The name in it, 1 to 255 bytes.
    pub name: Name,
    /// What it led to before the change; `None`: there was no such name.
    pub was: Option<Identity>,
    /// What it leads to after the change; `None`: it is gone.
    pub now: Option<Identity>,
}

const WAS: u8 = 1;
const NOW: u8 = 2;

impl Operation {
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.number.to_le_bytes());
        out.extend_from_slice(&self.filesystem.to_le_bytes());
        out.push(self.entries.len() as u8);
        self.entries.iter().for_each(|entry| entry.encode(out));
        out.push(self.objects.len() as u8);
        self.objects.iter().for_each(|object| object.encode(out));
        out.extend_from_slice(&self.reply);
    }

    pub(crate) fn decode(input: &mut Reader<'_>) -> Option<Self> {
        let (number, filesystem) = (input.u64()?, input.u32()?);
        let count = input.u8()?;
        let entries = (0..count).map(|_| Binding::decode(input)).collect::<Option<_>>()?;
        let count = input.u8()?;
        let objects = (0..count).map(|_| Object::decode(input)).collect::<Option<_>>()?;
        let reply = std::mem::take(&mut input.0).into();
        Some(Operation { number, filesystem, entries, objects, reply })
    }
}

impl Binding {
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        put_identity(&self.dir, out);
        put_name(&self.name, out);
        out.push(self.was.map_or(0, |_| WAS) | self.now.map_or(0, |_| NOW));
        [self.was, self.now].iter().flatten().for_each(|object| put_identity(object, out));
    }

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
