//! Decides which changes in the log happened.
//!
//! | a change | and | then |
//! |---|---|---|
//! | was declared invalid by an earlier recovery | | it did not happen |
//! | was known to be durable, or is settled | | it happened |
//! | else | each name leads where the change says, and its inodes are as it says | it happened |
//! | else | a later change that happened has changed those names that lead elsewhere | it happened (1) |
//! | else | an earlier change of one of its names did not happen | nor did this one, whatever it looks like |
//! | else | | it did not happen, or only in part (2) |
//! | of attributes only | not known to be durable | invalid: a repetition does no harm |
//!
//! (1) Changes of one name keep their order. (2) The change is invalid, and is carried out again if the client asks
//! again.
//!
//! The table holds for changes that the file system itself makes durable, inode by inode. The changes that the log
//! makes durable have happened: [`reconcile`] sees to that.
//!
//! Changes without a record may have happened as well ([`cut_short`](super::cut_short)).
//!
//! Only the last few changes before a crash are examined. The decisions are logged before any client is answered, and
//! the file systems are synced. So a change that happened stays so.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::io;
use std::sync::Arc;

use forebay_engine::{USER_RECORD_MAX, UserRecord};
use forebay_oplog::{
    Binding, Change, Entry, Found, Object as LoggedObject, Operation, Record, SetAside, Tree as _, reconcile,
};
use forebay_runtime::block_on;

use super::cut_short::{answered, carried_out, leads_to};
use super::files::Files;
use super::rename_intents;
use crate::backing::{Logged, Store};
use crate::caches::inode::Inode;
use crate::caches::link::key;
use crate::durability::request_journal::{CutShort, RequestJournal};
use crate::error::Error;
use crate::export::cache::Cache;
use crate::export::filesystem::Filesystem;
use crate::sys::{KernelHandle, proc_path};

/// Numbers in one record.
const VOID: usize = (USER_RECORD_MAX - 9) / 8;

pub(super) type Filesystems = [(u32, Arc<Filesystem>)];
pub(super) type Name = (u32, KernelHandle, smallvec::SmallVec<[u8; 32]>);

/// The result of recovering the operations of the log: the file systems are as the log says.
pub struct Recovery {
    found: Found,
    log: u64,
    pub(crate) under_way: Arc<RequestJournal>,
    /// The changes that a killed server may have carried out without a record.
    cut_short: Vec<CutShort>,
    /// The highest number in the log and in the slots.
    last: u64,
    /// File systems that were given up. The log's operations for them are set aside.
    given_up: Vec<u32>,
    /// The files in the way of names in the log, which now have other names: one sentence each.
    pub set_aside: Vec<String>,
}

/// Makes the file systems equal to the log with this identity, durably. Nobody may look at them yet, not even the
/// cache.
pub(crate) fn recover(
    (under_way, cut_short): (Arc<RequestJournal>, Vec<CutShort>),
    log: u64,
    notes: &[UserRecord],
    store: &Store,
) -> io::Result<Recovery> {
    let filesystems = store.filesystems();
    let mut found = read(notes)?;
    let given_up = give_up(&mut found, store)?;
    for (number, fs) in filesystems {
        if let Some(upto) = rename_intents::lost_after(&fs.aliases, log, *number).map_err(io::Error::other)? {
            found.reached(*number, upto);
        }
    }
    let ours = |number: &u32| filesystems.iter().any(|(id, _)| id == number);
    let unserved = |number: &u32| {
        let (operations, upto) = found.of(*number);
        !ours(number) && operations.iter().any(|operation| operation.number > upto)
    };
    if found.operations.keys().any(unserved) {
        let why = "the cache's log has changes of a directory that is not served now; serve it again, with the same id";
        return Err(io::Error::new(io::ErrorKind::InvalidData, why));
    }
    let mut last = found.last();
    let mut set_aside = Vec::new();
    for (number, fs) in filesystems {
        let (operations, upto) = found.of(*number);
        let mut files = Files::new(fs, log);
        let intents = files.intents().map_err(io::Error::other)?;
        last = intents.iter().map(|intent| intent.number).fold(last, u64::max);
        if intents.is_empty() && operations.iter().all(|operation| operation.number <= upto) {
            continue;
        }
        let outcome = reconcile(&mut files, operations, upto).map_err(io::Error::other)?;
        set_aside.extend(outcome.set_aside.iter().map(|aside| told(fs, aside)));
    }
    Ok(Recovery { found, log, under_way, cut_short, last, given_up, set_aside })
}

/// Sets aside the log's operations for file systems that were given up. Returns their numbers.
fn give_up(found: &mut Found, store: &Store) -> io::Result<Vec<u32>> {
    let given_up: Vec<u32> =
        found.operations.keys().copied().filter(|number| store.is_given_up(*number)).collect();
    for number in &given_up {
        let (operations, upto) = found.of(*number);
        let left = operations.iter().filter(|operation| operation.number > upto);
        let lines: String = left.map(described).collect();
        let last = operations.last().map_or(0, |operation| operation.number);
        if !lines.is_empty() {
            store.keep_changes(*number, &lines)?;
        }
        found.reached(*number, last);
    }
    Ok(given_up)
}

/// Returns the effects of a change for people: a line for each name, and for each inode.
fn described(operation: &Operation) -> String {
    let object =
        |object: Option<KernelHandle>| object.map_or("nothing".to_owned(), |object| object.to_name());
    let name = |entry: &Binding| {
        let (dir, name) = (entry.dir.to_name(), entry.name.escape_ascii());
        format!(
            "{}: {name} in {dir} led to {} and leads to {}\n",
            operation.number,
            object(entry.was),
            object(entry.now)
        )
    };
    let touched = |object: &LoggedObject| {
        let LoggedObject { identity, attributes, new, .. } = object;
        let made = if new.is_some() { "made" } else { "changed" };
        format!("{}: {} {made}: {attributes:?} {new:?}\n", operation.number, identity.to_name())
    };
    operation.entries.iter().map(name).chain(operation.objects.iter().map(touched)).collect()
}

impl Recovery {
    /// Returns the facts that the log and a killed server have about inodes that may not exist any more.
    pub(crate) fn logged(&self) -> Logged {
        let mut logged = Logged::default();
        let mut led_to = HashMap::<Name, KernelHandle>::new();
        let changes = self.found.changes.values().filter(|change| !self.found.void.contains(&change.number));
        for change in changes {
            for entry in &change.entries {
                let name = (change.filesystem, entry.dir, entry.name.clone());
                let before = match entry.object {
                    Some(object) => {
                        let place = (entry.dir, Box::from(&entry.name[..]));
                        logged.names.insert(key(change.filesystem, &object), place);
                        led_to.insert(name, object)
                    }
                    None => led_to.remove(&name),
                };
                let moved =
                    |object: &KernelHandle| change.entries.iter().any(|it| it.object == Some(*object));
                logged.removed.extend(before.filter(|it| !moved(it)).map(|it| key(change.filesystem, &it)));
            }
        }
        let cut_short = self.cut_short.iter().map(|it| &it.operation);
        for operation in self.found.operations.values().flatten().chain(cut_short) {
            let moved = |object: &KernelHandle| operation.entries.iter().any(|it| it.now == Some(*object));
            for entry in &operation.entries {
                let removed = entry.was.filter(|was| !moved(was));
                logged.removed.extend(removed.map(|was| key(operation.filesystem, &was)));
                if let Some(now) = entry.now {
                    let place = (entry.dir, Box::from(&entry.name[..]));
                    logged.names.insert(key(operation.filesystem, &now), place);
                }
            }
        }
        logged
    }
}

fn told(fs: &Filesystem, SetAside { dir, name, .. }: &SetAside) -> String {
    let path = |dir: &Inode| {
        let mut buffer = [0; 32];
        rustix::fs::readlink(proc_path(&mut buffer, dir.path()), Vec::new()).ok()
    };
    let dir = fs.resolve(dir, true).ok().and_then(|dir| path(&dir));
    let dir = dir
        .map_or_else(|| "a directory".into(), |path| String::from_utf8_lossy(path.to_bytes()).into_owned());
    format!(
        "{dir}/{}: what has this name now was in the way of a client's file, and is kept under this name",
        name.escape_ascii()
    )
}

/// Decides about the changes in the log whose result is not known yet, and logs the decisions. Returns the answers of
/// all changes in it that happened, oldest first.
pub(crate) fn settle(
    cache: &Cache,
    recovery: Recovery,
    filesystems: &Filesystems,
) -> io::Result<Vec<Box<[u8]>>> {
    let Recovery { mut found, log, under_way, cut_short, mut last, given_up, .. } = recovery;
    let failed = |error: forebay_engine::Error| io::Error::other(error.to_string());
    let unsettled = found.changes.last_key_value().map_or(0, |(number, _)| *number);
    let carried_out =
        carried_out(&found, &cut_short, |filesystem, name| leads_to(filesystems, filesystem, name));
    let (begun, unlogged): (Vec<_>, Vec<_>) = carried_out.into_iter().partition(CutShort::is_in_several);
    for it in &begun {
        let made =
            it.operation.entries.first().map(|name| leads_to(filesystems, it.operation.filesystem, name));
        if let Some(Ok(Some(object))) = made {
            cache.begun.keep(it, object);
        }
    }
    if unsettled > found.settled || !unlogged.is_empty() {
        let void = decide(&found, |name, entry| leads_where_it_says(filesystems, name, entry));
        let touched = found.changes.range(found.settled + 1..).map(|(_, change)| change.filesystem);
        let touched = touched.chain(unlogged.iter().map(|it| it.operation.filesystem));
        sync(filesystems, touched.collect()).map_err(|error| io::Error::other(error.to_string()))?;
        for it in unlogged {
            last += 1;
            let change = answered(last, it.operation);
            note(cache, &Record::Change(Box::new(change.clone()))).map_err(failed)?;
            found.changes.insert(last, change);
        }
        declare(cache, last, &void).map_err(failed)?;
        found.void.extend(void);
    }
    under_way.clear()?;
    cache.oplog.settled(log, last);
    for filesystem in given_up {
        note(cache, &Record::Checkpoint { filesystem, upto: last }).map_err(failed)?;
    }
    for (number, fs) in filesystems {
        if found.operations.contains_key(number)
            || fs.private_if_there().is_ok_and(|private| private.is_some())
        {
            note(cache, &Record::Checkpoint { filesystem: *number, upto: last }).map_err(failed)?;
            // The intents in the slots are out of date now.
            rename_intents::clear(&fs.aliases).map_err(|error| io::Error::other(error.to_string()))?;
        }
        for (outer, _) in fs.aliases.all() {
            if fs.is_gone(&outer) {
                fs.aliases.remove(&outer).map_err(|error| io::Error::other(error.to_string()))?;
            }
        }
        // This also covers slots that the stop before this start emptied. A slot that a power cut brings back would
        // prove a change that got a lower number since.
        fs.journal.barrier().map_err(|error| io::Error::other(error.to_string()))?;
        if let Some(linked) = fs.linked() {
            linked.logging.reached(last);
        }
    }
    Ok(found.replies().collect())
}

fn read(notes: &[UserRecord]) -> io::Result<Found> {
    Found::read(notes.iter().map(|note| &*note.bytes)).ok_or_else(|| {
        let why = "the cache's log has a record of a change that this version of Forebay does not know; use the version \
                   that wrote it";
        io::Error::new(io::ErrorKind::InvalidData, why)
    })
}

/// Returns the changes that are not settled and did not happen; see the table at the top of this file.
fn decide(found: &Found, mut looks_right: impl FnMut(&Name, &Entry) -> bool) -> BTreeSet<u64> {
    let mut proven = HashSet::<Name>::new();
    let mut void = BTreeSet::new();
    let open = || found.changes.range(found.settled + 1..).filter(|(number, _)| !found.void.contains(number));
    for (number, change) in open().rev() {
        let names: Vec<Name> = names(change).collect();
        let mut each = names.iter().zip(&change.entries);
        let happened =
            !names.is_empty() && each.all(|(name, entry)| proven.contains(name) || looks_right(name, entry));
        if happened {
            proven.extend(names);
        } else {
            void.insert(*number);
        }
    }
    let mut unchanged = HashSet::<Name>::new();
    for (number, change) in open() {
        if void.contains(number) || names(change).any(|name| unchanged.contains(&name)) {
            void.insert(*number);
            unchanged.extend(names(change));
        }
    }
    void
}

fn names(change: &Change) -> impl Iterator<Item = Name> {
    change.entries.iter().map(|entry| (change.filesystem, entry.dir, entry.name.clone()))
}

/// Returns true if a name leads where a change says, now.
fn leads_where_it_says(filesystems: &Filesystems, (number, dir, name): &Name, entry: &Entry) -> bool {
    let Some((_, fs)) = filesystems.iter().find(|(id, _)| id == number) else { return false };
    let found = fs.resolve(dir, true).and_then(|dir| fs.child(&dir, name, false));
    match (found, entry.object) {
        (Ok((object, attr)), Some(kernel)) => {
            let as_made =
                |made: super::Rights| (made.mode, made.uid, made.gid) == (attr.mode, attr.uid, attr.gid);
            object.kernel == kernel && entry.made.is_none_or(as_made)
        }
        (Err(Error::Os(rustix::io::Errno::NOENT)), None) => true,
        _ => false,
    }
}

fn sync(filesystems: &Filesystems, touched: HashSet<u32>) -> crate::error::Result<()> {
    let touched = filesystems.iter().filter(|(number, _)| touched.contains(number));
    touched.map(|(_, fs)| fs.journal.barrier()).fold(Ok(()), Result::and)
}

/// Logs the decisions, the last part of them last: a part without it decides nothing.
fn declare(cache: &Cache, last: u64, void: &BTreeSet<u64>) -> Result<(), forebay_engine::Error> {
    let void: Vec<_> = void.iter().copied().collect();
    let rest = void.chunks(VOID).skip(1).map(|void| Record::Settled { upto: 0, void: void.to_vec() });
    let first = void.iter().take(VOID).copied().collect();
    for record in rest.chain([Record::Settled { upto: last, void: first }]) {
        note(cache, &record)?;
    }
    Ok(())
}

/// Puts a record into the log, durably.
fn note(cache: &Cache, record: &Record) -> Result<(), forebay_engine::Error> {
    block_on(async {
        let (frame, _) = cache.engine.note(&record.encode()).await?;
        cache.engine.commit(frame).await
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::KERNEL_HANDLE_MAX;

    fn handle(n: u8) -> KernelHandle {
        KernelHandle { kind: 1, len: 1, bytes: [n; KERNEL_HANDLE_MAX] }
    }

    /// Returns changes 1, 2, ... of names in one directory; 0 is "gone".
    fn found(settled: u64, changes: &[&[(&str, u8)]]) -> Found {
        let change = |(number, entries): (u64, &&[(&str, u8)])| {
            let entry = |(name, object): &(&str, u8)| Entry {
                dir: handle(1),
                name: name.as_bytes().into(),
                object: (*object > 0).then(|| handle(*object)),
                made: None,
            };
            let entries = entries.iter().map(entry).collect();
            (number, Change { number, confirmed: 0, filesystem: 3, entries, answer: Box::default() })
        };
        Found { changes: (1..).zip(changes).map(change).collect(), settled, ..Found::default() }
    }

    /// Returns the changes that did not happen, given the names in the directory.
    fn void(found: &Found, there: &[(&str, u8)]) -> Vec<u64> {
        let void = decide(found, |(_, _, name), entry| {
            let object = there.iter().find(|(other, _)| other.as_bytes() == &name[..]);
            object.map(|(_, object)| handle(*object)) == entry.object
        });
        void.into_iter().collect()
    }

    #[test]
    fn what_is_settled_happened_whatever_is_there() {
        assert_eq!(void(&found(2, &[&[("a", 1)], &[("b", 2)]]), &[]), []);
    }

    #[test]
    fn a_creation_happened_if_its_very_object_is_there() {
        let created = found(0, &[&[("a", 1)]]);
        assert_eq!(void(&created, &[("a", 1)]), []);
        assert_eq!(void(&created, &[("a", 2)]), [1]);
        assert_eq!(void(&created, &[]), [1]);
    }

    #[test]
    fn a_removal_happened_if_nothing_is_there() {
        assert_eq!(void(&found(0, &[&[("a", 0)]]), &[]), []);
        assert_eq!(void(&found(0, &[&[("a", 0)]]), &[("a", 1)]), [1]);
    }

    #[test]
    fn a_rename_happened_if_both_names_say_so() {
        let renamed = found(0, &[&[("a", 0), ("b", 1)]]);
        assert_eq!(void(&renamed, &[("b", 1)]), []);
        assert_eq!(void(&renamed, &[("a", 1)]), [1]);
        assert_eq!(void(&renamed, &[("a", 2), ("b", 1)]), [1], "what is in the way may be another client's");
    }

    #[test]
    fn what_a_later_change_of_the_name_presupposes_happened() {
        let made_moved_removed = found(0, &[&[("a", 1)], &[("a", 0), ("b", 1)], &[("b", 0)]]);
        assert_eq!(void(&made_moved_removed, &[]), []);
        assert_eq!(void(&made_moved_removed, &[("b", 1)]), [3]);
        assert_eq!(
            void(&made_moved_removed, &[("a", 1)]),
            [2, 3],
            "without the rename there was nothing to remove"
        );
    }

    #[test]
    fn changes_of_other_names_prove_nothing() {
        assert_eq!(void(&found(0, &[&[("a", 1)], &[("b", 2)]]), &[("b", 2)]), [1]);
    }

    #[test]
    fn changes_of_attributes_are_void_unless_settled() {
        assert_eq!(void(&found(0, &[&[], &[("a", 1)]]), &[("a", 1)]), [1]);
    }

    #[test]
    fn what_was_void_stays_so() {
        let mut removed = found(0, &[&[("a", 0)]]);
        removed.void.insert(1);
        assert_eq!(void(&removed, &[]), []);
        let notes = [
            Record::Change(Box::new(removed.changes[&1].clone())),
            Record::Settled { upto: 9, void: vec![1] },
            Record::Change(Box::new(Change { number: 10, confirmed: 9, ..removed.changes[&1].clone() })),
        ];
        let notes: Vec<_> =
            (1..).zip(&notes).map(|(id, record)| UserRecord { id, bytes: record.encode().into() }).collect();
        let read = read(&notes).unwrap();
        assert_eq!((read.settled, read.void.contains(&1), read.changes.len()), (9, true, 2));
    }
}
