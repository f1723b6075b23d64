use super::*;
use crate::identity::IDENTITY_MAX;
use crate::object::{Attributes, Kind, LoggedObject, New, Time};
use crate::operation::{Binding, Bindings};
use crate::{Access, Flags, Given, RECORD_MAX, RenameIntent};

fn identity(len: u8) -> Identity {
    let mut bytes = [0; IDENTITY_MAX];
    bytes[..usize::from(len)].fill(len);
    Identity { kind: -1, len, bytes }
}

fn long() -> Name {
    SmallVec::from_elem(b'n', 255)
}

/// Returns the longest possible change.
fn largest() -> Record {
    let made = Some(Rights { mode: 0o7777, uid: u32::MAX, gid: 7 });
    let entry = |object, made| Entry { dir: identity(40), name: long(), object, made };
    let entries = Entries::from_iter([entry(Some(identity(40)), made), entry(Some(identity(8)), None)]);
    let answer = vec![9; 1000].into();
    Record::Change(Box::new(Change { number: 1 << 40, confirmed: 3, filesystem: 5, entries, answer }))
}

fn object(len: u8, kind: Kind, new: Option<New>) -> LoggedObject {
    let atime = Time { sec: i64::MIN, nsec: 999_999_999 };
    let mtime = Time { sec: 1 << 33, nsec: 0 };
    let attributes = Attributes { kind, mode: 0o7777, uid: u32::MAX, gid: 7, atime, mtime };
    LoggedObject { identity: identity(len), attributes, new, access: Access::Set }
}

fn operation(entries: impl IntoIterator<Item = Binding>, objects: Vec<LoggedObject>) -> Record {
    let entries = entries.into_iter().collect::<Bindings>();
    Record::Operation(Box::new(Operation {
        number: 1 << 50,
        filesystem: 3,
        entries,
        objects,
        reply: [7; 20].into(),
    }))
}

/// Returns a RENAME with the longest names and identities, and with the largest reply.
fn largest_rename() -> Record {
    let entry = |was, now| Binding { dir: identity(40), name: long(), was, now };
    let entries = [entry(Some(identity(40)), None), entry(Some(identity(39)), Some(identity(40)))];
    let objects = vec![object(40, Kind::Directory, None), object(40, Kind::Directory, None)];
    let Record::Operation(rename) = operation(entries, objects) else { unreachable!() };
    Record::Operation(Box::new(Operation { reply: vec![9; 1000].into(), ..*rename }))
}

fn records() -> Vec<Record> {
    let gone = Entry { dir: identity(8), name: SmallVec::from_slice(b"x"), object: None, made: None };
    let entries = Entries::from_iter([gone]);
    let made = |now| Binding { dir: identity(8), name: SmallVec::from_slice(b"y"), was: None, now };
    let answer = Box::default();
    let flags = Flags { extended: 1 << 30, extent: 4096, shared_extent: 8192, project: 7, inode: 0x40 };
    let given = |flags: Option<Flags>| {
        let xattrs =
            vec![(SmallVec::from_slice(b"security.label"), [3; 40].into()), (long(), Box::default())];
        let given = Given { acl: flags.map(|_| [9; 44].into()), xattrs, flags };
        let access = Access::Given(Box::new(given));
        LoggedObject { access, ..object(8, Kind::File, Some(New::Plain)) }
    };
    vec![
        largest(),
        Record::Change(Box::new(Change { number: 1, confirmed: 0, filesystem: 0, entries, answer })),
        Record::Settled { upto: 7, void: vec![1, 5] },
        Record::Settled { upto: 7, void: Vec::new() },
        Record::Checkpoint { filesystem: 2, upto: 1 << 60 },
        Record::State { number: 1 << 40, bytes: [7; crate::STATE_MAX].into() },
        Record::Forgotten { upto: 1 << 40 },
        largest_rename(),
        operation([], vec![object(8, Kind::File, None)]),
        operation([made(Some(identity(8)))], vec![object(8, Kind::Fifo, Some(New::Plain))]),
        operation([made(Some(identity(9)))], vec![object(9, Kind::Block, Some(New::Device(7, u32::MAX)))]),
        operation([], vec![LoggedObject { access: Access::Kept, ..object(8, Kind::Directory, None) }]),
        operation([made(Some(identity(8)))], vec![given(None)]),
        operation([made(Some(identity(8)))], vec![given(Some(flags))]),
        operation([made(None)], vec![object(9, Kind::Symlink, Some(New::Link(Box::from(*b"to/it"))))]),
    ]
}

#[test]
fn records_are_read_as_they_were_written() {
    for record in records() {
        let bytes = record.encode();
        assert!(bytes.len() <= RECORD_MAX);
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
                assert!(read.is_none_or(|read| read != record && read.encode() == changed), "one encoding");
            }
        }
    }
    assert_eq!(Record::decode(&[7, 0, 0, 0, 0, 0, 0, 0, 0]), None);
    assert_eq!(Record::decode(&[5, 0, 0, 0, 0, 0, 0, 0]), None);
}

#[test]
fn intents_are_read_as_they_were_written() {
    for dirs in [[identity(40), identity(12)], [identity(8), identity(8)]] {
        let intent = RenameIntent { log: 5, number: 1 << 40, filesystem: 9, dirs };
        let bytes = intent.encode();
        assert!(bytes.len() <= 110);
        assert_eq!(RenameIntent::decode(&bytes), Some(intent.clone()));
        for len in 0..bytes.len() {
            assert_eq!(RenameIntent::decode(&bytes[..len]), None);
        }
        for bit in 0..8 * bytes.len() {
            let mut changed = bytes.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            let read = RenameIntent::decode(&changed);
            assert!(read.is_none_or(|read| read != intent && read.encode() == changed), "one encoding");
        }
    }
}

/// The first version of an intent, with names and objects.
#[test]
fn intents_of_the_first_version_are_read() {
    let head = [&[1, 5, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0][..]];
    let part =
        |object: u8, name: &'static [u8]| [&[1, 0, 1][..], &[object], &[name.len() as u8], name].concat();
    let object = |object: u8| vec![1, 0, 1, object];
    let dir = |byte: u8| {
        let mut bytes = [0; IDENTITY_MAX];
        bytes[0] = byte;
        Identity { kind: 1, len: 1, bytes }
    };
    let intent = RenameIntent { log: 5, number: 7, filesystem: 9, dirs: [dir(2), dir(3)] };
    let moved = [head.concat(), part(2, b"from"), part(3, b"to"), object(4)].concat();
    assert_eq!(RenameIntent::decode(&moved), Some(intent.clone()));
    assert_eq!(RenameIntent::decode(&[&moved[..], &object(5)].concat()), Some(intent));
    assert_eq!(RenameIntent::decode(&moved[..moved.len() - 1]), None);
}
