//! What changes leave in the cache's log, byte by byte: see docs/on-disk-format.md.

use smallvec::SmallVec;

use crate::sys::{KERNEL_HANDLE_MAX, KernelHandle};

const CHANGE: u8 = 1;
const SETTLED: u8 = 2;

/// One of the notes in the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Record {
    /// A change that was carried out, and what its client was to be told.
    Change(Box<Change>),
    /// All changes up to a number are in the backing file system, durably, but for those that never were and never will
    /// be.
    Settled {
        /// The last of them.
        upto: u64,
        /// Those that are not.
        void: Vec<u64>,
    },
}

/// A change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Change {
    /// Grows by one with every change, in the order in which those of one directory or object were carried out.
    pub(crate) number: u64,
    /// All changes up to this number are known to be durable.
    pub(crate) confirmed: u64,
    /// The file system, as in the keys of the cache.
    pub(crate) filesystem: u32,
    /// What the names it changed lead to.
    pub(crate) entries: Entries,
    /// The reply, and whose it is: not this crate's business.
    pub(crate) answer: Box<[u8]>,
}

/// RENAME changes two names.
pub(crate) type Entries = SmallVec<[Entry; 2]>;

/// A name and where it leads after a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// The directory.
    pub(crate) dir: KernelHandle,
    /// The name in it.
    pub(crate) name: SmallVec<[u8; 32]>,
    /// What it leads to; `None`: it is gone.
    pub(crate) object: Option<KernelHandle>,
    /// Of an object made by the change: what it was to be.
    pub(crate) made: Option<Rights>,
}

/// Who may do what with an object that was made. That takes more than one call, and a crash may come in between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rights {
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

impl Record {
    pub(crate) fn encode(&self) -> Vec<u8> {
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
        }
        out
    }

    /// `None` if these bytes are no record.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut input = Reader(bytes);
        let [kind] = input.array()?;
        match kind {
            CHANGE => {
                let (number, confirmed) = (input.u64()?, input.u64()?);
                let filesystem = input.u32()?;
                let [count] = input.array()?;
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
            _ => None,
        }
    }
}

fn encode_entry(entry: &Entry, out: &mut Vec<u8>) {
    encode_handle(&entry.dir, out);
    // At most 255 bytes long.
    out.push(entry.name.len() as u8);
    out.extend_from_slice(&entry.name);
    out.push(u8::from(entry.object.is_some()) + u8::from(entry.made.is_some()));
    if let Some(object) = &entry.object {
        encode_handle(object, out);
    }
    if let Some(Rights { mode, uid, gid }) = entry.made {
        [mode, uid, gid].iter().for_each(|field| out.extend_from_slice(&field.to_le_bytes()));
    }
}

fn decode_entry(input: &mut Reader<'_>) -> Option<Entry> {
    let dir = decode_handle(input)?;
    let [len] = input.array()?;
    let name = input.bytes(usize::from(len))?.into();
    let [flags] = input.array()?;
    let object = if flags > 0 { Some(decode_handle(input)?) } else { None };
    let made = match flags {
        0 | 1 => None,
        2 => Some(Rights { mode: input.u32()?, uid: input.u32()?, gid: input.u32()? }),
        _ => return None,
    };
    Some(Entry { dir, name, object, made })
}

fn encode_handle(handle: &KernelHandle, out: &mut Vec<u8>) {
    out.extend_from_slice(&(handle.kind as i16).to_le_bytes());
    out.push(handle.len);
    out.extend_from_slice(handle.as_slice());
}

fn decode_handle(input: &mut Reader<'_>) -> Option<KernelHandle> {
    let kind = i16::from_le_bytes(input.array()?).into();
    let [len] = input.array()?;
    let mut bytes = [0; KERNEL_HANDLE_MAX];
    bytes.get_mut(..usize::from(len))?.copy_from_slice(input.bytes(usize::from(len))?);
    Some(KernelHandle { kind, len, bytes })
}

/// Bytes not read yet.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn bytes(&mut self, len: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(bytes)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (array, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*array)
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn handle(len: u8) -> KernelHandle {
        let mut bytes = [0; KERNEL_HANDLE_MAX];
        bytes[..usize::from(len)].fill(len);
        KernelHandle { kind: -1, len, bytes }
    }

    /// As long as a change can be.
    fn largest() -> Record {
        let made = Some(Rights { mode: 0o7777, uid: u32::MAX, gid: 7 });
        let name = SmallVec::from_elem(b'n', 255);
        let entry = |object, made| Entry { dir: handle(40), name: name.clone(), object, made };
        let entries = Entries::from_iter([entry(Some(handle(40)), made), entry(Some(handle(8)), None)]);
        let answer = vec![9; 1000].into();
        Record::Change(Box::new(Change { number: 1 << 40, confirmed: 3, filesystem: 5, entries, answer }))
    }

    fn records() -> [Record; 4] {
        let gone = Entry { dir: handle(8), name: SmallVec::from_slice(b"x"), object: None, made: None };
        let entries = Entries::from_iter([gone]);
        [
            largest(),
            Record::Change(Box::new(Change {
                number: 1,
                confirmed: 0,
                filesystem: 0,
                entries,
                answer: Box::default(),
            })),
            Record::Settled { upto: 7, void: vec![1, 5] },
            Record::Settled { upto: 7, void: Vec::new() },
        ]
    }

    #[test]
    fn records_are_read_as_they_were_written() {
        for record in records() {
            let bytes = record.encode();
            assert!(bytes.len() <= forebay_engine::NOTE_MAX);
            assert_eq!(Record::decode(&bytes), Some(record));
        }
    }

    #[test]
    fn what_is_cut_short_is_no_record_and_nothing_panics() {
        for record in records() {
            let bytes = record.encode();
            for len in 0..bytes.len() {
                assert_ne!(Record::decode(&bytes[..len]), Some(record.clone()));
            }
            for at in 0..bytes.len() {
                for bit in 0..8 {
                    let mut changed = bytes.clone();
                    changed[at] ^= 1 << bit;
                    let read = Record::decode(&changed);
                    assert!(
                        read.is_none_or(|read| read != record && read.encode() == changed),
                        "one encoding"
                    );
                }
            }
        }
        assert_eq!(Record::decode(&[3, 0, 0, 0, 0, 0, 0, 0, 0]), None);
    }
}
