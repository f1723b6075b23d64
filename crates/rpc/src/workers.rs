//! Threads for requests that have to wait for the disk.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use crate::spinner::Spinner;

/// A pool of blocking threads that work through a bounded first-in first-out queue of jobs.
///
/// At most one sleeper is woken at a time, and the woken one wakes the next if jobs remain: submitting a batch
/// costs the caller one wake-up. At most one idle worker polls for a moment before it sleeps.
pub struct Workers<J> {
    shared: Arc<Shared<J>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

struct Shared<J> {
    queue: Mutex<Queue<J>>,
    more: Condvar,
    /// Jobs queued, for the poller to look at without the lock.
    queued: AtomicUsize,
    limit: usize,
    handle: Box<dyn Fn(J) + Send + Sync>,
}

struct Queue<J> {
    jobs: VecDeque<J>,
    sleeping: usize,
    /// A worker is on its way to the queue, polling or just woken: no other needs to be woken.
    coming: bool,
    stopping: bool,
}

impl<J: Send + 'static> Workers<J> {
    /// Starts `threads` threads that call `handle` for each job. Up to `limit` jobs wait; an idle worker polls up
    /// to `busy_poll` before it sleeps.
    pub fn new(
        threads: usize,
        limit: usize,
        busy_poll: Duration,
        handle: impl Fn(J) + Send + Sync + 'static,
    ) -> std::io::Result<Self> {
        let queue = Queue { jobs: VecDeque::new(), sleeping: 0, coming: false, stopping: false };
        let shared = Arc::new(Shared {
            queue: Mutex::new(queue),
            more: Condvar::new(),
            queued: AtomicUsize::new(0),
            limit,
            handle: Box::new(handle),
        });
        let workers = Self { shared, threads: Mutex::new(Vec::new()) };
        for index in 0..threads.max(1) {
            let shared = Arc::clone(&workers.shared);
            let thread = std::thread::Builder::new().name(format!("worker-{index}"));
            workers.threads.lock().push(thread.spawn(move || shared.work(Spinner::new(busy_poll)))?);
        }
        Ok(workers)
    }

    /// Queues a job; gives it back if the queue is full or the pool has been stopped.
    pub fn submit(&self, job: J) -> Result<(), J> {
        let mut queue = self.shared.queue.lock();
        if queue.stopping || queue.jobs.len() >= self.shared.limit {
            return Err(job);
        }
        queue.jobs.push_back(job);
        self.shared.queued.store(queue.jobs.len(), Relaxed);
        let wake = queue.call_one();
        drop(queue);
        if wake {
            self.shared.more.notify_one();
        }
        Ok(())
    }

    /// Jobs waiting now.
    pub fn queued(&self) -> usize {
        self.shared.queued.load(Relaxed)
    }

    /// Takes no more jobs, finishes those queued, and ends the threads. Not to be called by a job.
    pub fn stop(&self) {
        self.shared.queue.lock().stopping = true;
        self.shared.more.notify_all();
        for thread in std::mem::take(&mut *self.threads.lock()) {
            // A worker that panicked is gone already.
            let _ = thread.join();
        }
    }
}

impl<J> Queue<J> {
    /// Whether a sleeper has to be woken for the jobs there are.
    fn call_one(&mut self) -> bool {
        let wake = !self.jobs.is_empty() && self.sleeping > 0 && !self.coming;
        self.coming |= wake;
        wake
    }
}

impl<J> Shared<J> {
    fn work(&self, mut spinner: Spinner) {
        // Whether this worker is the one that `coming` stands for.
        let mut called = false;
        loop {
            let mut queue = self.queue.lock();
            if called {
                queue.coming = false;
                called = false;
            }
            if let Some(job) = queue.jobs.pop_front() {
                self.queued.store(queue.jobs.len(), Relaxed);
                let wake = queue.call_one();
                drop(queue);
                if wake {
                    self.more.notify_one();
                }
                (self.handle)(job);
                continue;
            }
            if queue.stopping {
                return;
            }
            if !queue.coming {
                queue.coming = true;
                called = true;
                drop(queue);
                if spinner.spin(|| self.queued.load(Relaxed) > 0) {
                    continue;
                }
                queue = self.queue.lock();
                queue.coming = false;
                called = false;
                if !queue.jobs.is_empty() || queue.stopping {
                    continue;
                }
            }
            queue.sleeping += 1;
            self.more.wait(&mut queue);
            queue.sleeping -= 1;
            // Woken by a submit, which set `coming`, or to stop, and then it does not matter.
            called = true;
        }
    }
}
