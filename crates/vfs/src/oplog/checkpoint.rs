//! Checkpoints: what the log alone made durable becomes durable in the backing file systems, and a record says so. Then the
//! log need not keep it.
//!
//! One commit of the journal is enough: it orders all changes, and those that have a number were carried out before. Those of
//! all file systems are under way at once, and one that does not end in time is not waited for.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use forebay_common::lock::Mutex;
use forebay_disk::block_on;
use forebay_engine::{Engine, UserRecordId};
use forebay_oplog::{Object, Proof, Record};
use rustix::io::Errno;

use super::{OpLog, rename_intents};
use crate::backing::cache::Linked;
use crate::error::{Error, Result};
use crate::export::filesystem::Filesystem;
use crate::sys::KernelHandle;

/// Between two checkpoints at most, while there is something for one: recovery has so much to compare.
const EVERY: Duration = Duration::from_secs(5);

/// So long a commit may take before nobody waits for it any more.
const PATIENCE: Duration = Duration::from_secs(10);

/// What became of a checkpoint of a file system; told when it changes.
#[derive(Clone, Copy, Debug)]
pub enum Checkpointed {
    /// The journal could not be asked for a commit; it is asked again every few seconds.
    Refused(Error),
    /// A commit failed. Until a restart nobody knows what is in the file system.
    Failed(Error),
    /// A commit has not ended for so long.
    Late(Duration),
    /// It can be asked again.
    Healed,
}

/// Told what became of a checkpoint.
pub(crate) type Tell = Arc<dyn Fn(Checkpointed) + Send + Sync>;

/// What its journal is good for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Sound,
    /// It cannot be asked for a commit now: nothing may be changed.
    Refused,
    /// A commit failed: it is not known any more what the file system has, and nothing may be changed.
    Failed,
    /// A commit does not end. Changes have to come again: what the log has of them is carried, which must not become more.
    Late,
}

const STATES: [State; 4] = [State::Sound, State::Refused, State::Failed, State::Late];

/// A commit under way.
struct UnderWay {
    begun: Instant,
    /// What it proves if it succeeds.
    proof: Proof,
    ended: Receiver<Result<()>>,
}

/// What of one file system is in the log and not known to be durable in it.
#[derive(Default)]
pub(crate) struct Logging {
    /// The last change with a record.
    last: AtomicU64,
    /// All changes up to this one are in the file system, durably, and a durable record says so.
    checkpoint: AtomicU64,
    state: AtomicU8,
    /// Looked at by the one that makes a checkpoint.
    commit: Mutex<Option<UnderWay>>,
    /// The file system says that the log was lost.
    lost: Mutex<bool>,
    /// What the last commit that succeeded proves.
    proof: Mutex<Proof>,
    /// The objects that later changes touched, and the last change of each.
    touched: Mutex<HashMap<KernelHandle, u64, foldhash::fast::RandomState>>,
}

impl Logging {
    /// A change got a number.
    pub(super) fn touch(&self, number: u64, objects: &[Object]) {
        self.touched.lock().extend(objects.iter().map(|object| (object.identity, number)));
        self.last.fetch_max(number, Ordering::AcqRel);
    }

    /// Whether recovery would make the object, or set its attributes, from the log.
    pub(crate) fn is_touched(&self, object: &KernelHandle) -> bool {
        self.touched.lock().contains_key(object)
    }

    /// Whether nothing that is changed now could become durable.
    pub(crate) fn is_failing(&self) -> bool {
        self.state() != State::Sound
    }

    /// Why nothing may be changed now, if nothing may.
    pub(super) fn refusal(&self) -> Option<Error> {
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

    /// A commit succeeded that began after this was true.
    pub(crate) fn proven(&self, proof: Proof) {
        let mut known = self.proof.lock();
        if proof.upto > known.upto && !self.is_failing() {
            *known = proof;
        }
    }

    /// Whether a change with this number may be missing in the file system after a crash.
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

    /// Recovery, or a checkpoint, has come so far.
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

/// Makes checkpoints: every few seconds, when the log asks for room, and when somebody needs one.
pub(crate) struct Checkpoints {
    shared: Arc<Shared>,
    threads: Mutex<Option<Threads>>,
}

/// What ends the first, and both.
struct Threads {
    stop: Sender<()>,
    both: [JoinHandle<()>; 2],
}

impl Shared {
    /// Everything that has a number by now is in the backing file systems, durably, but for those that fail. `then` is
    /// called before anything else is done about it, also before the records, which may have to wait for the very room
    /// that it makes: what is found of the log without them is in the file systems.
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
        self.engine.keep_notes(result.err().map(crate::backing::io_error));
        let value = then(result);
        // Who waits for room here must not keep others from making it.
        drop(one);
        let through = due.iter().zip(committed).filter(|(_, committed)| committed.is_ok());
        through.for_each(|((filesystem, fs), _)| self.record(*filesystem, fs, upto, result.is_ok()));
        value
    }

    /// The same for one file system. `Busy`: its journal does not answer.
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

    /// Lets go of notes up to `upto`, which were appended before the checkpoint that ended so. False: they stay for now.
    fn let_go(&self, upto: UserRecordId, made: Result<()>) -> bool {
        if made.is_ok() {
            self.engine.let_go(upto);
            return true;
        }
        block_on(self.engine.let_go_but(upto, |note| self.is_needed(note))).unwrap_or(false)
    }

    /// Whether recovery may need a note, since its file system fails. What is of the others is in them.
    fn is_needed(&self, note: &[u8]) -> bool {
        let Some(Record::Operation(operation)) = Record::decode(note) else { return false };
        let fs = self.filesystems.iter().find(|(number, _)| *number == operation.filesystem);
        let fs = fs.and_then(|(_, fs)| fs.upgrade());
        let needs = |logging: &Logging| logging.is_failing() && logging.needs(operation.number);
        fs.is_some_and(|fs| fs.linked().is_some_and(|linked| needs(&linked.logging)))
    }

    /// Puts into the log what a commit has made true. `wait`: for room; nobody may make any while a file system fails.
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

    /// Has a thread commit, unless one does not come back. Who calls this makes a checkpoint, as of the others here.
    fn begin(&self, fs: &Filesystem) -> Result<()> {
        let Some(linked) = fs.linked() else { return Ok(()) };
        // One that has ended since says nothing of what was done after it had begun.
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
            // Whoever waited for it may have given up.
            let _ = send.send(journal.barrier());
        };
        thread.spawn(commit).map_err(|_| Error::Busy)?;
        *linked.logging.commit.lock() = Some(UnderWay { begun, proof, ended });
        Ok(())
    }

    /// What comes of the commit under way, within so long of its beginning.
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
        // Whoever it was for: a commit that succeeds after one that failed proves nothing of what that one was for.
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

    /// Begins with it: what recovery found in the log is in the file systems, durably.
    pub(crate) fn start(&self) -> std::io::Result<()> {
        let (stop, stopped) = channel::<()>();
        let timed = self.shared.clone();
        let timed = std::thread::Builder::new().name("forebay-checkpoint".into()).spawn(move || {
            while stopped.recv_timeout(EVERY) == Err(RecvTimeoutError::Timeout) {
                // It says itself what fails.
                timed.make(drop);
            }
        })?;
        let asked = self.shared.clone();
        let asked = std::thread::Builder::new().name("forebay-answers".into()).spawn(move || {
            // What is let go was answered so long ago that nobody asks again.
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

    /// Everything of a file system that has a number by now is in it, durably.
    pub(crate) fn make_of(&self, fs: &Filesystem) -> Result<()> {
        self.shared.make_of(fs)
    }

    /// The last one: nothing may be changed any more. Returns whether the log may let go of all notes.
    pub(crate) fn make_last(&self) -> bool {
        let let_go = || self.shared.engine.let_go(UserRecordId::MAX);
        let made = self.shared.make(|made| made.map(|()| let_go()).is_ok());
        if made {
            // The record of this checkpoint stays as long as anything before it does.
            let_go();
        }
        made
    }

    /// The log needs nothing any more of what is in the file systems for it.
    pub(crate) fn tidy(&self) {
        for fs in self.shared.filesystems.iter().filter_map(|(_, fs)| fs.upgrade()) {
            // What stays does no harm: the next start looks at it.
            let _ = rename_intents::clear(&fs).and_then(|()| fs.aliases.tidy());
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
