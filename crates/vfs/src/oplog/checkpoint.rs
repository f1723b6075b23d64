//! Checkpoints: operations that only the log made durable become durable in the backing file systems, and a record says
//! so. Then the log need not keep them.
//!
//! One commit of the journal is enough: it orders all changes, and an operation that has a number was carried out
//! before. The commits of all file systems run in parallel, and a commit that does not end in time is not waited for.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use forebay_common::lock::Mutex;
use forebay_engine::{Engine, UserRecordId};
use forebay_oplog::{Object, Proof, Record};
use forebay_runtime::block_on;
use rustix::io::Errno;

use super::{OpLog, rename_intents};
use crate::error::{Error, Result};
use crate::export::cache::Linked;
use crate::export::filesystem::Filesystem;
use crate::sys::KernelHandle;

/// The longest time between two checkpoints while there are changes for one. Recovery has that many changes to compare.
const EVERY: Duration = Duration::from_secs(5);

/// The time that a thread waits for a commit. After it no thread waits for the commit any more.
const PATIENCE: Duration = Duration::from_secs(10);

/// The result of a file system's checkpoints, reported when it changes.
#[derive(Clone, Copy, Debug)]
pub enum Checkpointed {
    /// The journal could not be asked for a commit; it is asked again every few seconds.
    Refused(Error),
    /// A commit failed. Until a restart the contents of the file system are unknown.
    Failed(Error),
    /// A commit has not ended for this time.
    Late(Duration),
    /// The journal can be asked for commits again.
    Healed,
}

/// Called with each result of a checkpoint that differs from the result before.
pub(crate) type Tell = Arc<dyn Fn(Checkpointed) + Send + Sync>;

/// The state of a file system's journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Sound,
    /// The journal cannot be asked for a commit now, so nothing may be changed.
    Refused,
    /// A commit failed: the contents of the file system are unknown, and nothing may be changed.
    Failed,
    /// A commit does not end. Clients have to repeat changes: the log keeps its records of the file system, and they
    /// must not become more.
    Late,
}

const STATES: [State; 4] = [State::Sound, State::Refused, State::Failed, State::Late];

/// A commit in progress.
struct UnderWay {
    begun: Instant,
    /// The operations that the commit proves durable if it succeeds.
    proof: Proof,
    ended: Receiver<Result<()>>,
}

/// The operations of one file system that are in the log and not known to be durable in the file system.
#[derive(Default)]
pub(crate) struct Logging {
    /// The last change with a record.
    last: AtomicU64,
    /// All changes up to this one are in the file system, durably, and a durable record says so.
    checkpoint: AtomicU64,
    state: AtomicU8,
    /// The commit in progress; only the thread that makes a checkpoint looks at it.
    commit: Mutex<Option<UnderWay>>,
    /// The file system says that the log was lost.
    lost: Mutex<bool>,
    /// The operations that the last successful commit proves durable.
    proof: Mutex<Proof>,
    /// The objects that later changes touched, and the last change of each.
    touched: Mutex<HashMap<KernelHandle, u64, foldhash::fast::RandomState>>,
}

impl Logging {
    /// Notes that a change of these objects got a number.
    pub(super) fn touch(&self, number: u64, objects: &[Object]) {
        self.touched.lock().extend(objects.iter().map(|object| (object.identity, number)));
        self.last.fetch_max(number, Ordering::AcqRel);
    }

    /// Returns true if recovery would create the inode, or set its attributes, from the log.
    pub(crate) fn is_touched(&self, object: &KernelHandle) -> bool {
        self.touched.lock().contains_key(object)
    }

    /// Returns true if no change made now could become durable.
    pub(crate) fn is_failing(&self) -> bool {
        self.state() != State::Sound
    }

    /// Returns the reason why nothing may be changed now, if there is one.
    pub(crate) fn refusal(&self) -> Option<Error> {
        match self.state() {
            State::Sound => None,
            State::Late => Some(Error::Busy),
            State::Refused | State::Failed => Some(Error::Os(Errno::IO)),
        }
    }

    fn state(&self) -> State {
        STATES[usize::from(self.state.load(Ordering::Acquire))]
    }

    /// Returns the state before.
    fn set_state(&self, state: State) -> State {
        STATES[usize::from(self.state.swap(state as u8, Ordering::AcqRel))]
    }

    /// Notes the proof of a commit that succeeded and that began after the proof was true.
    pub(crate) fn proven(&self, proof: Proof) {
        let mut known = self.proof.lock();
        if proof.upto > known.upto && !self.is_failing() {
            *known = proof;
        }
    }

    /// Returns true if a change with this number may be missing in the file system after a crash.
    fn needs(&self, number: u64) -> bool {
        !self.proof.lock().covers(number)
    }

    /// Calls `say` the first time, and again after a failure.
    pub(super) fn lose_log(&self, say: impl FnOnce() -> Result<()>) -> Result<()> {
        let mut lost = self.lost.lock();
        if !*lost {
            say()?;
            *lost = true;
        }
        Ok(())
    }

    fn is_due(&self) -> bool {
        self.last.load(Ordering::Acquire) > self.checkpoint.load(Ordering::Acquire)
    }

    /// Notes that recovery, or a checkpoint, has reached this change.
    pub(super) fn reached(&self, upto: u64) {
        self.checkpoint.fetch_max(upto, Ordering::AcqRel);
        self.touched.lock().retain(|_, number| *number > upto);
    }
}

struct Shared {
    engine: Arc<Engine>,
    oplog: Arc<OpLog>,
    filesystems: Vec<(u32, Weak<Filesystem>)>,
    tell: Tell,
    /// One at a time.
    under_way: Mutex<()>,
}

/// The threads that make checkpoints: every few seconds, when the log asks for room, and when a request needs one.
pub(crate) struct Checkpoints {
    shared: Arc<Shared>,
    threads: Mutex<Option<Threads>>,
}

/// The sender whose drop ends the first thread, and the handles of both.
struct Threads {
    stop: Sender<()>,
    both: [JoinHandle<()>; 2],
}

impl Shared {
    /// Makes all operations that have a number by now durable in their backing file systems, except those that fail.
    /// Calls `then` before the checkpoint's records go to the log. Appending them may have to wait for the very room
    /// that `then` makes. If recovery finds the log without those records, the operations are in the file systems all
    /// the same.
    fn make<T>(&self, then: impl FnOnce(Result<()>) -> T) -> T {
        let one = self.under_way.lock();
        let upto = self.oplog.carried_out();
        let due = self.filesystems.iter().filter_map(|(number, fs)| Some((*number, fs.upgrade()?)));
        let is_due = |fs: &Filesystem| fs.linked().is_some_and(|linked| linked.logging.is_due());
        let due: Vec<_> = due.filter(|(_, fs)| is_due(fs)).collect();
        let begun: Vec<_> = due.iter().map(|(_, fs)| self.begin(fs)).collect();
        let commits = due.iter().zip(begun);
        let committed: Vec<_> =
            commits.map(|((_, fs), begun)| begun.and_then(|()| self.end(fs, PATIENCE))).collect();
        let result = committed.iter().copied().fold(Ok(()), Result::and);
        self.engine.keep_notes(result.err().map(crate::error::io_error));
        let value = then(result);
        // A thread that waits for room here must not keep other threads from making room.
        drop(one);
        let through = due.iter().zip(committed).filter(|(_, committed)| committed.is_ok());
        through.for_each(|((filesystem, fs), _)| self.record(*filesystem, fs, upto, result.is_ok()));
        value
    }

    /// Makes a checkpoint of one file system. `Busy`: its journal does not answer.
    fn make_of(&self, fs: &Filesystem) -> Result<()> {
        let Some(linked) = fs.linked() else { return Ok(()) };
        let one = self.under_way.lock();
        let upto = self.oplog.carried_out();
        if !linked.logging.is_due() {
            return Ok(());
        }
        let made = self.begin(fs).and_then(|()| self.end(fs, PATIENCE));
        made.map_err(|error| if error == LATE { Error::Busy } else { error })?;
        drop(one);
        self.record(linked.number(), fs, upto, true);
        Ok(())
    }

    /// Releases the user records up to `upto`, which were appended before the checkpoint that ended with `made`.
    /// Returns false if they stay for now.
    fn let_go(&self, upto: UserRecordId, made: Result<()>) -> bool {
        if made.is_ok() {
            self.engine.let_go(upto);
            return true;
        }
        block_on(self.engine.let_go_but(upto, |note| self.is_needed(note))).unwrap_or(false)
    }

    /// Returns true if recovery may need a user record, because its file system fails. The operations of file systems
    /// that do not fail are in them.
    fn is_needed(&self, note: &[u8]) -> bool {
        let Some(Record::Operation(operation)) = Record::decode(note) else { return false };
        let fs = self.filesystems.iter().find(|(number, _)| *number == operation.filesystem);
        let fs = fs.and_then(|(_, fs)| fs.upgrade());
        let needs = |logging: &Logging| logging.is_failing() && logging.needs(operation.number);
        fs.is_some_and(|fs| fs.linked().is_some_and(|linked| needs(&linked.logging)))
    }

    /// Logs the result of a commit. `wait` says that the append may wait for room; no thread may make any while a file
    /// system fails.
    fn record(&self, filesystem: u32, fs: &Filesystem, upto: u64, wait: bool) {
        let record = Record::Checkpoint { filesystem, upto }.encode();
        let noted = block_on(async {
            let noted = match wait {
                true => Some(self.engine.note(&record).await?),
                false => self.engine.try_note(&record)?,
            };
            let Some((frame, _)) = noted else { return Ok(false) };
            self.engine.commit(frame).await.map(|()| true)
        });
        // Without cache devices there is no log, and nothing in it.
        if noted == Ok(true)
            && let Some(linked) = fs.linked()
        {
            linked.logging.reached(upto);
        }
    }

    /// Starts a thread that commits, unless an earlier commit does not end. The caller makes a checkpoint.
    fn begin(&self, fs: &Filesystem) -> Result<()> {
        let Some(linked) = fs.linked() else { return Ok(()) };
        // A commit that has ended since says nothing of the changes made after it began.
        if self.end(fs, Duration::ZERO) == Err(LATE) {
            return Err(LATE);
        }
        if linked.logging.state() == State::Failed {
            return Err(FAILED);
        }
        let (proof, begun, journal) = (self.oplog.proof(), Instant::now(), fs.journal.clone());
        let (send, ended) = channel();
        let thread = std::thread::Builder::new().name("forebay-barrier".into());
        let commit = move || {
            // The receiver may have given up waiting.
            let _ = send.send(journal.barrier());
        };
        thread.spawn(commit).map_err(|_| Error::Busy)?;
        *linked.logging.commit.lock() = Some(UnderWay { begun, proof, ended });
        Ok(())
    }

    /// Returns the result of the commit in progress, within `patience` of its beginning.
    fn end(&self, fs: &Filesystem, patience: Duration) -> Result<()> {
        let Some(linked) = fs.linked() else { return Ok(()) };
        let mut commit = linked.logging.commit.lock();
        let Some(UnderWay { begun, ended, .. }) = &*commit else { return Ok(()) };
        let result = match ended.recv_timeout(patience.saturating_sub(begun.elapsed())) {
            Ok(result) => result,
            Err(RecvTimeoutError::Timeout) => Err(LATE),
            Err(RecvTimeoutError::Disconnected) => Err(FAILED),
        };
        if result == Err(LATE) {
            let time = begun.elapsed();
            self.set_state(linked, State::Late, Checkpointed::Late(time));
            return result;
        }
        let proof = commit.take().map(|commit| commit.proof);
        // A commit that succeeds after a failed one proves nothing of the operations of the failed one, whichever
        // thread made it.
        let result = if fs.journal.has_failed() { result.and(Err(FAILED)) } else { result };
        match result {
            Ok(()) => self.set_state(linked, State::Sound, Checkpointed::Healed),
            Err(error) if fs.journal.has_failed() => {
                self.set_state(linked, State::Failed, Checkpointed::Failed(error));
            }
            Err(error) => self.set_state(linked, State::Refused, Checkpointed::Refused(error)),
        }
        if let (Ok(()), Some(proof)) = (result, proof) {
            linked.logging.proven(proof);
        }
        result
    }

    fn set_state(&self, linked: &Linked, state: State, news: Checkpointed) {
        if linked.logging.set_state(state) != state {
            (self.tell)(news);
        }
    }
}

const FAILED: Error = Error::Os(Errno::IO);
const LATE: Error = Error::Os(Errno::TIMEDOUT);

impl Checkpoints {
    pub(crate) fn new(
        engine: Arc<Engine>,
        oplog: Arc<OpLog>,
        filesystems: Vec<(u32, Weak<Filesystem>)>,
        tell: Tell,
    ) -> Self {
        let shared = Arc::new(Shared { engine, oplog, filesystems, tell, under_way: Mutex::new(()) });
        Checkpoints { shared, threads: Mutex::new(None) }
    }

    /// Starts the threads. The operations that recovery found in the log must be in the file systems, durably.
    pub(crate) fn start(&self) -> std::io::Result<()> {
        let (stop, stopped) = channel::<()>();
        let timed = self.shared.clone();
        let timed = std::thread::Builder::new().name("forebay-checkpoint".into()).spawn(move || {
            while stopped.recv_timeout(EVERY) == Err(RecvTimeoutError::Timeout) {
                // The checkpoint itself reports its failures.
                timed.make(drop);
            }
        })?;
        let asked = self.shared.clone();
        let asked = std::thread::Builder::new().name("forebay-answers".into()).spawn(move || {
            // The records to release were answered so long ago that no client asks again.
            while let Some(upto) = block_on(asked.engine.notes_due()) {
                if !asked.make(|made| asked.let_go(upto, made)) {
                    // Until the engine closes: it would ask again at once.
                    std::thread::sleep(EVERY);
                }
            }
        })?;
        *self.threads.lock() = Some(Threads { stop, both: [timed, asked] });
        Ok(())
    }

    /// Makes every operation of a file system that has a number by now durable in it.
    pub(crate) fn make_of(&self, fs: &Filesystem) -> Result<()> {
        self.shared.make_of(fs)
    }

    /// Makes the last checkpoint, after which nothing may be changed. Returns true if the log may release all user
    /// records.
    pub(crate) fn make_last(&self) -> bool {
        let let_go = || self.shared.engine.let_go(UserRecordId::MAX);
        let made = self.shared.make(|made| made.map(|()| let_go()).is_ok());
        if made {
            // The record of this checkpoint stays as long as anything before it does.
            let_go();
        }
        made
    }

    /// Removes the server's files that the file systems keep for the log, when the log needs them no more.
    pub(crate) fn tidy(&self) {
        for fs in self.shared.filesystems.iter().filter_map(|(_, fs)| fs.upgrade()) {
            // A file that stays does no harm: the next start looks at it.
            let _ = rename_intents::clear(&fs.aliases).and_then(|()| fs.aliases.tidy());
        }
    }

    /// Ends the threads; the engine was closed.
    pub(crate) fn stop(&self) {
        if let Some(Threads { stop, both }) = self.threads.lock().take() {
            drop(stop);
            // A panic there has said so itself.
            both.into_iter().for_each(|thread| drop(thread.join()));
        }
    }
}
