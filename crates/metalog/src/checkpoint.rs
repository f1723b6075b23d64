//! Checkpoints: operations that only the log made durable become durable in the backing file systems, and a record says
//! so. Then the log need not keep them.
//!
//! One commit of the journal is enough: it orders all changes, and an operation that has a number was carried out
//! before. The commits of all file systems run in parallel, and a commit that does not end in time is not waited for.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use forebay_engine::UserRecordId;
use forebay_engine::io::Clock;
use forebay_engine::wait::before;
use forebay_oplog::{Identity, Record};

use crate::io::{Failure, Files, Log};
use crate::planted_bugs;
use crate::sequence::Sequence;
use crate::state::Snapshot;
use crate::turnstile::Turnstile;
use crate::volume::{State, UnderWay, Volume};

/// The longest time between two checkpoints while there are changes for one. Recovery has that many changes to compare.
pub const EVERY: Duration = Duration::from_secs(5);

/// The time that a task waits for a commit. After it no task waits for the commit any more.
const PATIENCE: Duration = Duration::from_secs(10);

/// The result of a file system's checkpoints, reported when it changes.
#[derive(Clone, Copy, Debug)]
pub enum Checkpointed<E> {
    /// The journal could not be asked for a commit; it is asked again every few seconds.
    Refused(E),
    /// A commit failed. Until a restart the contents of the file system are unknown.
    Failed(E),
    /// A commit has not ended for this time.
    Late(Duration),
    /// The journal can be asked for commits again.
    Healed,
}

/// Called with each result of a checkpoint that differs from the result before.
pub type Tell<E> = Arc<dyn Fn(Checkpointed<E>) + Send + Sync>;

/// A file system with its part of the log.
type Served<F> = (Arc<Volume<F>>, Weak<F>);

/// The user records that a checkpoint may release.
#[derive(Clone, Copy)]
enum Release {
    Nothing,
    /// Up to this one. If a file system fails, the records that recovery may need of it are reappended.
    Upto(UserRecordId),
    /// All, if no file system fails.
    All,
}

/// Makes checkpoints: every few seconds, when the log asks for room, and when a request needs one.
pub struct Checkpoints<F: Files> {
    sequence: Arc<Sequence<F::Log>>,
    clock: Arc<dyn Clock>,
    served: Vec<Served<F>>,
    tell: Tell<F::Error>,
    /// Describes the state of clients, of which the log has records.
    snapshot: OnceLock<Snapshot>,
    /// The replies and the state from earlier starts: the snapshot until the server gives its own.
    recovered: OnceLock<Vec<(u64, Vec<u8>)>>,
    /// True if the last snapshot was not empty.
    keeps_state: AtomicBool,
    /// One at a time.
    under_way: Turnstile,
}

impl<F: Files> Checkpoints<F> {
    /// Returns the checkpoints of these file systems.
    pub fn new(
        sequence: Arc<Sequence<F::Log>>,
        clock: Arc<dyn Clock>,
        filesystems: Vec<(u32, Weak<F>)>,
        tell: Tell<F::Error>,
    ) -> Self {
        let volume = |number| Arc::new(Volume::new(sequence.clone(), number));
        let served = filesystems.into_iter().map(|(number, files)| (volume(number), files)).collect();
        let (snapshot, recovered) = (OnceLock::new(), OnceLock::new());
        let (keeps_state, under_way) = (AtomicBool::new(false), Turnstile::default());
        Checkpoints { sequence, clock, served, tell, snapshot, recovered, keeps_state, under_way }
    }

    /// Keeps `recovered` in the log until [`Checkpoints::keep_state`]: the [`Recovery::replies`](crate::Recovery) of
    /// this start. It comes before any release. A server that is killed before it serves then leaves the next start
    /// all that it found itself.
    pub fn keep_recovered(&self, recovered: Vec<(u64, Vec<u8>)>) {
        let _ = self.recovered.set(recovered);
    }

    /// Keeps the state of clients in the log from now on: the snapshot replaces records that are released. The first
    /// call counts.
    pub fn keep_state(&self, snapshot: Snapshot) {
        let _ = self.snapshot.set(snapshot);
    }

    /// Returns the log's part of a file system.
    pub fn volume(&self, number: u32) -> Option<&Arc<Volume<F>>> {
        self.served.iter().map(|(volume, _)| volume).find(|volume| volume.number() == number)
    }

    /// Makes all operations that have a number by now durable in their backing file systems, except those that fail.
    pub async fn make(&self) {
        // The checkpoint itself reports its failures.
        let _ = self.make_and(Release::Nothing).await;
    }

    /// Makes a checkpoint of one file system, so that every operation that has a number by now is durable in it.
    ///
    /// # Errors
    /// The journal does not answer (`BUSY`), or fails.
    pub async fn make_of(&self, volume: &Volume<F>, files: &F) -> Result<(), F::Error> {
        let one = self.under_way.enter().await;
        let upto = self.sequence.carried_out();
        if !volume.is_due() {
            return Ok(());
        }
        let made = match self.begin(volume, files).await {
            Ok(()) => self.end(volume, files, PATIENCE).await,
            refused => refused,
        };
        made.map_err(|error| if error == F::Error::LATE { F::Error::BUSY } else { error })?;
        drop(one);
        self.record(volume, upto, true).await;
        Ok(())
    }

    /// Makes a checkpoint if recovery would create the object, or set its attributes, from the log. Returns true in
    /// that case. A change of contents or size that the log does not have comes after that: recovery would create the
    /// object without the change.
    ///
    /// # Errors
    /// Those of [`Checkpoints::make_of`].
    pub async fn make_of_touched(
        &self,
        volume: &Volume<F>,
        files: &F,
        object: &Identity,
    ) -> Result<bool, F::Error> {
        if !volume.is_touched(object) {
            return Ok(false);
        }
        self.make_of(volume, files).await.map(|()| true)
    }

    /// Makes the last checkpoint, after which nothing may be changed. Returns true if the log may release all user
    /// records.
    pub async fn make_last(&self) -> bool {
        let made = self.make_and(Release::All).await;
        // The state of clients stays in the log, for the next start.
        if made && !self.keeps_state.load(Ordering::Acquire) {
            // The record of this checkpoint stays as long as anything before it does.
            self.sequence.log.release_user_records(UserRecordId::MAX);
        }
        made
    }

    /// Releases user records whenever the log asks, until it closes. The records to release were answered so long ago
    /// that no client asks again.
    pub async fn answer(&self) {
        while let Some(upto) = self.sequence.log.user_records_due().await {
            if planted_bugs::active("notes are let go without a checkpoint") {
                self.sequence.log.release_user_records(upto);
                continue;
            }
            if !self.make_and(Release::Upto(upto)).await {
                // Until the log closes: it would ask again at once.
                self.clock.sleep(EVERY).await;
            }
        }
    }

    /// Makes a checkpoint as [`Checkpoints::make`] does. Releases user records before the checkpoint's own records go
    /// to the log. Appending them may have to wait for the very room that the release makes. If recovery finds the log
    /// without those records, the operations are in the file systems all the same.
    ///
    /// Returns false if the records stay for now.
    async fn make_and(&self, release: Release) -> bool {
        let one = self.under_way.enter().await;
        let upto = match planted_bugs::active("a checkpoint covers a RENAME that is not carried out") {
            true => self.sequence.last().1,
            false => self.sequence.carried_out(),
        };
        let due = self.served.iter().filter(|(volume, _)| volume.is_due());
        let due: Vec<_> = due.filter_map(|(volume, files)| Some((volume, files.upgrade()?))).collect();
        let mut begun = Vec::with_capacity(due.len());
        for (volume, files) in &due {
            begun.push(self.begin(volume, files).await);
        }
        let mut committed = Vec::with_capacity(due.len());
        for ((volume, files), begun) in due.iter().zip(begun) {
            committed.push(match begun {
                Ok(()) => self.end(volume, files, PATIENCE).await,
                refused => refused,
            });
        }
        let result = committed.iter().copied().fold(Ok(()), Result::and);
        self.sequence.log.keep_notes(result.err().map(Failure::to_cache));
        let released = self.release(release, result, upto).await;
        // A task that waits for room here must not keep other tasks from making room. The task that releases records
        // must not wait at all: the log may have filled while the commits took long, and no other task makes room.
        drop(one);
        let wait = result.is_ok() && !matches!(release, Release::Upto(_));
        for ((volume, _), committed) in due.iter().zip(committed) {
            if committed.is_ok() {
                self.record(volume, upto, wait).await;
            }
        }
        released
    }

    /// Releases user records, which were appended before the checkpoint that ended with `made`. So their changes have
    /// numbers up to `durable`, and need no record any more.
    async fn release(&self, release: Release, made: Result<(), F::Error>, durable: u64) -> bool {
        let log = &self.sequence.log;
        let made = made.is_ok() || planted_bugs::active("notes are let go though the journal fails");
        match release {
            Release::Nothing => {}
            Release::All | Release::Upto(_) if made => {
                let Some((replaced, bytes)) = self.note_state(durable).await else { return false };
                let upto = if let Release::Upto(upto) = release { upto.min(replaced) } else { replaced };
                log.let_go_replaced(upto, bytes);
            }
            Release::All => return false,
            Release::Upto(upto) => {
                // The records that checkpoints cover are released. The snapshot has their replies.
                let durable = self.served.iter().map(|(volume, _)| volume.durable(durable)).min();
                let durable = durable.unwrap_or_default();
                let Some((replaced, bytes)) = self.note_state(durable).await else { return false };
                let needed = |note: &[u8]| self.is_needed(note, durable);
                return log.let_go_but(upto.min(replaced), bytes, needed).await.unwrap_or(false);
            }
        }
        true
    }

    /// Appends a snapshot of the state of clients, durably. Changes up to `durable` need no record. Returns the last
    /// user record that the snapshot replaces, and its bytes; `None` without room, or if the log is broken.
    async fn note_state(&self, durable: u64) -> Option<(UserRecordId, usize)> {
        let state = match self.snapshot.get() {
            None => self.recovered.get().cloned().unwrap_or_default(),
            Some(snapshot) => self.sequence.snapshot(snapshot, durable),
        };
        self.keeps_state.store(!state.is_empty(), Ordering::Release);
        self.sequence.note_snapshot(state).await
    }

    /// Returns true if recovery may need a user record beside a snapshot for which the changes up to `durable` needed
    /// none.
    ///
    /// | the record of | is needed |
    /// |---|---|
    /// | an operation of a file system that fails | if the operation may be missing in the file system |
    /// | an operation of another file system, behind `durable` | until a checkpoint covers it |
    /// | anything else | no |
    ///
    /// The snapshot has no reply that is on the way to its client, if the change is behind `durable`.
    fn is_needed(&self, note: &[u8], durable: u64) -> bool {
        let Some(Record::Operation(operation)) = Record::decode(note) else { return false };
        let number = operation.number;
        let needed = |volume: &Arc<Volume<F>>| {
            volume.needs(number) || !volume.is_failing() && number > durable.max(volume.checkpoint())
        };
        self.volume(operation.filesystem).is_some_and(needed)
    }

    /// Logs the result of a commit. `wait` says that the append may wait for room; no task may make any while a file
    /// system fails. Without room and without a wait, the next checkpoint covers the changes again.
    async fn record(&self, volume: &Volume<F>, upto: u64, wait: bool) {
        let record = Record::Checkpoint { filesystem: volume.number(), upto }.encode();
        // Without cache devices there is no log, and nothing in it.
        if noted(&*self.sequence.log, &record, wait).await == Ok(true) {
            volume.reached(upto);
        }
    }

    /// Begins a commit, unless an earlier commit does not end. The caller makes a checkpoint.
    async fn begin(&self, volume: &Volume<F>, files: &F) -> Result<(), F::Error> {
        let earlier = volume.commit.lock().is_some();
        // A commit that has ended since says nothing of the changes made after it began.
        if self.end(volume, files, Duration::ZERO).await == Err(F::Error::LATE) {
            return Err(F::Error::LATE);
        }
        if earlier && planted_bugs::active("a late commit covers what was done while it was under way") {
            return Ok(());
        }
        if volume.state() == State::Failed {
            return Err(F::Error::FAILED);
        }
        if planted_bugs::active("a checkpoint without a commit") {
            return Ok(());
        }
        let (proof, begun) = (self.sequence.proof(), self.clock.now());
        let ended = files.begin_commit()?;
        *volume.commit.lock() = Some(UnderWay { begun, proof, ended });
        Ok(())
    }

    /// Returns the result of the commit in progress, within `patience` of its beginning.
    async fn end(&self, volume: &Volume<F>, files: &F, patience: Duration) -> Result<(), F::Error> {
        let Some(mut commit) = volume.commit.lock().take() else { return Ok(()) };
        let elapsed = self.clock.now().saturating_sub(commit.begun);
        let rest = patience.saturating_sub(elapsed);
        let ended = match rest.is_zero() {
            true => before(async {}, &mut commit.ended).await,
            false => before(self.clock.sleep(rest), &mut commit.ended).await,
        };
        let Some(result) = ended else {
            let time = self.clock.now().saturating_sub(commit.begun);
            *volume.commit.lock() = Some(commit);
            self.set_state(volume, State::Late, Checkpointed::Late(time));
            return Err(F::Error::LATE);
        };
        // A commit that succeeds after a failed one proves nothing of the operations of the failed one, whichever
        // task made it.
        let failed = files.has_failed();
        let result = if failed { result.and(Err(F::Error::FAILED)) } else { result };
        match result {
            Ok(()) => self.set_state(volume, State::Sound, Checkpointed::Healed),
            Err(error) if failed => self.set_state(volume, State::Failed, Checkpointed::Failed(error)),
            Err(error) => self.set_state(volume, State::Refused, Checkpointed::Refused(error)),
        }
        if result.is_ok() {
            let late = planted_bugs::active("a commit proves what was done before it ended");
            volume.proven(if late { self.sequence.proof() } else { commit.proof });
        }
        result
    }

    /// Sets the state of a volume, and tells the news if it is another state than before.
    fn set_state(&self, volume: &Volume<F>, state: State, news: Checkpointed<F::Error>) {
        if volume.set_state(state) != state {
            (self.tell)(news);
        }
    }
}

/// Puts a record into the log, durably. Returns false if there is no room and the append may not `wait` for any.
pub(crate) async fn noted<L: Log>(log: &L, record: &[u8], wait: bool) -> Result<bool, forebay_engine::Error> {
    let noted = match wait {
        true => Some(log.note(record).await?),
        false => log.try_append_user_record(record)?,
    };
    let Some((frame, _)) = noted else { return Ok(false) };
    log.commit(frame).await.map(|()| true)
}

#[cfg(test)]
mod tests;
