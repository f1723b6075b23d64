//! The I/O pool: threads that carry out the engine's requests to a served file system or block device. They work in
//! parallel while one thread waits for all of them: the writes of a destage batch, or the reads that one request needs.
//!
//! Nothing queues here unless the caller asks for that ([`IoPool::queueing`]). If all threads are busy, the requesting
//! thread does the work itself when it waits for the result. So reads of clients never stand behind a destage batch.
//! Each file system or device has threads of its own, so one that does not answer does not block another.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Poll, Waker};

use forebay_common::lock::{Condvar, Mutex};
use forebay_engine::io::Io;

/// Bytes of a thread's stack: nothing here recurses.
const STACK: usize = 256 << 10;

type Job = Box<dyn FnOnce() + Send>;

/// The threads of one file system or device. When the value is dropped, each thread ends after its present work.
pub struct IoPool(Arc<Shared>);

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    work: Condvar,
    /// True if jobs wait for an idle thread.
    queues: bool,
}

#[derive(Default)]
struct State {
    /// Never more than there are threads to take them, unless jobs wait.
    given: VecDeque<Job>,
    idle: usize,
    threads: usize,
    closed: bool,
}

/// The result of a piece of work.
struct Outcome<T> {
    value: Option<T>,
    waker: Option<Waker>,
}

impl Default for IoPool {
    fn default() -> Self {
        Self::new()
    }
}

impl IoPool {
    /// Threads of a file system or device.
    pub const THREADS: usize = 8;

    /// Starts the threads. If the system refuses some, the remaining ones do the work.
    pub fn new() -> Self {
        Self::start(false)
    }

    /// Starts threads for callers that must never wait for a disk, such as event loops. If no thread is idle, the work
    /// waits for one.
    pub fn queueing() -> Self {
        Self::start(true)
    }

    /// Starts the threads. Fewer threads than wanted are a warning only.
    fn start(queues: bool) -> Self {
        let shared = Arc::new(Shared { queues, ..Shared::default() });
        for _ in 0..Self::THREADS {
            let theirs = shared.clone();
            let thread = std::thread::Builder::new().name("forebay-store".into()).stack_size(STACK);
            if let Err(error) = thread.spawn(move || theirs.work()) {
                tracing::warn!(
                    "cannot start a thread for the backing store ({error}): less is done side by side"
                );
                break;
            }
            shared.state.lock().threads += 1;
        }
        IoPool(shared)
    }

    /// Returns the number of threads that wait for work.
    pub fn idle(&self) -> usize {
        self.0.state.lock().idle
    }

    /// Begins `work` on another thread. If none is idle, the thread that first polls the result does the work.
    pub fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Io<T> {
        let outcome = Arc::new(Mutex::new(Outcome { value: None, waker: None }));
        let theirs = outcome.clone();
        let job = Box::new(move || {
            let value = work();
            let waker = {
                let mut outcome = theirs.lock();
                outcome.value = Some(value);
                outcome.waker.take()
            };
            if let Some(waker) = waker {
                waker.wake();
            }
        });
        let mut own = self.0.give(job).err();
        Box::pin(std::future::poll_fn(move |context| {
            if let Some(job) = own.take() {
                job();
            }
            let mut outcome = outcome.lock();
            match outcome.value.take() {
                Some(value) => Poll::Ready(value),
                None => {
                    outcome.waker = Some(context.waker().clone());
                    Poll::Pending
                }
            }
        }))
    }
}

impl Drop for IoPool {
    fn drop(&mut self) {
        // Not waited for: the last owner may be a job.
        self.0.state.lock().closed = true;
        self.0.work.notify_all();
    }
}

impl Shared {
    /// Gives a job to an idle thread, or back.
    fn give(&self, job: Job) -> Result<(), Job> {
        let mut state = self.state.lock();
        let is_free = state.given.len() < state.idle || (self.queues && state.threads > 0);
        if state.closed || !is_free {
            return Err(job);
        }
        state.given.push_back(job);
        drop(state);
        self.work.notify_one();
        Ok(())
    }

    /// Carries out jobs until the pool is closed and no job is left.
    fn work(&self) {
        let mut state = self.state.lock();
        loop {
            state.idle += 1;
            let job = loop {
                if let Some(job) = state.given.pop_front() {
                    break job;
                }
                if state.closed {
                    return;
                }
                state = self.work.wait(state);
            };
            state.idle -= 1;
            drop(state);
            job();
            state = self.state.lock();
        }
    }
}
