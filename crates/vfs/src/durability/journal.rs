//! Group commit: many acknowledgements, one trip to stable storage.
//!
//! ext4 and XFS order all metadata changes in one journal: once a later change is durable, so is every earlier one. So
//! a batch ends with one tiny change to an unnamed file of the file system and one fsync of that file. The number of
//! directories and files in the batch does not matter. File data is written before the fsync. Writing is started for
//! all files first, then awaited, so that the disk sees the whole batch at once. The commit's cache flush covers it.
//! Where that order cannot be assumed (btrfs, tmpfs, an external log, data=journal, barriers off), every inode is
//! synced by itself.
//!
//! Each inode then belongs to one of several queues that sync in parallel, with batches of their own.
//!
//! A thread that finds no commit in progress leads one itself, so a lone client pays no hop between threads. If more
//! work has queued up meanwhile, a helper thread leads the next batch of the journal while the first thread answers.

mod sync;

use std::hash::BuildHasher;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use forebay_common::lock::{Condvar, Mutex};
use forebay_common::metrics::Recorder;
use rustix::fs::{Mode, OFlags};
use smallvec::SmallVec;

use crate::caches::budget::Budget;
use crate::caches::inode::Inode;
use crate::durability::verifier::Verifier;
use crate::error::{Error, Result};
use crate::side_by_side::side_by_side;
use crate::sys;

/// The things that a file system must make durable.
#[derive(Default)]
pub(crate) struct SyncRequest {
    /// Bytes of a file.
    pub(crate) data: Option<Data>,
    /// Inodes whose names or attributes changed.
    pub(crate) metadata: SmallVec<[Arc<Inode>; 3]>,
}

impl SyncRequest {
    /// Returns true if the file system has nothing to make durable.
    pub(crate) fn is_empty(&self) -> bool {
        self.data.is_none() && self.metadata.is_empty()
    }
}

/// Bytes of a file that were written.
#[derive(Clone)]
pub(crate) struct Data {
    pub(crate) object: Arc<Inode>,
    pub(crate) offset: u64,
    /// 0 = to the end of the file.
    pub(crate) len: u64,
    /// [`Uncommitted::errors`](crate::caches::uncommitted::Uncommitted::errors) from before they were written.
    pub(crate) errors: u64,
}

impl Data {
    /// Announces that the file system is about to make the contents durable. The cache may have copies of them then.
    pub(crate) fn begin_sync(&self) -> Option<forebay_engine::Syncing> {
        self.object.link.get()?.begin_sync(self.offset, self.len)
    }
}

/// Called once, from some thread, when the request is durable or has failed.
pub type Done = Box<dyn FnOnce(Result<()>) + Send>;

/// Calls its argument, which runs the [`Done`]s of one batch, exactly once and before it returns. So the caller can
/// gather the replies of a batch and send them together.
pub type Deliver = fn(&mut dyn FnMut());

/// The file system's promise about the order of its metadata changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// One journal: a later durable change implies all earlier ones.
    Journal,
    /// No such promise: each inode is synced by itself.
    PerObject,
}

/// Counters since start.
#[derive(Default)]
pub struct JournalStats {
    /// Batches made durable.
    pub batches: AtomicU64,
    /// Acknowledgements they carried.
    pub operations: AtomicU64,
    /// Acknowledgements that turned into errors since something could not be made durable.
    pub failures: AtomicU64,
    /// Times that all changes of names so far were made durable for no acknowledgement.
    pub barriers: AtomicU64,
    /// The time that batches took.
    pub latency: Recorder,
}

/// Data ranges above this are written back by their own thread before they join a batch, so that a large
/// COMMIT does not delay small ones. Bytes.
const SMALL: u64 = 64 * 1024;

struct Entry {
    request: SyncRequest,
    done: Done,
}

/// Why a request is not durable.
#[derive(Clone, Copy, Debug)]
enum Failed {
    /// A sync failed: the changes that it covered may be lost, and the verifier has changed.
    Sync(Error),
    /// No sync was tried, so nothing is lost. A repetition may succeed later.
    Untried(Error),
}

impl From<Failed> for Error {
    fn from(failed: Failed) -> Self {
        match failed {
            Failed::Sync(error) | Failed::Untried(error) => error,
        }
    }
}

type Synced = std::result::Result<(), Failed>;

#[derive(Default)]
struct Queue {
    waiting: Vec<Entry>,
    leading: bool,
    helper_idle: bool,
    helper_leads: bool,
    closed: bool,
}

/// The number of queues where each inode is synced by itself, and so of syncs in progress at once. A device takes many,
/// and flushes that come together become one.
const LANES: usize = 64;

/// The group commit of one file system.
pub struct Journal {
    order: Order,
    mount: OwnedFd,
    marker: Mutex<(OwnedFd, bool)>,
    /// A commit failed.
    failed: AtomicBool,
    /// One if there is one order.
    lanes: Box<[Mutex<Queue>]>,
    handed: Condvar,
    budget: Budget,
    verifier: Arc<Verifier>,
    deliver: Deliver,
    /// Counters since start.
    pub stats: JournalStats,
}

impl Journal {
    /// Opens the group commit of the file system that `root` is a directory of. Without unnamed files
    /// (O_TMPFILE) the order is not used even if it is promised.
    pub(crate) fn open(
        root: OwnedFd,
        order: Order,
        budget: Budget,
        verifier: Arc<Verifier>,
        deliver: Deliver,
    ) -> Result<Arc<Self>> {
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let (marker, order) = match rustix::fs::openat(&root, c".", flags, Mode::RUSR) {
            Ok(marker) => (marker, order),
            Err(_) => (rustix::io::fcntl_dupfd_cloexec(&root, 3)?, Order::PerObject),
        };
        let lanes = if order == Order::Journal { 1 } else { LANES };
        let journal = Arc::new(Journal {
            order,
            mount: root,
            marker: Mutex::new((marker, false)),
            failed: AtomicBool::new(false),
            lanes: (0..lanes).map(|_| Mutex::default()).collect(),
            handed: Condvar::new(),
            budget,
            verifier,
            deliver,
            stats: JournalStats::default(),
        });
        let helper = journal.clone();
        std::thread::Builder::new()
            .name("forebay-commit".into())
            .spawn(move || helper.help())
            .map_err(|_| Error::Busy)?;
        Ok(journal)
    }

    /// Returns the order that this journal relies on.
    pub fn order(&self) -> Order {
        self.order
    }

    /// Makes `request` durable and then calls `done`; the calling thread may lead the batch.
    pub(crate) fn submit(&self, request: SyncRequest, done: Done) {
        if let Some(data) = &request.data
            && (data.len == 0 || data.len > SMALL)
            && self.order == Order::Journal
            && let Err(failed) = self.written_back(data)
        {
            return self.finish(done, Err(failed));
        }
        let lane = self.lane(&request);
        let mut queue = lane.lock();
        queue.waiting.push(Entry { request, done });
        if !std::mem::replace(&mut queue.leading, true) {
            drop(queue);
            self.lead(lane);
        }
    }

    /// Returns the queue of a request. Changes of one file, or in one directory, have one queue.
    fn lane(&self, request: &SyncRequest) -> &Mutex<Queue> {
        let object = request.data.as_ref().map(|data| &data.object).or(request.metadata.first());
        let hash =
            object.map_or(0, |object| foldhash::fast::FixedState::default().hash_one(Arc::as_ptr(object)));
        &self.lanes[hash as usize % self.lanes.len()]
    }

    /// Makes `request` durable before returning.
    pub(crate) fn wait(&self, request: SyncRequest) -> Result<()> {
        let (send, receive) = std::sync::mpsc::sync_channel(1);
        self.submit(
            request,
            Box::new(move |result| {
                // The receiver below waits for exactly this.
                let _ = send.send(result);
            }),
        );
        receive.recv().unwrap_or(Err(Error::Os(rustix::io::Errno::IO)))
    }

    /// Makes everything done to these files durable; one result each. `errors` of each are
    /// [`Uncommitted::errors`](crate::caches::uncommitted::Uncommitted::errors) from before the first change that
    /// counts.
    pub(crate) fn sync_files(&self, files: &[(Arc<Inode>, u64)]) -> Vec<Result<()>> {
        let data = |(object, errors): &(Arc<Inode>, u64)| Data {
            object: object.clone(),
            offset: 0,
            len: 0,
            errors: *errors,
        };
        if self.order == Order::PerObject {
            let wait = |file: &_| self.wait(SyncRequest { data: Some(data(file)), ..SyncRequest::default() });
            return side_by_side(files, LANES, wait);
        }
        files.iter().for_each(|file| self.start_write_back(&data(file)));
        let wait = |file: &(Arc<Inode>, u64)| {
            let uncommitted = &file.0.uncommitted;
            let fd = file.0.writer(&self.budget, true)?;
            uncommitted.synced(file.1, || {
                let result = sys::sync_file_range(&fd, 0, 0, true).map_err(Error::from);
                // The caller still has the data; clients with unstable data of the file may not have theirs.
                if uncommitted.writes() > 0 { self.or_lost(result) } else { result }
            })
        };
        let mut results: Vec<_> = files.iter().map(wait).collect();
        if let Err(error) = self.wait(SyncRequest::default()) {
            results.fill(Err(error));
        }
        results
    }

    /// Makes every change of names made so far durable.
    pub(crate) fn barrier(&self) -> Result<()> {
        self.stats.barriers.fetch_add(1, Ordering::Relaxed);
        match self.order {
            Order::Journal => self.wait(SyncRequest::default()),
            Order::PerObject => Ok(rustix::fs::syncfs(self.mount.as_fd())?),
        }
    }

    /// Ends the helper thread. Batches in progress complete.
    pub(crate) fn close(&self) {
        self.lanes[0].lock().closed = true;
        self.handed.notify_all();
    }

    /// Leads the batches that no request leads, until the journal is closed.
    fn help(&self) {
        let lane = &self.lanes[0];
        let mut queue = lane.lock();
        while !queue.closed {
            if std::mem::take(&mut queue.helper_leads) {
                drop(queue);
                self.lead(lane);
                queue = lane.lock();
            } else {
                queue.helper_idle = true;
                queue = self.handed.wait(queue);
                queue.helper_idle = false;
            }
        }
    }

    /// Makes batch after batch durable and calls their completions, until nothing waits or the helper thread takes
    /// over.
    fn lead(&self, lane: &Mutex<Queue>) {
        loop {
            let batch = std::mem::take(&mut lane.lock().waiting);
            let begun = Instant::now();
            let results = self.sync(&batch);
            self.stats.latency.record(begun.elapsed());
            let mut queue = lane.lock();
            let more = !queue.waiting.is_empty();
            let handed = more && queue.helper_idle && !queue.helper_leads;
            queue.leading = more;
            queue.helper_leads |= handed;
            drop(queue);
            if handed {
                self.handed.notify_one();
            }
            self.stats.batches.fetch_add(1, Ordering::Relaxed);
            let mut finished = batch.into_iter().zip(results);
            (self.deliver)(&mut || {
                finished.by_ref().for_each(|(Entry { request, done }, result)| {
                    self.finish(done, result);
                    request.data.iter().for_each(|data| data.object.rest());
                    request.metadata.iter().for_each(|object| object.rest());
                });
            });
            if !more || handed {
                return;
            }
        }
    }

    /// Counts an entry of a batch, and completes it with its result.
    fn finish(&self, done: Done, result: Synced) {
        self.stats.operations.fetch_add(1, Ordering::Relaxed);
        if matches!(result, Err(Failed::Sync(_))) {
            self.stats.failures.fetch_add(1, Ordering::Relaxed);
        }
        done(result.map_err(Error::from));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{ExportSpec, HandleKey, Vfs};

    /// The number of files answered for, and true if one of them was much earlier than the rest.
    static ANSWERED: Mutex<(usize, bool)> = Mutex::new((0, false));
    static CHANGED: Condvar = Condvar::new();
    /// The number of batches that have to be delivered at once.
    const AT_ONCE: usize = 8;

    /// Delivers a batch, and waits until [`AT_ONCE`] batches are delivered.
    fn deliver(run: &mut dyn FnMut()) {
        run();
        let mut answered = ANSWERED.lock();
        answered.0 += 1;
        CHANGED.notify_all();
        // Longer than anything takes but a file that is synced after this one.
        let patience = Duration::from_secs(60);
        answered = CHANGED.wait_while_for(answered, patience, |(number, _)| *number < AT_ONCE);
        answered.1 |= answered.0 < AT_ONCE;
    }

    #[test]
    fn files_without_a_common_journal_are_synced_at_the_same_time() {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let verifier = Arc::new(Verifier::open(dir.path()).unwrap());
        let spec = ExportSpec { id: 1, name: "/".to_owned(), path: dir.path().to_owned(), watch: None };
        let budget = Budget::new(1000, 1 << 20);
        let vfs = Vfs::open(&[spec], HandleKey::new(&[1; 16]), verifier, budget, deliver).ok().unwrap();
        let fs = &vfs.filesystems()[0];
        assert_eq!(fs.journal.order(), Order::PerObject);
        let file = |number: usize| {
            let path = dir.path().join(number.to_string());
            std::fs::write(&path, "contents").unwrap();
            let fd = rustix::fs::open(&path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap();
            (fs.adopt(fd).unwrap().0, 0)
        };
        let files: Vec<_> = (0..200).map(file).collect();
        let synced = fs.journal.sync_files(&files);
        assert!(synced.len() == 200 && synced.iter().all(Result::is_ok), "{synced:?}");
        assert!(!ANSWERED.lock().1, "each is synced after the one before it");
    }
}
