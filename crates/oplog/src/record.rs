//! The encoding of the user records in the cache's log: see docs/on-disk-format.md.

use smallvec::SmallVec;

use crate::Name;
use crate::codec::{Reader, put_identity, put_name};
use crate::identity::Identity;
use crate::operation::Operation;

const CHANGE: u8 = 1;
const SETTLED: u8 = 2;
const OPERATION: u8 = 3;
const CHECKPOINT: u8 = 4;
const STATE: u8 = 5;
const FORGOTTEN: u8 = 6;

/// A user record of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// A change that the backing file system made durable before the reply left, and that reply.
    Change(Box<Change>),
    /// All changes up to a number are durable in the backing file system, except the changes that never happened and
    /// never will.
    Settled {
        /// The highest settled number.
        upto: u64,
        /// The numbers of the changes that never happened.
        void: Vec<u64>,
    },
    /// A change that the log makes durable.
    Operation(Box<Operation>),
    /// All operations up to a number on a file system are durable in the backing file system.
    Checkpoint {
        /// The file system, as in the keys of the cache.
        filesystem: u32,
        /// The highest number that is durable.
        upto: u64,
    },
    /// A change of the state of the server's clients: their sessions, opens and locks.
    State {
        /// The number of the change, from the counter of all changes.
        number: u64,
        /// The change, opaque to this crate. At most [`STATE_MAX`] bytes.
        bytes: Box<[u8]>,
    },
    /// The replies, and the changes of clients' state, count no more up to a number: another server, or this one
    /// without the log, served the clients meanwhile.
    Forgotten {
        /// The highest number that does not count.
        upto: u64,
    },
}

/// The most bytes of a change of clients' state in one record.
pub const STATE_MAX: usize = crate::RECORD_MAX - 9;

/// A change that the backing file system itself makes durable. Its record holds the reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The number of the change. It grows by one with every change, in the order in which the changes of a directory or
    /// object are carried out.
    pub number: u64,
    /// All changes up to this number are known to be durable.
    pub confirmed: u64,
    /// The file system, as in the keys of the cache.
    pub filesystem: u32,
    /// The names that the change modified, and the objects that they lead to.
    pub entries: Entries,
    /// The reply and its client, opaque to this crate.
    pub answer: Box<[u8]>,
}

/// The names that a change modified. RENAME modifies two.
pub type Entries = SmallVec<[Entry; 2]>;

/// A name, and the object that it leads to after a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The directory.
    pub dir: Identity,
    /// The name in it.
    pub name: Name,
    /// The object that the name leads to; `None` if the name is removed.
    pub object: Option<Identity>,
    /// The intended access rights, if the change made the object.
    pub made: Option<Rights>,
}

/// The intended access rights to a new object. Its creation takes more than one call, and a crash may come in between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rights {
    /// Permission bits, low 12 bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
}

impl Record {
    /// Returns the bytes of the user record.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(512);
        match self {
            Record::Change(change) => {
                out.push(CHANGE);
                out.extend_from_slice(&change.number.to_le_bytes());
                out.extend_from_slice(&change.confirmed.to_le_bytes());
                out.extend_from_slice(&change.filesystem.to_le_bytes());
                out.push(change.entries.len() as u8);
                change.entries.iter().for_each(|entry| encode_entry(entry, &mut out));
                out.extend_from_slice(&change.answer);
            }
            Record::Settled { upto, void } => {
                out.push(SETTLED);
                out.extend_from_slice(&upto.to_le_bytes());
                void.iter().for_each(|number| out.extend_from_slice(&number.to_le_bytes()));
            }
            Record::Operation(operation) => {
                out.push(OPERATION);
                operation.encode(&mut out);
            }
            Record::Checkpoint { filesystem, upto } => {
                out.push(CHECKPOINT);
                out.extend_from_slice(&filesystem.to_le_bytes());
                out.extend_from_slice(&upto.to_le_bytes());
            }
            Record::State { number, bytes } => {
                out.push(STATE);
                out.extend_from_slice(&number.to_le_bytes());
                out.extend_from_slice(bytes);
            }
            Record::Forgotten { upto } => {
                out.push(FORGOTTEN);
                out.extend_from_slice(&upto.to_le_bytes());
            }
        }
        out
    }

    /// Decodes a user record. Returns `None` if these bytes are no record.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut input = Reader(bytes);
        match input.u8()? {
            CHANGE => {
                let (number, confirmed) = (input.u64()?, input.u64()?);
                let filesystem = input.u32()?;
                let count = input.u8()?;
                let entries = (0..count).map(|_| decode_entry(&mut input)).collect::<Option<_>>()?;
                let answer = input.0.into();
                Some(Record::Change(Box::new(Change { number, confirmed, filesystem, entries, answer })))
            }
            SETTLED => {
                let upto = input.u64()?;
                let (void, rest) = input.0.as_chunks::<8>();
                let void = void.iter().map(|number| u64::from_le_bytes(*number)).collect();
                rest.is_empty().then_some(Record::Settled { upto, void })
            }
            OPERATION => Operation::decode(&mut input).map(|it| Record::Operation(Box::new(it))),
            CHECKPOINT => {
                let (filesystem, upto) = (input.u32()?, input.u64()?);
                input.0.is_empty().then_some(Record::Checkpoint { filesystem, upto })
            }
            STATE => Some(Record::State { number: input.u64()?, bytes: input.0.into() }),
            FORGOTTEN => {
                let upto = input.u64()?;
                input.0.is_empty().then_some(Record::Forgotten { upto })
            }
            _ => None,
        }
    }
}

/// Appends an entry of a request in progress.
fn encode_entry(entry: &Entry, out: &mut Vec<u8>) {
    put_identity(&entry.dir, out);
    put_name(&entry.name, out);
    out.push(u8::from(entry.object.is_some()) + u8::from(entry.made.is_some()));
    if let Some(object) = &entry.object {
        put_identity(object, out);
    }
    if let Some(Rights { mode, uid, gid }) = entry.made {
        [mode, uid, gid].iter().for_each(|field| out.extend_from_slice(&field.to_le_bytes()));
    }
}

/// Takes an entry of a request in progress; `None` if the bytes are none.
fn decode_entry(input: &mut Reader<'_>) -> Option<Entry> {
    let (dir, name, flags) = (input.identity()?, input.name()?, input.u8()?);
    let object = if flags > 0 { Some(input.identity()?) } else { None };
    let made = match flags {
        0 | 1 => None,
        2 => Some(Rights { mode: input.u32()?, uid: input.u32()?, gid: input.u32()? }),
        _ => return None,
    };
    Some(Entry { dir, name, object, made })
}

#[cfg(test)]
mod tests;
