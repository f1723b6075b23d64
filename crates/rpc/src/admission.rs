//! Bounds on the requests in flight of each client address, while several addresses are active.
//!
//! A request that an event loop cannot answer at once waits for disks, cache devices, log frames and workers. Their
//! queues are not ordered by address: a request waits there for all requests that came before. Therefore the event
//! loops bound how many requests of an address are in these queues. The remaining requests of the address wait in its
//! sockets, where they delay no other address.
//!
//! An address alone has no bound. A review sets the bound of all addresses to the number that the address with the
//! fewest requests needs, or to a share of the [shared bound](SharedBound) if that is more.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};
use std::time::Duration;

use forebay_common::lock::Mutex;

use crate::shared_bound::{Begun, LEAST, SharedBound, Times};

/// The time between two reviews.
pub(crate) const REVIEW: Duration = Duration::from_millis(50);
/// The number of reviews without a request after which an address is inactive.
const PATIENCE: usize = 4;
/// The value of a bound that bounds nothing.
pub(crate) const UNBOUNDED: usize = usize::MAX;

/// The requests in flight of one address, and its connections that wait until these become fewer.
pub(crate) struct Admission {
    inflight: AtomicUsize,
    bound: AtomicUsize,
    waiting: Mutex<VecDeque<Waiter>>,
    /// True if `waiting` may have an element.
    has_waiting: AtomicBool,
    /// The most requests in flight since the last review.
    peak: AtomicUsize,
    /// True if a request has arrived since the last review.
    asked: AtomicBool,
    /// True if a request was answered since the last review.
    answered: AtomicBool,
    /// True if a connection had to wait since the last review.
    held: AtomicBool,
    /// The number of reviews since an answer, while connections waited.
    unanswered: AtomicUsize,
    /// The number of reviews since the last request.
    quiet: AtomicUsize,
    /// Requests beyond the bound of all addresses, for an address none of whose requests was answered.
    extra: AtomicUsize,
    /// The times of its requests in flight, while it has few and other addresses have many.
    times: Times,
}

/// An event loop with connections that wait.
pub(crate) trait Resume: Send + Sync {
    /// Has the loop look at the connection `token` again.
    fn resume(&self, token: u64);
}

/// A connection that waits.
struct Waiter {
    home: Arc<dyn Resume>,
    token: u64,
}

impl Admission {
    /// Returns the state of an address that has sent no request.
    pub(crate) fn new() -> Self {
        let [inflight, peak, quiet, unanswered, extra] = std::array::from_fn(|_| AtomicUsize::new(0));
        let [has_waiting, asked, answered, held] = std::array::from_fn(|_| AtomicBool::new(false));
        let bound = AtomicUsize::new(UNBOUNDED);
        quiet.store(PATIENCE, Relaxed);
        let waiting = Mutex::default();
        let times = Times::default();
        Self {
            inflight,
            bound,
            waiting,
            has_waiting,
            peak,
            asked,
            answered,
            held,
            unanswered,
            quiet,
            extra,
            times,
        }
    }

    /// Counts a request that has arrived.
    pub(crate) fn ask(&self) {
        if !self.asked.load(Relaxed) {
            self.asked.store(true, Relaxed);
        }
    }

    /// Returns true if another request of the address may leave the event loop. Several loops may find the last place
    /// at once, and each takes it.
    pub(crate) fn has_room(&self) -> bool {
        self.room() > 0
    }

    fn room(&self) -> usize {
        // A waiter announces itself before it looks at the number, and `leave` looks for waiters after it changed it.
        self.bound.load(SeqCst).saturating_sub(self.inflight.load(SeqCst))
    }

    /// Counts a request that leaves the event loop. Returns its beginning if its time counts.
    pub(crate) fn enter(&self) -> Option<Begun> {
        let inflight = self.inflight.fetch_add(1, Relaxed) + 1;
        if inflight > self.peak.load(Relaxed) {
            self.peak.fetch_max(inflight, Relaxed);
        }
        self.times.begin()
    }

    /// Ends a request in flight. Resumes a connection that waits, if there is room.
    pub(crate) fn leave(&self, begun: Option<Begun>) {
        if let Some(begun) = begun {
            self.times.end(begun);
        }
        self.inflight.fetch_sub(1, SeqCst);
        if !self.answered.load(Relaxed) {
            self.answered.store(true, Relaxed);
        }
        self.resume(1);
    }

    /// Has the connection `token` of the loop `home` wait for room. Returns false if there is room already.
    pub(crate) fn wait(&self, home: Arc<dyn Resume>, token: u64) -> bool {
        self.held.store(true, Relaxed);
        let mut waiting = self.waiting.lock();
        waiting.push_back(Waiter { home, token });
        self.has_waiting.store(true, SeqCst);
        if self.has_room() {
            waiting.pop_back();
            return false;
        }
        true
    }

    /// Ends the wait of the connection `token` of the loop `home`, which is closed.
    pub(crate) fn forget<H>(&self, home: &Arc<H>, token: u64) {
        let home = Arc::as_ptr(home);
        self.waiting
            .lock()
            .retain(|waiter| waiter.token != token || !std::ptr::addr_eq(Arc::as_ptr(&waiter.home), home));
    }

    /// Resumes up to `most` connections that wait, the first ones first, if there is room for their requests.
    pub(crate) fn resume(&self, most: usize) {
        if !self.has_waiting.load(SeqCst) || !self.has_room() {
            return;
        }
        let mut waiting = self.waiting.lock();
        let count = most.min(self.room()).min(waiting.len());
        let resumed: Vec<Waiter> = waiting.drain(..count).collect();
        if waiting.is_empty() {
            self.has_waiting.store(false, SeqCst);
        }
        drop(waiting);
        resumed.into_iter().for_each(|waiter| waiter.home.resume(waiter.token));
    }

    /// Returns the number of requests in flight that the address needs, for the time since the last call; none if it is
    /// inactive. An address that had to wait needs more than it had: [`UNBOUNDED`]. An address none of whose requests
    /// is answered for the time `stall` gets one more request in flight at each review: its requests in flight may wait
    /// for a request behind them.
    pub(crate) fn review(&self, stall: Duration) -> Option<usize> {
        let inflight = self.inflight.load(Relaxed);
        let held = self.held.swap(false, Relaxed) || !self.waiting.lock().is_empty();
        let peak = self.peak.swap(inflight, Relaxed);
        let answered = self.answered.swap(false, Relaxed);
        let unanswered = if held && !answered { self.unanswered.load(Relaxed) + 1 } else { 0 };
        self.unanswered.store(unanswered, Relaxed);
        let tolerated = (stall.as_nanos() / REVIEW.as_nanos()) as usize;
        self.extra.store(unanswered.saturating_sub(tolerated), Relaxed);
        let is_idle = !self.asked.swap(false, Relaxed) && inflight == 0 && !held;
        let quiet = if is_idle { (self.quiet.load(Relaxed) + 1).min(PATIENCE) } else { 0 };
        self.quiet.store(quiet, Relaxed);
        (quiet < PATIENCE).then_some(if held { UNBOUNDED } else { peak })
    }

    /// Returns true if the address has about as few requests in flight as it may have. Each event loop may have
    /// admitted one beyond the bound.
    fn is_drained(&self) -> bool {
        self.inflight.load(Relaxed) <= self.bound.load(Relaxed).saturating_mul(2)
    }

    /// Puts a bound in force, and resumes connections that it does not hold back.
    pub(crate) fn set_bound(&self, bound: usize) {
        self.bound.store(bound.saturating_add(self.extra.load(Relaxed)), SeqCst);
        self.resume(usize::MAX);
    }
}

/// Returns the bound of each address, by their demands since the last review. `most` is the setting.
pub(crate) fn review(reviewed: &[(&Admission, usize)], search: &mut SharedBound, most: usize) -> usize {
    let demands: Vec<usize> = reviewed.iter().map(|(_, demand)| *demand).collect();
    if bound(&demands, most.min(LEAST)) == UNBOUNDED {
        search.rest(reviewed.iter().map(|(admission, _)| &admission.times));
        return UNBOUNDED;
    }
    let least = demands.iter().copied().filter(|demand| *demand > 0).min().unwrap_or(LEAST).max(LEAST);
    let (light, busy): (Vec<_>, Vec<_>) =
        reviewed.iter().filter(|(_, demand)| *demand > 0).partition(|(_, demand)| *demand <= least);
    let light: Vec<&Times> = light.into_iter().map(|(admission, _)| &admission.times).collect();
    let is_drained = busy.iter().all(|(admission, _)| admission.is_drained());
    let is_short = busy.iter().any(|(_, demand)| *demand == UNBOUNDED);
    search.review(&light, most, is_drained, is_short);
    bound(&demands, search.number(most))
}

/// Returns the bound of each address, if the active addresses need `demands` requests in flight. The addresses that
/// need more than the least share `shared` requests; 0 bounds nothing. An address all of whose requests were answered
/// by the event loop (0) waits in no queue, so it does not count.
pub(crate) fn bound(demands: &[usize], shared: usize) -> usize {
    let waiting = || demands.iter().copied().filter(|demand| *demand > 0);
    let least = waiting().min().unwrap_or(UNBOUNDED);
    if waiting().count() < 2 || shared == 0 || least == UNBOUNDED {
        return UNBOUNDED;
    }
    let heavy = waiting().filter(|demand| *demand > least).count();
    least.max(shared / heavy.max(1)).max(LEAST)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The connections that were resumed.
    #[derive(Default)]
    struct Loop(Mutex<Vec<u64>>);

    impl Resume for Loop {
        fn resume(&self, token: u64) {
            self.0.lock().push(token);
        }
    }

    #[test]
    fn busy_addresses_have_as_many_requests_as_the_least_busy_one_needs_or_share_the_setting() {
        assert_eq!(bound(&[], 8), UNBOUNDED);
        assert_eq!(bound(&[1000], 8), UNBOUNDED, "alone");
        assert_eq!(bound(&[UNBOUNDED, UNBOUNDED], 8), UNBOUNDED, "none is less busy");
        assert_eq!(bound(&[1, UNBOUNDED], 0), UNBOUNDED, "no bound is set");
        assert_eq!(bound(&[1, UNBOUNDED], 8), 8);
        assert_eq!(bound(&[UNBOUNDED, 1, 1000], 8), 4);
        assert_eq!(bound(&[UNBOUNDED, 0], 8), UNBOUNDED, "an address that only asks for names in memory");
        assert_eq!(bound(&[UNBOUNDED, 0, 1000], 8), 1000);
        assert_eq!(bound(&[1, 900, 900, 900, 900, 900], 8), LEAST);
        assert_eq!(bound(&[100, UNBOUNDED], 8), 100);
    }

    #[test]
    fn an_address_is_active_until_it_has_asked_for_nothing_for_a_while() {
        let admission = Admission::new();
        assert_eq!(admission.review(Duration::MAX), None);
        admission.ask();
        assert_eq!(admission.review(Duration::MAX), Some(0));
        (0..3).for_each(|_| {
            admission.enter();
        });
        assert_eq!(admission.review(Duration::MAX), Some(3));
        (0..3).for_each(|_| admission.leave(None));
        let rest: Vec<_> = std::iter::from_fn(|| admission.review(Duration::MAX)).collect();
        assert_eq!(rest, [3, 0, 0], "the requests ended after the last review");
        assert_eq!(rest.len(), PATIENCE - 1);
    }

    #[test]
    fn the_times_of_light_addresses_alone_are_measured_while_a_busy_one_is_active() {
        let (mut search, [light, busy, idle]) =
            (SharedBound::default(), std::array::from_fn(|_| Admission::new()));
        busy.bound.store(LEAST, Relaxed);
        let mut review = |light_demand| {
            let reviewed = [(&light, light_demand), (&busy, UNBOUNDED), (&idle, 0)];
            let bound = review(&reviewed, &mut search, 8);
            (bound, [&light, &busy, &idle].map(|admission| admission.enter().is_some()))
        };
        assert_eq!(review(0), (UNBOUNDED, [false; 3]), "the busy address is alone");
        assert_eq!(review(1), (LEAST, [true, false, false]));
        assert_eq!(review(0), (UNBOUNDED, [false; 3]));
        (0..2 * LEAST).for_each(|_| {
            busy.enter();
        });
        assert_eq!(review(1), (LEAST, [false; 3]), "the queue is not drained");
        assert_eq!(
            super::review(&[(&light, 1), (&busy, UNBOUNDED)], &mut SharedBound::default(), 0),
            UNBOUNDED
        );
    }

    #[test]
    fn connections_are_resumed_in_their_order_when_there_is_room() {
        let (admission, home) = (Admission::new(), Arc::<Loop>::default());
        let resumed = || std::mem::take(&mut *home.0.lock());
        assert!(!admission.wait(home.clone(), 1), "there is room");
        admission.set_bound(2);
        (0..4).for_each(|_| {
            admission.enter();
        });
        assert!((1..=5).all(|token| admission.wait(home.clone(), token)));
        assert_eq!(admission.review(Duration::MAX), Some(UNBOUNDED), "it would need more than it has");
        (0..2).for_each(|_| admission.leave(None));
        assert_eq!(resumed(), [0; 0], "the bound is reached");
        admission.leave(None);
        assert_eq!(resumed(), [1]);
        admission.forget(&home, 2);
        admission.set_bound(3);
        assert_eq!(resumed(), [3, 4]);
        admission.set_bound(UNBOUNDED);
        assert_eq!(resumed(), [5]);
    }

    #[test]
    fn an_address_without_answers_gets_more_requests_in_flight() {
        let (admission, home) = (Admission::new(), Arc::<Loop>::default());
        admission.set_bound(2);
        (0..2).for_each(|_| {
            admission.enter();
        });
        assert!(admission.wait(home.clone(), 7));
        for _ in 0..10 {
            assert_eq!(admission.review(10 * REVIEW), Some(UNBOUNDED));
            admission.set_bound(2);
            assert!(home.0.lock().is_empty());
        }
        admission.review(10 * REVIEW);
        admission.set_bound(2);
        assert_eq!(*home.0.lock(), [7]);
        admission.leave(None);
        admission.review(10 * REVIEW);
        admission.set_bound(2);
        admission.enter();
        assert!(!admission.has_room(), "an answer ends it");
    }
}
