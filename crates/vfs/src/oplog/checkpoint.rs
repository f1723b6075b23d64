//! Checkpoints: what the log alone made durable becomes durable in the backing file systems, and a record says so. Then the
//! log need not keep it.
//!
//! One commit of the journal is enough: it orders all changes, and those that have a number were carried out before.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use forebay_disk::block_on;
use forebay_engine::{Engine, NoteId};
use forebay_oplog::{Object, Record};
use parking_lot::Mutex;

use super::{OpLog, slots};
use crate::error::{Error, Result};
use crate::fs::Filesystem;
use crate::sys::KernelHandle;

/// Between two checkpoints at most, while there is something for one: recovery has so much to compare.
const EVERY: Duration = Duration::from_secs(5);

/// Told why a file system could not be brought to where the log is.
pub(crate) type Failed = Arc<dyn Fn(&Error) + Send + Sync>;

/// What of one file system is in the log and not known to be durable in it.
#[derive(Default)]
pub(crate) struct Logging {
    /// The last change with a record.
    last: AtomicU64,
    /// All changes up to this one are in the file system, durably, and a durable record says so.
    checkpoint: AtomicU64,
    /// A commit failed: it is not known any more what the file system has. The log keeps everything until a restart.
    broken: AtomicBool,
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

    /// Whether changes have to wait for the file system's own journal from now on.
    pub(crate) fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Acquire)
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
    failed: Failed,
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
    /// Everything that has a number by now is in the backing file systems, durably, but for those that fail. Notes up to
    /// `let_go` were appended before this was called, and need not be kept if none fails.
    fn make(&self, let_go: Option<NoteId>) -> Result<()> {
        let one = self.under_way.lock();
        let upto = self.oplog.carried_out();
        let due = self.filesystems.iter().filter_map(|(number, fs)| Some((*number, fs.upgrade()?)));
        let is_due = |fs: &Filesystem| fs.linked().is_some_and(|linked| linked.logging.is_due());
        let due: Vec<_> = due.filter(|(_, fs)| is_due(fs)).collect();
        let committed: Vec<_> = due.iter().map(|(_, fs)| self.commit(fs)).collect();
        let result = committed.iter().copied().fold(Ok(()), Result::and);
        // Before the records, which may have to wait for this very room: what of the rest is found is in the file systems.
        if let Some(notes) = let_go.filter(|_| result.is_ok()) {
            self.engine.let_go(notes);
        }
        // Who waits for room here must not keep others from making it.
        drop(one);
        let through = due.iter().zip(committed).filter(|(_, committed)| committed.is_ok());
        through.for_each(|((filesystem, fs), _)| self.record(*filesystem, fs, upto, result.is_ok()));
        result
    }

    /// Puts into the log what a commit has made true. `wait`: for room; nobody makes any while a file system fails.
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

    fn commit(&self, fs: &Filesystem) -> Result<()> {
        let Some(linked) = fs.linked() else { return Ok(()) };
        if linked.logging.is_broken() {
            return Err(Error::Os(rustix::io::Errno::IO));
        }
        fs.journal.barrier().inspect_err(|error| {
            linked.logging.broken.store(true, Ordering::Release);
            // Nobody is to wait for what the log keeps from now on.
            self.engine.keep_notes(crate::backing::io_error(*error));
            (self.failed)(error);
        })
    }
}

impl Checkpoints {
    pub(crate) fn new(
        engine: Arc<Engine>,
        oplog: Arc<OpLog>,
        filesystems: Vec<(u32, Weak<Filesystem>)>,
        failed: Failed,
    ) -> Self {
        let shared = Arc::new(Shared { engine, oplog, filesystems, failed, under_way: Mutex::new(()) });
        Checkpoints { shared, threads: Mutex::new(None) }
    }

    /// Begins with it: what recovery found in the log is in the file systems, durably.
    pub(crate) fn start(&self) -> std::io::Result<()> {
        let (stop, stopped) = channel::<()>();
        let timed = self.shared.clone();
        let timed = std::thread::Builder::new().name("forebay-checkpoint".into()).spawn(move || {
            while stopped.recv_timeout(EVERY) == Err(RecvTimeoutError::Timeout) {
                // It says so itself.
                let _ = timed.make(None);
            }
        })?;
        let asked = self.shared.clone();
        let asked = std::thread::Builder::new().name("forebay-answers".into()).spawn(move || {
            // What is let go was answered so long ago that nobody asks again.
            while let Some(upto) = block_on(asked.engine.notes_due()) {
                if asked.make(Some(upto)).is_err() {
                    // Until the engine closes: it would ask again at once.
                    std::thread::sleep(EVERY);
                }
            }
        })?;
        *self.threads.lock() = Some(Threads { stop, both: [timed, asked] });
        Ok(())
    }

    /// Everything that has a number by now is in the backing file systems, durably, and the log says so.
    pub(crate) fn make(&self) -> Result<()> {
        self.shared.make(None)
    }

    /// The last one: nothing may be changed any more. Returns whether the log may let go of all notes.
    pub(crate) fn make_last(&self) -> bool {
        let made = self.shared.make(Some(NoteId::MAX)).is_ok();
        if made {
            // The record of this checkpoint stays as long as anything before it does.
            self.shared.engine.let_go(NoteId::MAX);
        }
        made
    }

    /// The log needs nothing any more of what is in the file systems for it.
    pub(crate) fn tidy(&self) {
        for fs in self.shared.filesystems.iter().filter_map(|(_, fs)| fs.upgrade()) {
            // What stays does no harm: the next start looks at it.
            let _ = slots::clear(&fs).and_then(|()| fs.aliases.tidy());
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
