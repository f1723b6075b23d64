//! Threads for requests that have to wait for the disk.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread::{JoinHandle, Thread};
use std::time::Duration;

use forebay_common::lock::Mutex;

use crate::fair_queue::FairQueue;
use crate::spinner::Spinner;

/// A pool of blocking threads that work through a bounded queue of jobs, in which client addresses take turns. The jobs
/// of one address are first in, first out.
///
/// At most one sleeper is woken at a time, and the woken worker wakes the next if jobs remain. So submitting a batch
/// costs the caller one wake-up. At most one idle worker polls for a moment before it sleeps. The last worker to sleep
/// is woken first: its processor's caches are warm, and it knows whether polling pays.
pub struct Workers<J> {
    shared: Arc<Shared<J>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

struct Shared<J> {
    queue: Mutex<Queue<J>>,
    /// The number of queued jobs, which the polling worker reads without the lock.
    queued: AtomicUsize,
    limit: AtomicUsize,
    handle: Box<dyn Fn(J) + Send + Sync>,
}

struct Queue<J> {
    jobs: FairQueue<J>,
    sleeping: Vec<Thread>,
    /// True while a worker is polling or just woken, so that no other worker needs to be woken.
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
        let queue = Queue { jobs: FairQueue::new(), sleeping: Vec::new(), coming: false, stopping: false };
        let shared = Arc::new(Shared {
            queue: Mutex::new(queue),
            queued: AtomicUsize::new(0),
            limit: AtomicUsize::new(limit),
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

    /// Queues a job of the client at `address`, which works on `bytes` bytes. Returns the job if the queue is full or
    /// the pool has been stopped. A full queue has room for an address with less than its share of the queue.
    pub fn submit(&self, address: IpAddr, bytes: usize, job: J) -> Result<(), J> {
        self.submit_up_to(self.limit(), address, bytes, job)
    }

    /// Queues a job that has to run, even if the queue is full. The caller bounds the number of such jobs. Returns the
    /// job if the pool has been stopped.
    pub fn submit_beyond(&self, address: IpAddr, bytes: usize, job: J) -> Result<(), J> {
        self.submit_up_to(usize::MAX, address, bytes, job)
    }

    /// Queues a job if the queue is shorter than `limit`, or the address has less than its share of it. Wakes a
    /// worker that sleeps.
    fn submit_up_to(&self, limit: usize, address: IpAddr, bytes: usize, job: J) -> Result<(), J> {
        let mut queue = self.shared.queue.lock();
        if queue.stopping || !queue.jobs.has_room(address, limit) {
            return Err(job);
        }
        queue.jobs.push(address, bytes, job);
        self.shared.queued.store(queue.jobs.len(), Relaxed);
        let called = queue.call_one();
        drop(queue);
        if let Some(called) = called {
            called.unpark();
        }
        Ok(())
    }

    /// Returns the number of jobs that may wait.
    pub fn limit(&self) -> usize {
        self.shared.limit.load(Relaxed)
    }

    /// Changes the number of jobs that may wait. Jobs that wait already stay.
    pub fn set_limit(&self, limit: usize) {
        self.shared.limit.store(limit, Relaxed);
    }

    /// Returns the number of waiting jobs.
    pub fn queued(&self) -> usize {
        self.shared.queued.load(Relaxed)
    }

    /// Takes no more jobs, finishes the queued ones, and ends the threads. Must not be called by a job.
    pub fn stop(&self) {
        let mut queue = self.shared.queue.lock();
        queue.stopping = true;
        let sleeping = std::mem::take(&mut queue.sleeping);
        drop(queue);
        sleeping.iter().for_each(Thread::unpark);
        for thread in std::mem::take(&mut *self.threads.lock()) {
            // A worker that panicked has already ended.
            let _ = thread.join();
        }
    }
}

impl<J> Queue<J> {
    /// Returns the sleeper that has to be woken for the queued jobs.
    fn call_one(&mut self) -> Option<Thread> {
        if self.jobs.len() == 0 || self.coming {
            return None;
        }
        let called = self.sleeping.pop();
        self.coming = called.is_some();
        called
    }
}

impl<J> Shared<J> {
    /// Takes jobs until the pool stops. Without jobs the thread polls for a moment, and then sleeps.
    fn work(&self, mut spinner: Spinner) {
        // True if this worker is the one that `coming` stands for.
        let mut called = false;
        loop {
            let mut queue = self.queue.lock();
            if called {
                queue.coming = false;
                called = false;
            }
            if let Some(job) = queue.jobs.pop() {
                self.queued.store(queue.jobs.len(), Relaxed);
                let next = queue.call_one();
                drop(queue);
                if let Some(next) = next {
                    next.unpark();
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
                if queue.jobs.len() > 0 || queue.stopping {
                    continue;
                }
            }
            let thread = std::thread::current();
            queue.sleeping.push(thread.clone());
            drop(queue);
            self.sleep(&thread);
            // A worker woken for a job has `coming` set. A worker woken to stop does not depend on `coming`.
            called = true;
        }
    }

    /// Waits until the calling thread `thread` is no longer among the sleepers: it may be unparked for other reasons.
    fn sleep(&self, thread: &Thread) {
        loop {
            std::thread::park();
            if self.queue.lock().sleeping.iter().all(|sleeper| sleeper.id() != thread.id()) {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    const ONE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));
    const OTHER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 2));

    #[test]
    fn every_job_is_done_once_whoever_submits_it() {
        for busy_poll in [Duration::ZERO, Duration::from_micros(50)] {
            let (done, results) = mpsc::channel();
            let workers =
                Workers::new(4, 100_000, busy_poll, move |job: u32| done.send(job).unwrap()).unwrap();
            std::thread::scope(|scope| {
                for part in 0..4 {
                    let workers = &workers;
                    scope.spawn(move || {
                        for job in 0..5000 {
                            workers.submit(ONE, 0, part * 5000 + job).unwrap();
                            if job % 64 == 0 {
                                std::thread::yield_now();
                            }
                        }
                    });
                }
            });
            workers.stop();
            let mut results: Vec<u32> = results.iter().take(20_000).collect();
            results.sort_unstable();
            assert!(results.iter().copied().eq(0..20_000));
        }
    }

    #[test]
    fn a_full_queue_takes_only_jobs_that_have_to_run() {
        let (go, wait) = mpsc::channel::<()>();
        let wait = Mutex::new(wait);
        let (done, results) = mpsc::channel();
        let workers = Workers::new(1, 1, Duration::ZERO, move |job: u32| {
            let _ = wait.lock().recv();
            done.send(job).unwrap();
        })
        .unwrap();
        workers.submit(ONE, 0, 1).unwrap();
        while workers.queued() > 0 {
            std::thread::yield_now();
        }
        workers.submit(ONE, 0, 2).unwrap();
        assert_eq!(workers.submit(ONE, 0, 3), Err(3));
        workers.submit_beyond(ONE, 0, 4).unwrap();
        drop(go);
        workers.stop();
        assert_eq!(results.iter().take(3).collect::<Vec<_>>(), [1, 2, 4]);
        assert_eq!(workers.submit_beyond(ONE, 0, 5), Err(5));
    }

    #[test]
    fn one_client_s_jobs_are_done_by_one_worker() {
        let (done, results) = mpsc::channel();
        let workers = Workers::new(4, 8, Duration::ZERO, move |()| {
            done.send(std::thread::current().id()).unwrap();
        })
        .unwrap();
        let who = || {
            while workers.shared.queue.lock().sleeping.len() < 4 {
                std::thread::yield_now();
            }
            workers.submit(ONE, 0, ()).unwrap();
            results.recv().unwrap()
        };
        let first = who();
        assert!((0..20).all(|_| who() == first));
        workers.stop();
    }

    #[test]
    fn all_workers_get_to_work_on_one_batch() {
        let barrier = Arc::new(std::sync::Barrier::new(8));
        let inner = Arc::clone(&barrier);
        let workers = Workers::new(8, 8, Duration::from_micros(50), move |()| {
            inner.wait();
        })
        .unwrap();
        // The jobs end only when all eight run at once.
        (0..8).for_each(|_| workers.submit(ONE, 0, ()).unwrap());
        workers.stop();
    }

    #[test]
    fn a_full_queue_gives_the_job_back_and_stop_finishes_the_queued() {
        let gate = Arc::new(std::sync::Barrier::new(2));
        let (done, results) = mpsc::channel();
        let inner = Arc::clone(&gate);
        let workers = Workers::new(1, 2, Duration::ZERO, move |job: u32| {
            inner.wait();
            done.send(job).unwrap();
        })
        .unwrap();
        workers.submit(ONE, 0, 0).unwrap();
        while workers.queued() > 0 {
            std::thread::yield_now();
        }
        workers.submit(ONE, 0, 1).unwrap();
        workers.submit(ONE, 0, 2).unwrap();
        assert_eq!(workers.submit(ONE, 0, 3), Err(3));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..3 {
                    gate.wait();
                }
            });
            workers.stop();
        });
        assert_eq!(workers.submit(ONE, 0, 4), Err(4));
        assert!(results.iter().take(3).eq([0, 1, 2]));
    }
    #[test]
    fn a_job_waits_for_one_of_the_thousand_jobs_of_another_client() {
        let (go, gate) = mpsc::channel::<()>();
        let gate = Mutex::new(gate);
        let (done, results) = mpsc::channel();
        let workers = Workers::new(1, 1000, Duration::ZERO, move |job: u32| {
            let _ = gate.lock().recv();
            done.send(job).unwrap();
        })
        .unwrap();
        workers.submit(ONE, 0, 0).unwrap();
        while workers.queued() > 0 {
            std::thread::yield_now();
        }
        (1..=1000).for_each(|job| workers.submit(ONE, 0, job).unwrap());
        assert_eq!(workers.submit(ONE, 0, 1001), Err(1001), "the queue is full");
        workers.submit(OTHER, 0, 7777).unwrap();
        drop(go);
        workers.stop();
        let order: Vec<u32> = results.iter().take(1002).collect();
        assert_eq!(order.len(), 1002);
        assert!(order[..3].contains(&7777), "{:?}", &order[..10]);
        assert!(order.iter().filter(|job| **job != 7777).is_sorted());
    }
}
