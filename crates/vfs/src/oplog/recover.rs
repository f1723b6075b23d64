//! A start: real file systems become equal to the log, and the log goes on.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use forebay_engine::UserRecord;
use forebay_metalog::{CutShort, Start};
use forebay_oplog::{Binding, LoggedObject, Name, Operation, Rights, SetAside};
use forebay_runtime::block_on;
use rustix::io::Errno;

use super::files::Files;
use super::rename_intents;
use crate::backing::{Logged, Store};
use crate::caches::inode::Inode;
use crate::caches::link::key;
use crate::durability::request_journal::RequestJournal;
use crate::error::{Error, Result};
use crate::export::cache::Cache;
use crate::export::filesystem::Filesystem;
use crate::sys::{KernelHandle, proc_path};

/// The result of recovering the operations of the log: the file systems are as the log says.
pub struct Recovery {
    recovery: forebay_metalog::Recovery,
    pub(crate) under_way: Arc<RequestJournal>,
    /// The files in the way of names in the log, which now have other names: one sentence each.
    pub set_aside: Vec<String>,
    /// True if the log lacks changes of clients' state, because clients were served without it.
    pub(crate) state_is_lost: bool,
}

/// The log that a pool has.
#[derive(Clone, Copy)]
pub(crate) struct FoundLog<'a> {
    /// The number that distinguishes the log from other logs.
    pub(crate) identity: u64,
    pub(crate) notes: &'a [UserRecord],
    /// True if the file systems were served without this log since it was last in use.
    pub(crate) is_outdated: bool,
}

impl FoundLog<'_> {
    /// Reads the records. Also returns whether some file system has changes behind the loss of this log.
    fn read(&self, store: &Store, cut_short: Vec<CutShort>) -> io::Result<(forebay_metalog::Recovery, bool)> {
        let notes = self.notes.iter().map(|note| &*note.bytes);
        let mut recovery =
            forebay_metalog::Recovery::read(self.identity, notes, cut_short).ok_or_else(|| {
                invalid(
                    "the cache's log has a record of a change that this version of Forebay does not know; use the \
                     version that wrote it",
                )
            })?;
        let mut was_lost = false;
        for (number, fs) in store.filesystems() {
            let upto = rename_intents::lost_after(&fs.aliases, self.identity, *number);
            if let Some(upto) = upto.map_err(io::Error::other)? {
                recovery.reached(*number, upto);
                was_lost = true;
            }
        }
        Ok((recovery, was_lost))
    }

    /// Returns true if some file system may lack operations of the log.
    pub(crate) fn has_operations(&self, store: &Store) -> io::Result<bool> {
        self.read(store, Vec::new()).map(|(recovery, _)| recovery.has_operations())
    }
}

fn invalid(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

/// Makes the file systems equal to the log, durably. Nobody may look at them yet, not even the cache. `cut_short` lists
/// the requests that the former server had begun and not ended. `under_way` is their journal, which is empty once the
/// result is in service.
///
/// The log must have no operations that a file system lacks if the log is out of date. Its records of clients do not
/// count then: since then others may have got their locks, and carried out their requests.
pub(crate) fn recover(
    under_way: Arc<RequestJournal>,
    cut_short: Vec<CutShort>,
    log: FoundLog<'_>,
    store: &Store,
) -> io::Result<Recovery> {
    let filesystems = store.filesystems();
    // Another server may have carried out the requests of a killed one since.
    let cut_short = if log.is_outdated { Vec::new() } else { cut_short };
    let (mut recovery, was_lost) = log.read(store, cut_short)?;
    give_up(&mut recovery, store)?;
    let state_is_lost = log.is_outdated || was_lost;
    if state_is_lost {
        recovery.forget_clients();
    }
    let served: Vec<u32> = filesystems.iter().map(|(number, _)| *number).collect();
    if recovery.has_unserved(&served) {
        return Err(invalid(
            "the cache's log has changes of a directory that is not served now; serve it again, with the same id",
        ));
    }
    let mut set_aside = Vec::new();
    for (number, fs) in filesystems {
        let outcome =
            recovery.reconcile(*number, &mut Files::new(fs, log.identity)).map_err(io::Error::other)?;
        set_aside.extend(outcome.iter().flat_map(|outcome| &outcome.set_aside).map(|aside| told(fs, aside)));
    }
    Ok(Recovery { recovery, under_way, set_aside, state_is_lost })
}

/// Sets aside the log's operations for file systems that were given up.
fn give_up(recovery: &mut forebay_metalog::Recovery, store: &Store) -> io::Result<()> {
    let given_up = recovery.found().operations.keys().copied().filter(|number| store.is_given_up(*number));
    for number in given_up.collect::<Vec<_>>() {
        let lines: String = recovery.behind(number).map(described).collect();
        if !lines.is_empty() {
            store.keep_changes(number, &lines)?;
        }
        recovery.give_up(number);
    }
    Ok(())
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
        let found = self.recovery.found();
        let mut logged = Logged::default();
        let mut led_to = HashMap::<(u32, KernelHandle, Name), KernelHandle>::new();
        let changes = found.changes.values().filter(|change| !found.void.contains(&change.number));
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
        let cut_short = self.recovery.cut_short().iter().map(|it| &it.operation);
        for operation in found.operations.values().flatten().chain(cut_short) {
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

/// Describes a file that recovery has set aside, for people.
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

/// A file system that is equal to the log.
struct Recovered<'a>(&'a Filesystem);

impl Start for Recovered<'_> {
    type Error = Error;

    fn leads_to(&mut self, dir: KernelHandle, name: &[u8]) -> Result<Option<(KernelHandle, Rights)>> {
        match self.0.resolve(&dir, true).and_then(|dir| self.0.child(&dir, name, false)) {
            Ok((object, attr)) => {
                Ok(Some((object.kernel, Rights { mode: attr.mode, uid: attr.uid, gid: attr.gid })))
            }
            Err(Error::Os(Errno::NOENT)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn has_own_files(&mut self) -> bool {
        self.0.private_if_there().is_ok_and(|private| private.is_some())
    }

    fn clear_slots(&mut self) -> Result<()> {
        rename_intents::clear(&self.0.aliases)
    }

    fn clear_aliases(&mut self) -> Result<()> {
        let aliases = &self.0.aliases;
        let mut gone =
            aliases.all().into_iter().map(|(outer, _)| outer).filter(|outer| self.0.is_gone(outer));
        gone.try_for_each(|outer| aliases.remove(&outer))?;
        aliases.keep_spent()
    }

    async fn barrier(&mut self) -> Result<()> {
        self.0.journal.barrier()
    }
}

/// Decides about the changes in the log whose result is not known yet, starts the checkpoints, and logs the decisions.
/// Returns the answers of all changes in it that happened, oldest first.
pub(crate) fn conclude(
    cache: &Cache,
    recovery: Recovery,
    filesystems: &[(u32, Arc<Filesystem>)],
) -> io::Result<Vec<Box<[u8]>>> {
    let Recovery { mut recovery, under_way, .. } = recovery;
    let mut files: Vec<_> = filesystems.iter().map(|(number, fs)| (*number, Recovered(fs))).collect();
    let failed = |error: forebay_metalog::StartError<Error>| io::Error::other(error.to_string());
    let (oplog, checkpoints) = (&cache.oplog, &cache.checkpoints.shared);
    let begun = block_on(recovery.decide(&mut files)).map_err(failed)?;
    checkpoints.keep_recovered(recovery.replies());
    // The decisions go to a log that may be full of user records.
    cache.checkpoints.start()?;
    block_on(recovery.declare(&**oplog.log())).map_err(failed)?;
    let (mut cut_short, objects): (Vec<CutShort>, Vec<_>) = begun.into_iter().unzip();
    for (cut_short, object) in cut_short.iter_mut().zip(&objects) {
        // The name may lead to another inode when the client asks, or after the next kill.
        cut_short.operation.entries.iter_mut().for_each(|entry| entry.now = Some(*object));
    }
    let requests = under_way.restart(&cut_short)?;
    for ((cut_short, object), request) in cut_short.iter().zip(objects).zip(requests) {
        cache.begun.keep(cut_short, object, Some(request));
    }
    block_on(recovery.conclude(oplog, checkpoints, &mut files)).map_err(failed)
}
