//! Recovery: what happened before the crash. [The crate's documentation](crate#recovery) has the map and the cases.

mod cut_short;
mod decide;

use std::collections::{BTreeSet, HashSet};

use forebay_oplog::{
    Binding, Change, Entry, Identity, LogContents, Operation, Outcome, RECORD_MAX, Record, Tree, reconcile,
};

use crate::checkpoint::{Checkpoints, noted};
use crate::io::{Files, Log, Start, StartError};
use crate::sequence::Sequence;
pub use cut_short::CutShort;
use cut_short::{answered, carried_out};
use decide::decide;

/// Numbers in one record.
const VOID: usize = (RECORD_MAX - 9) / 8;

/// A name: file system, directory, and the name in it.
type Name = (u32, Identity, forebay_oplog::Name);

/// The recovery of the operations in a log. The steps are, in this order:
///
/// 1. [`Recovery::read`]: the contents of the log.
/// 2. [`Recovery::give_up`], [`Recovery::reached`] and [`Recovery::forget_clients`]: what is known besides.
/// 3. [`Recovery::reconcile`] for each file system, before any task reads it: it is equal to the log.
/// 4. [`Recovery::decide`]: the changes whose result the log does not state.
/// 5. The [`Checkpoints`] begin, with [`Recovery::replies`]. From now on the log may release its records.
/// 6. [`Recovery::declare`]: the decisions are in the log. The request journal is emptied.
/// 7. [`Recovery::conclude`]: a checkpoint. Clients may be served.
pub struct Recovery {
    found: LogContents,
    log: u64,
    /// The changes that a killed server may have carried out without a record.
    cut_short: Vec<CutShort>,
    /// The highest number in the log and in the slots.
    last: u64,
    /// File systems that were given up.
    given_up: Vec<u32>,
    /// The decisions, until they are in the log.
    decided: Option<Decided>,
    /// True until the log says that the clients of before are forgotten.
    forgets: bool,
}

/// Decisions about changes whose result the log does not state.
#[derive(Default)]
struct Decided {
    /// Changes that happened and have no record yet.
    unlogged: Vec<Change>,
    /// Numbers of changes that did not happen.
    void: BTreeSet<u64>,
}

impl Recovery {
    /// Reads the user records of the log with the identity `log`, in their order. `cut_short` are the changes that were
    /// in progress when a server was killed, oldest first. Returns `None` if a record is none of this version.
    pub fn read<'a>(
        log: u64,
        notes: impl IntoIterator<Item = &'a [u8]>,
        cut_short: Vec<CutShort>,
    ) -> Option<Self> {
        let found = LogContents::read(notes)?;
        let last = found.last();
        Some(Recovery { found, log, cut_short, last, given_up: Vec::new(), decided: None, forgets: false })
    }

    /// Returns the contents of the log.
    pub fn found(&self) -> &LogContents {
        &self.found
    }

    /// Returns the changes that a killed server may have carried out without a record.
    pub fn cut_short(&self) -> &[CutShort] {
        &self.cut_short
    }

    /// Returns the highest number in the log and in the slots of the reconciled file systems.
    pub fn last(&self) -> u64 {
        self.last
    }

    /// Gives up a file system: its operations are not carried out. The caller has set them aside.
    pub fn give_up(&mut self, filesystem: u32) {
        let last = self.found.of(filesystem).0.last().map_or(0, |operation| operation.number);
        self.found.reached(filesystem, last);
        self.given_up.push(filesystem);
    }

    /// Records that a file system already has all operations up to the number `upto`. [`Recovery::behind`] leaves them
    /// out.
    pub fn reached(&mut self, filesystem: u32, upto: u64) {
        self.found.reached(filesystem, upto);
    }

    /// Forgets the state of clients and the replies to them: clients were served without this log since.
    /// [`Recovery::declare`] says so in the log. The reason may be removed after that: the log still has the records.
    pub fn forget_clients(&mut self) {
        self.forgets = self.found.replies().next().is_some();
        self.found.forget();
    }

    /// Returns true if some file system may lack operations of the log.
    pub fn has_operations(&self) -> bool {
        self.found.operations.keys().any(|number| self.behind(*number).next().is_some())
    }

    /// Returns the operations of a file system that the last checkpoint does not cover.
    pub fn behind(&self, filesystem: u32) -> impl Iterator<Item = &Operation> {
        let (operations, upto) = self.found.of(filesystem);
        operations.iter().filter(move |operation| operation.number > upto)
    }

    /// Returns true if the log has changes of a file system that is not among the `served` ones.
    pub fn has_unserved(&self, served: &[u32]) -> bool {
        let mut unserved = self.found.operations.keys().filter(|number| !served.contains(number));
        unserved.any(|number| self.behind(*number).next().is_some())
    }

    /// Makes a file system equal to the log, durably. Returns `None` if it is known to be.
    ///
    /// # Errors
    /// Fails with the tree's own errors. It may be called again after a restart.
    pub fn reconcile<T: Tree>(&mut self, filesystem: u32, tree: &mut T) -> Result<Option<Outcome>, T::Error> {
        let intents = tree.intents()?;
        self.last = intents.iter().map(|intent| intent.number).fold(self.last, u64::max);
        if intents.is_empty() && self.behind(filesystem).next().is_none() {
            return Ok(None);
        }
        let (operations, upto) = self.found.of(filesystem);
        reconcile(tree, operations, upto).map(Some)
    }

    /// Decides about the changes whose result the log does not state. The file systems with these changes are durable
    /// then. Returns the creations of several system calls that a killed server had begun, with the inode that each has
    /// made.
    ///
    /// # Errors
    /// A file system fails. The start fails then, and the next one decides again.
    pub async fn decide<T: Start>(
        &mut self,
        files: &mut [(u32, T)],
    ) -> Result<Vec<(CutShort, Identity)>, StartError<T::Error>> {
        let found = &mut self.found;
        let unsettled = found.changes.last_key_value().map_or(0, |(number, _)| *number);
        let carried_out =
            carried_out(found, &self.cut_short, |filesystem, name| leads_to(files, filesystem, name));
        let (begun, unlogged): (Vec<_>, Vec<_>) =
            carried_out.into_iter().partition(CutShort::in_several_calls);
        let made = |it: CutShort| {
            let name = it.operation.entries.first()?;
            let object = leads_to(files, it.operation.filesystem, name).ok()??;
            Some((it, object))
        };
        let begun = begun.into_iter().filter_map(made).collect();
        if unsettled > found.settled || !unlogged.is_empty() {
            let void = decide(found, |name, entry| leads_where_it_says(files, name, entry));
            let touched = found.changes.range(found.settled + 1..).map(|(_, change)| change.filesystem);
            let touched = touched.chain(unlogged.iter().map(|it| it.operation.filesystem)).collect();
            sync(files, &touched).await.map_err(StartError::Files)?;
            let mut decided = Decided { void, ..Decided::default() };
            for it in unlogged {
                self.last += 1;
                decided.unlogged.push(answered(self.last, it.operation));
            }
            let changes = decided.unlogged.iter().map(|change| (change.number, change.clone()));
            found.changes.extend(changes);
            found.void.extend(&decided.void);
            self.decided = Some(decided);
        }
        Ok(begun)
    }

    /// Returns the replies of the changes that happened, and the changes of clients' state, with their numbers. The log
    /// has to keep them until the server describes the state of its clients itself. The decisions have been made.
    pub fn replies(&self) -> Vec<(u64, Vec<u8>)> {
        self.found.replies().map(|(number, reply)| (number, reply.to_vec())).collect()
    }

    /// Logs the decisions, durably. A server that is killed before makes them again.
    ///
    /// # Errors
    /// The log fails. The start fails then.
    pub async fn declare<L: Log, E>(&mut self, log: &L) -> Result<(), StartError<E>> {
        if std::mem::take(&mut self.forgets) {
            note(log, &Record::Forgotten { upto: self.found.forgotten }).await?;
        }
        let Some(Decided { unlogged, void }) = self.decided.take() else { return Ok(()) };
        for change in unlogged {
            note(log, &Record::Change(Box::new(change))).await?;
        }
        declare(log, self.last, &void).await
    }

    /// Logs a checkpoint, and empties the slots, durably. After that clients may change something. Returns the replies
    /// of all changes in the log that happened, oldest first.
    ///
    /// # Errors
    /// A file system or the log fails. The start fails then.
    pub async fn conclude<F: Files, T: Start>(
        self,
        sequence: &Sequence<F::Log>,
        checkpoints: &Checkpoints<F>,
        files: &mut [(u32, T)],
    ) -> Result<Vec<Box<[u8]>>, StartError<T::Error>> {
        let Recovery { found, log, last, given_up, .. } = self;
        sequence.mark_reconciled(log, last);
        for filesystem in given_up {
            note(&*sequence.log, &Record::Checkpoint { filesystem, upto: last }).await?;
        }
        for (number, files) in files {
            if found.operations.contains_key(number) || files.has_own_files() {
                note(&*sequence.log, &Record::Checkpoint { filesystem: *number, upto: last }).await?;
                // The intents in the slots are out of date now.
                files.clear_slots().map_err(StartError::Files)?;
            }
            files.clear_aliases().map_err(StartError::Files)?;
            // This also covers slots that the stop before this start emptied. A slot that a power cut brings back would
            // prove a change that got a lower number since.
            files.barrier().await.map_err(StartError::Files)?;
            if let Some(volume) = checkpoints.volume(*number) {
                volume.reached(last);
            }
        }
        Ok(found.replies().map(|(_, reply)| reply.into()).collect())
    }
}

fn at<T>(files: &mut [(u32, T)], number: u32) -> Option<&mut T> {
    files.iter_mut().find(|(id, _)| *id == number).map(|(_, files)| files)
}

/// Returns the inode that a name leads to now. `Err(None)`: its file system is not served.
fn leads_to<T: Start>(
    files: &mut [(u32, T)],
    filesystem: u32,
    name: &Binding,
) -> Result<Option<Identity>, Option<T::Error>> {
    let files = at(files, filesystem).ok_or(None)?;
    let found = files.leads_to(name.dir, &name.name).map_err(Some)?;
    Ok(found.map(|(object, _)| object))
}

/// Returns true if a name leads where a change says, now.
fn leads_where_it_says<T: Start>(files: &mut [(u32, T)], (number, dir, name): &Name, entry: &Entry) -> bool {
    let Some(files) = at(files, *number) else { return false };
    match (files.leads_to(*dir, name), entry.object) {
        (Ok(Some((object, rights))), Some(known)) => {
            object == known && entry.made.is_none_or(|made| made == rights)
        }
        (Ok(None), None) => true,
        _ => false,
    }
}

/// Makes all changes of the touched file systems durable. Syncs every one of them, and returns the first error.
async fn sync<T: Start>(files: &mut [(u32, T)], touched: &HashSet<u32>) -> Result<(), T::Error> {
    let mut result = Ok(());
    for (_, files) in files.iter_mut().filter(|(number, _)| touched.contains(number)) {
        let synced = files.barrier().await;
        result = result.and(synced);
    }
    result
}

/// Logs the decisions, the last part of them last: a part without it decides nothing.
async fn declare<L: Log, E>(log: &L, last: u64, void: &BTreeSet<u64>) -> Result<(), StartError<E>> {
    let void: Vec<_> = void.iter().copied().collect();
    for void in void.chunks(VOID).skip(1) {
        note(log, &Record::Settled { upto: 0, void: void.to_vec() }).await?;
    }
    let first = void.iter().take(VOID).copied().collect();
    note(log, &Record::Settled { upto: last, void: first }).await
}

/// Puts a record into the log, durably.
async fn note<L: Log, E>(log: &L, record: &Record) -> Result<(), StartError<E>> {
    noted(log, &record.encode(), true).await.map(drop).map_err(StartError::Log)
}
