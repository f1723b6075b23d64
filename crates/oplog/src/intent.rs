//! What a RENAME is about to do, said in the backing file system before it does it.

use crate::Name;
use crate::codec::{Reader, put_identity, put_name};
use crate::identity::Identity;

const VERSION: u8 = 1;

/// A RENAME about to be carried out: the contents of a slot (see docs/metadata-log.md, "Intents"). To be written under
/// the locks of both directories. It proves that what was done before it is in the file system; recovery needs the number and
/// the two directories for that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Intent {
    /// The log that its record will be in: what other logs left in a slot says nothing.
    pub log: u64,
    /// The number that its record will have.
    pub number: u64,
    /// The file system, as in the keys of the cache.
    pub filesystem: u32,
    /// The directory and the name that it leaves.
    pub from: (Identity, Name),
    /// The directory and the name that it takes.
    pub to: (Identity, Name),
    /// What it moves.
    pub moved: Identity,
    /// What it replaces.
    pub replaced: Option<Identity>,
}

impl Intent {
    /// The contents of a slot. At most 700 bytes; about 100 on ext4 and XFS with short names.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(128);
        out.push(VERSION);
        out.extend_from_slice(&self.log.to_le_bytes());
        out.extend_from_slice(&self.number.to_le_bytes());
        out.extend_from_slice(&self.filesystem.to_le_bytes());
        for (dir, name) in [&self.from, &self.to] {
            put_identity(dir, &mut out);
            put_name(name, &mut out);
        }
        put_identity(&self.moved, &mut out);
        if let Some(replaced) = &self.replaced {
            put_identity(replaced, &mut out);
        }
        out
    }

    /// `None` if these bytes are no intent.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut input = Reader(bytes);
        if input.u8()? != VERSION {
            return None;
        }
        let (log, number, filesystem) = (input.u64()?, input.u64()?, input.u32()?);
        let from = (input.identity()?, input.name()?);
        let to = (input.identity()?, input.name()?);
        let moved = input.identity()?;
        let replaced = if input.0.is_empty() { None } else { Some(input.identity()?) };
        input.0.is_empty().then_some(Intent { log, number, filesystem, from, to, moved, replaced })
    }
}
