//! Copies that go on after the reply to their COPY: the threads, the pieces, and the end (RFC 7862 section 4).
//!
//! A thread copies a piece of one copy, makes it durable, and turns to the next copy. So copies share the threads
//! fairly, and no request of a client waits for a copy: the workers have nothing to do with them.
//!
//! | a piece | then |
//! |---|---|
//! | was copied, and more is left | the copy waits for its next turn |
//! | was the last, or met the end of the source | CB_OFFLOAD states the number of bytes |
//! | failed, or did not become durable | CB_OFFLOAD states the error |
//! | may not begin: the client has closed one of the files | CB_OFFLOAD states NFS4ERR_BAD_STATEID |
//! | may not begin: the exports have new rules | CB_OFFLOAD states the bytes so far: the client asks for the rest |
//! | may not begin: the copy was cancelled, or the client is gone | nobody is told |

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use forebay_clientstate::{CopyEnd, CopyProgress, FileKey, StateId};
use forebay_common::lock::{Condvar, Mutex};
use forebay_vfs::{CopyRange, DataCaller, DataCheck, Error};
use forebay_wire::nfs4::Nfsstat4;

use super::convert::{state_status, status};
use crate::caller::At;
use crate::shared::Shared;

/// Threads that copy. Two keep a disk busy while the other's piece becomes durable.
const THREADS: usize = 2;
/// The time after which a thread begins no further MiB of a piece.
const TURN: Duration = Duration::from_millis(250);
/// The most bytes of a piece, which become durable together.
const PIECE: u64 = 64 << 20;

/// A copy in the queue.
pub(super) struct Job {
    pub(super) stateid: StateId,
    pub(super) progress: Arc<CopyProgress>,
    pub(super) from: At,
    pub(super) to: At,
    pub(super) source_offset: u64,
    /// The key of the file that is written.
    pub(super) target: FileKey,
    pub(super) offset: u64,
    pub(super) len: u64,
    /// The write verifier from before the first byte.
    pub(super) verifier: [u8; 8],
    /// The generation of the exports' rules that COPY was judged by.
    pub(super) rules: u64,
    /// True while all pieces are on stable storage.
    pub(super) is_stable: bool,
}

/// The copies that wait for a thread, and those that a thread works on.
#[derive(Default)]
struct Jobs {
    waiting: VecDeque<Job>,
    running: Vec<StateId>,
    is_stopped: bool,
}

/// The queue of copies. The bound on its length is that on copies in `clientstate::Limits`.
struct Queue {
    jobs: Mutex<Jobs>,
    changed: Condvar,
}

impl Queue {
    /// Waits for a copy, and marks it as running. Returns `None` once the copier is stopped.
    fn take(&self) -> Option<Job> {
        let mut jobs = self.jobs.lock();
        while !jobs.is_stopped {
            if let Some(job) = jobs.waiting.pop_front() {
                jobs.running.push(job.stateid);
                return Some(job);
            }
            jobs = self.changed.wait(jobs);
        }
        None
    }

    /// Ends the turn of a copy. `next` is the copy if more is left.
    fn put_back(&self, stateid: StateId, next: Option<Job>) {
        let mut jobs = self.jobs.lock();
        jobs.running.retain(|running| *running != stateid);
        if !jobs.is_stopped {
            jobs.waiting.extend(next);
        }
        self.changed.notify_all();
    }

    fn is_stopped(&self) -> bool {
        self.jobs.lock().is_stopped
    }

    /// Makes every thread of the copier end after its present piece, and drops the copies that wait. The next start
    /// tells their clients.
    fn stop(&self) {
        let mut jobs = self.jobs.lock();
        jobs.is_stopped = true;
        jobs.waiting.clear();
        self.changed.notify_all();
    }
}

/// The threads that copy, and their queue.
pub(crate) struct Copier {
    queue: Arc<Queue>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Copier {
    /// Returns a copier without threads.
    pub(super) fn new() -> Self {
        let queue = Arc::new(Queue { jobs: Mutex::default(), changed: Condvar::new() });
        Copier { queue, threads: Mutex::default() }
    }

    /// Starts the threads.
    pub(crate) fn start(&self, shared: &Arc<Shared>) -> std::io::Result<()> {
        for _ in 0..THREADS {
            let (weak, queue) = (Arc::downgrade(shared), self.queue.clone());
            let thread = std::thread::Builder::new().name("forebay-copy".into());
            self.threads.lock().push(thread.spawn(move || work(&weak, &queue))?);
        }
        Ok(())
    }

    /// Begins a copy. After [`Copier::stop`] the copy is dropped: the next start tells its client.
    pub(super) fn begin(&self, job: Job) {
        let mut jobs = self.queue.jobs.lock();
        if !jobs.is_stopped {
            jobs.waiting.push_back(job);
            self.queue.changed.notify_all();
        }
    }

    /// Waits until no thread works on a copy that nobody wants any more. That takes at most a MiB and a sync.
    pub(super) fn wait_for_end(&self, stateid: StateId) {
        let mut jobs = self.queue.jobs.lock();
        jobs.waiting.retain(|job| job.stateid.other != stateid.other);
        while jobs.running.iter().any(|running| running.other == stateid.other) {
            jobs = self.queue.changed.wait(jobs);
        }
    }

    /// Ends the threads after the MiB that they copy now. Copies that are not complete are dropped.
    pub(crate) fn stop(&self) {
        self.queue.stop();
        for thread in std::mem::take(&mut *self.threads.lock()) {
            // A panic there has said so itself.
            let _ = thread.join();
        }
    }
}

impl Drop for Copier {
    /// Lets the threads end. One of them may be the thread that drops the copier, so nobody waits for them.
    fn drop(&mut self) {
        self.queue.stop();
    }
}

/// Copies pieces until the copier is stopped.
fn work(shared: &Weak<Shared>, queue: &Queue) {
    while let Some(job) = queue.take() {
        let stateid = job.stateid;
        let next = shared.upgrade().and_then(|shared| shared.copy_piece(job, || queue.is_stopped()));
        queue.put_back(stateid, next);
    }
}

impl Shared {
    /// Copies a piece, and makes it durable. Returns the copy if more is left.
    fn copy_piece(&self, mut job: Job, is_stopped: impl Fn() -> bool) -> Option<Job> {
        let server = self.nfs4.as_ref()?;
        // The client's open keeps delegations of other clients away. The result does so if the open ends meanwhile.
        let _changing = server.counters.begin_change(job.target.key());
        let goes_on = server.state().copy_goes_on(job.stateid);
        if job.progress.is_unwanted() {
            return None;
        }
        if let Err(error) = goes_on {
            return self.end_copy(job, state_status(error));
        }
        if self.rules.generation() != job.rules {
            return self.end_copy(job, Nfsstat4::Delay);
        }
        let (done, begun) = (job.progress.copied(), Instant::now());
        let range = CopyRange {
            source: &job.from.target,
            reader: DataCaller::new(&job.from.caller.cred, DataCheck::Granted),
            source_offset: job.source_offset + done,
            target: &job.to.target,
            writer: DataCaller::new(&job.to.caller.cred, DataCheck::Granted),
            offset: job.offset + done,
            len: job.len - done,
        };
        let changed = self.vfs.copy(&range, |len| {
            len < PIECE && begun.elapsed() < TURN && !job.progress.is_unwanted() && !is_stopped()
        });
        let durable = match changed.intent {
            Some(request) => {
                let (sender, receiver) = mpsc::channel();
                let done = Box::new(move |result| _ = sender.send(result));
                self.vfs.commit(&job.to.target.export, request, &[], done);
                receiver.recv().unwrap_or(Err(Error::Busy))
            }
            None => Ok(()),
        };
        let copied = match (changed.result, durable) {
            (Ok(copied), Ok(())) => copied,
            (Err(error), _) | (_, Err(error)) => return self.end_copy(job, status(error)),
        };
        self.count_copied(&job.from, &job.to, copied.len);
        job.progress.add(copied.len);
        job.is_stable &= copied.stable;
        let is_complete = copied.len == 0 || done + copied.len >= job.len;
        if is_complete { self.end_copy(job, Nfsstat4::Ok) } else { Some(job) }
    }

    /// Ends a copy, and tells its client.
    ///
    /// A client that is to try again later learns of the bytes copied instead, if there are any: it asks for the rest.
    fn end_copy(&self, job: Job, status: Nfsstat4) -> Option<Job> {
        let server = self.nfs4.as_ref()?;
        let is_short = status == Nfsstat4::Delay && job.progress.copied() > 0;
        let end = CopyEnd {
            status: if is_short { Nfsstat4::Ok } else { status } as u32,
            is_stable: job.is_stable,
            verifier: job.verifier,
        };
        server.without_request(&self.vfs, |state, _, fx| state.end_copy(job.stateid, end, fx));
        None
    }

    /// Counts bytes that were copied within the server as read and as written.
    pub(super) fn count_copied(&self, from: &At, to: &At, len: u64) {
        self.stats.bytes_read.fetch_add(len, Ordering::Relaxed);
        self.stats.bytes_written.fetch_add(len, Ordering::Relaxed);
        from.caller.client.bytes_read.fetch_add(len, Ordering::Relaxed);
        to.caller.client.bytes_written.fetch_add(len, Ordering::Relaxed);
    }
}
