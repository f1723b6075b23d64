//! The server's own calls to clients: a queue, and the threads that make the calls.
//!
//! A call may wait for a client that does not answer. So it has a thread of its own, and a host has one call at a
//! time: a silent host occupies one thread. A thread that takes a call leaves a thread behind that waits for the next
//! one, up to a bound.

use std::collections::{BTreeMap, HashSet};
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_common::lock::{Condvar, Mutex};

use super::dial::{self, Failure};

/// Threads at most: calls that wait for an answer at once.
const MAX_THREADS: usize = 16;
/// Answers of asynchronous procedures that wait for a thread. Further ones are dropped: the client asks again.
const MAX_ANSWERS: usize = 4096;
/// The time for which a thread without a call stays.
const IDLE: Duration = Duration::from_secs(30);
/// The pause after the first attempt. Each further pause is twice as long.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// The longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// A call to a client.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    pub(crate) to: IpAddr,
    pub(crate) program: u32,
    pub(crate) version: u32,
    pub(crate) procedure: u32,
    pub(crate) args: Vec<u8>,
    pub(crate) purpose: Purpose,
}

/// The reason for a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// The answer of an asynchronous procedure. It is sent once.
    Answer,
    /// GRANTED for a grant of the clients' state.
    Granted(u64),
    /// SM_NOTIFY.
    Notify,
    /// No call: the host was told, and the grace period in which it reclaims its locks ends.
    EndOfGrace,
}

/// The attempts at a call so far.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attempts {
    /// The time of the first attempt.
    pub(crate) since: Instant,
    /// The number of attempts that have ended.
    pub(crate) made: u32,
    /// True if an attempt without an answer may have reached the client.
    pub(crate) may_have_arrived: bool,
}

/// The judgement of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Then {
    /// The call is over.
    Done,
    /// The call is repeated after a pause.
    Again,
    /// The call is over, and [`Purpose::EndOfGrace`] follows after this time.
    EndOfGraceIn(Duration),
}

/// The user of the queue.
pub(crate) trait Judge: Send + Sync {
    /// Returns false if nobody needs the call any more.
    fn is_wanted(&self, purpose: Purpose) -> bool;
    /// Takes the result of an attempt.
    fn judge(&self, job: &Job, attempts: Attempts, result: Result<Vec<u8>, Failure>) -> Then;
    /// Takes the end of the grace period in which the host reclaimed its locks.
    fn end_of_grace(&self, to: IpAddr);
}

#[derive(Default)]
struct Queue {
    /// By the time at which the call is due, and a number.
    due: BTreeMap<(Instant, u64), (Job, Attempts)>,
    /// Hosts to which a call is in progress.
    busy: HashSet<IpAddr>,
    next: u64,
    answers: usize,
    threads: usize,
    idle: usize,
    is_stopped: bool,
}

/// The queue.
pub(crate) struct Calls {
    queue: Mutex<Queue>,
    changed: Condvar,
    /// The server's addresses: a call comes from the one of the client's family that is not a wildcard.
    sources: Vec<IpAddr>,
}

impl Calls {
    pub(super) fn new(sources: Vec<IpAddr>) -> Self {
        Calls { queue: Mutex::default(), changed: Condvar::new(), sources }
    }

    /// Starts the first thread.
    pub(super) fn start(self: &Arc<Self>, judge: Arc<dyn Judge>) -> io::Result<()> {
        self.queue.lock().threads += 1;
        self.spawn(judge)
    }

    /// Starts a thread that makes calls to clients. The caller has counted the thread already.
    fn spawn(self: &Arc<Self>, judge: Arc<dyn Judge>) -> io::Result<()> {
        let calls = self.clone();
        let thread = std::thread::Builder::new().name("nlm-calls".into());
        thread.spawn(move || calls.work(&judge)).map(drop)
    }

    /// Adds a call. Never waits.
    pub(super) fn add(&self, job: Job) {
        let mut queue = self.queue.lock();
        if job.purpose == Purpose::Answer {
            if queue.answers >= MAX_ANSWERS {
                return;
            }
            queue.answers += 1;
        }
        let now = Instant::now();
        queue.put(now, job, Attempts { since: now, made: 0, may_have_arrived: false });
        drop(queue);
        self.changed.notify_all();
    }

    /// Ends the threads. A call in progress is not waited for.
    pub(super) fn stop(&self) {
        self.queue.lock().is_stopped = true;
        self.changed.notify_all();
    }

    /// Makes the calls that are due, one after another, and gives each result to the judge. Returns when the queue
    /// needs this thread no more. A host gets one call at a time.
    fn work(self: &Arc<Self>, judge: &Arc<dyn Judge>) {
        while let Some((job, mut attempts)) = self.take(judge) {
            let mut then = Then::Done;
            if job.purpose == Purpose::EndOfGrace {
                judge.end_of_grace(job.to);
            } else if judge.is_wanted(job.purpose) {
                let result = dial::call(&job, self.source(job.to));
                let was_sent = result.as_ref().err() == Some(&Failure::Unanswered);
                then = judge.judge(&job, attempts, result);
                attempts.made += 1;
                attempts.may_have_arrived |= was_sent;
            }
            let mut queue = self.queue.lock();
            queue.busy.remove(&job.to);
            match then {
                Then::Again => queue.put(Instant::now() + pause(attempts.made), job, attempts),
                Then::EndOfGraceIn(left) => {
                    queue.put(Instant::now() + left, Job { purpose: Purpose::EndOfGrace, ..job }, attempts);
                }
                Then::Done if job.purpose == Purpose::Answer => queue.answers -= 1,
                Then::Done => {}
            }
            drop(queue);
            self.changed.notify_all();
        }
    }

    /// Waits for a call that is due. Returns `None` if this thread is not needed any more.
    fn take(self: &Arc<Self>, judge: &Arc<dyn Judge>) -> Option<(Job, Attempts)> {
        let mut queue = self.queue.lock();
        let until = Instant::now() + IDLE;
        loop {
            let now = Instant::now();
            if queue.is_stopped || now >= until && queue.idle > 0 {
                queue.threads -= 1;
                return None;
            }
            if let Some(taken) = queue.take(now) {
                let needs_another = queue.idle == 0 && queue.threads < MAX_THREADS;
                queue.threads += usize::from(needs_another);
                drop(queue);
                if needs_another && self.spawn(judge.clone()).is_err() {
                    self.queue.lock().threads -= 1;
                }
                return Some(taken);
            }
            let limit = queue.first_due().map_or(IDLE, |due| due.saturating_duration_since(now)).min(IDLE);
            queue.idle += 1;
            queue = self.changed.wait_while_for(queue, limit, |queue| {
                !queue.is_stopped && queue.first_due().is_none_or(|due| due > Instant::now())
            });
            queue.idle -= 1;
        }
    }

    /// Returns the server's address for calls to a client, or `None` if the kernel has to choose one. Clients check
    /// that calls come from the address that they know.
    fn source(&self, to: IpAddr) -> Option<IpAddr> {
        let mut sources = self.sources.iter().copied();
        sources.find(|source| source.is_ipv4() == to.is_ipv4() && !source.is_unspecified())
    }
}

impl Queue {
    /// Queues a call for the time `due`. Calls of one moment keep their order.
    fn put(&mut self, due: Instant, job: Job, attempts: Attempts) {
        self.next += 1;
        self.due.insert((due, self.next), (job, attempts));
    }

    /// Takes the first call that is due, to a host to which no call is in progress.
    fn take(&mut self, now: Instant) -> Option<(Job, Attempts)> {
        let ready = self.due.range(..=(now, u64::MAX));
        let key = *ready.into_iter().find(|(_, (job, _))| !self.busy.contains(&job.to))?.0;
        let taken = self.due.remove(&key)?;
        self.busy.insert(taken.0.to);
        Some(taken)
    }

    /// Returns the time of the first call that no call in progress holds up.
    fn first_due(&self) -> Option<Instant> {
        self.due.iter().find(|(_, (job, _))| !self.busy.contains(&job.to)).map(|(key, _)| key.0)
    }
}

/// Returns the pause after an attempt; `made` counts it.
fn pause(made: u32) -> Duration {
    let doubled = FIRST_PAUSE.saturating_mul(1 << made.saturating_sub(1).min(8));
    doubled.min(LONGEST_PAUSE)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(to: [u8; 4], purpose: Purpose) -> Job {
        Job { to: to.into(), program: 1, version: 1, procedure: 1, args: Vec::new(), purpose }
    }

    #[test]
    fn pauses_double_up_to_a_bound() {
        let seconds: Vec<_> = (1..9).map(|made| pause(made).as_secs()).collect();
        assert_eq!(seconds, [1, 2, 4, 8, 16, 30, 30, 30]);
        assert_eq!(pause(u32::MAX), LONGEST_PAUSE);
    }

    #[test]
    fn a_host_has_one_call_at_a_time_and_holds_up_no_other_host() {
        let calls = Calls::new(Vec::new());
        for (host, ticket) in [(1, 1), (1, 2), (2, 3)] {
            calls.add(job([10, 0, 0, host], Purpose::Granted(ticket)));
        }
        let mut queue = calls.queue.lock();
        let now = Instant::now();
        let mut take = || queue.take(now).map(|(job, _)| job.purpose);
        assert_eq!(take(), Some(Purpose::Granted(1)));
        assert_eq!(take(), Some(Purpose::Granted(3)));
        assert_eq!(take(), None, "a call to the first host is in progress");
        assert_eq!(queue.first_due(), None);
        queue.busy.clear();
        assert_eq!(queue.take(now).map(|(job, _)| job.purpose), Some(Purpose::Granted(2)));
    }

    #[test]
    fn answers_are_bounded_and_grants_are_not_dropped() {
        let calls = Calls::new(Vec::new());
        for _ in 0..MAX_ANSWERS + 10 {
            calls.add(job([10, 0, 0, 1], Purpose::Answer));
        }
        assert_eq!(calls.queue.lock().due.len(), MAX_ANSWERS);
        calls.add(job([10, 0, 0, 1], Purpose::Granted(1)));
        assert_eq!(calls.queue.lock().due.len(), MAX_ANSWERS + 1);
    }

    #[test]
    fn a_call_comes_from_the_address_that_clients_know() {
        let address = |text: &str| text.parse::<IpAddr>().unwrap();
        let calls = Calls::new(["0.0.0.0", "10.0.0.1", "::1"].map(address).to_vec());
        assert_eq!(calls.source(address("10.0.0.9")), Some(address("10.0.0.1")));
        assert_eq!(calls.source(address("::9")), Some(address("::1")));
        assert_eq!(Calls::new(vec![address("::")]).source(address("::9")), None);
    }
}
