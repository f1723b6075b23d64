//! Limits on the rate of each client address, and of all clients of an export: requests and bytes per second.
//!
//! A limit delays and never refuses. The event loop does not read a connection whose address is beyond its limit, and
//! TCP passes that on to the client. The rule is the generic cell rate algorithm (ITU-T I.371), a token bucket without
//! a counter of tokens: the work done so far is *paid* up to a time, and each request moves that time on. While the
//! time is further in the future than the burst, no request is handled. So a large request is handled whole, and is
//! paid for afterwards.
//!
//! The export of a request is known once the request is handled. A connection therefore waits for the rate of the
//! export that its last request was for ([`SharedRate`]).

use std::net::IpAddr;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use forebay_common::lock::Mutex;

const SECOND: u64 = 1_000_000_000;

/// A limit on the rate of each address that it is for.
#[derive(Debug)]
pub struct RateLimit {
    /// Requests per second.
    pub requests: Option<NonZeroU64>,
    /// Bytes per second of requests and replies together.
    pub bytes: Option<NonZeroU64>,
    /// The time whose requests and bytes may come at once.
    pub burst: Duration,
    began: Instant,
    delays: AtomicU64,
    delayed: AtomicU64,
}

impl RateLimit {
    /// Returns a limit that has delayed no connection yet.
    pub fn new(requests: Option<NonZeroU64>, bytes: Option<NonZeroU64>, burst: Duration) -> Self {
        let [delays, delayed] = std::array::from_fn(|_| AtomicU64::new(0));
        Self { requests, bytes, burst, began: Instant::now(), delays, delayed }
    }

    /// Returns how often a connection was not read for a while.
    pub fn delays(&self) -> u64 {
        self.delays.load(Relaxed)
    }

    /// Returns the sum of the times for which connections were not read.
    pub fn delayed(&self) -> Duration {
        Duration::from_nanos(self.delayed.load(Relaxed))
    }

    /// Counts a connection that is not read for `time`.
    fn count(&self, time: Duration) {
        self.delays.fetch_add(1, Relaxed);
        self.delayed.fetch_add(time.as_nanos() as u64, Relaxed);
    }

    /// Returns a time as nanoseconds since the limit was made.
    fn nanos(&self, time: Instant) -> u64 {
        time.saturating_duration_since(self.began).as_nanos() as u64
    }
}

/// The function that finds the limit of an address.
pub type FindLimit = Box<dyn Fn(IpAddr) -> Option<Arc<RateLimit>> + Send + Sync>;

/// The rate of one address.
#[derive(Default)]
pub(crate) struct Rate {
    /// True if there is a limit. Without one, no request takes the lock.
    is_limited: AtomicBool,
    spent: Mutex<Option<Spent>>,
}

/// The work that an address did under its limit.
struct Spent {
    limit: Arc<RateLimit>,
    /// The times up to which requests and bytes are paid, in nanoseconds since the limit was made.
    requests: u64,
    bytes: u64,
}

impl Rate {
    /// Puts a limit in force. What was spent under another limit is forgotten.
    pub(crate) fn set(&self, limit: Option<Arc<RateLimit>>) {
        let mut spent = self.spent.lock();
        let is_same =
            matches!((&*spent, &limit), (Some(spent), Some(limit)) if Arc::ptr_eq(&spent.limit, limit));
        if !is_same {
            self.is_limited.store(limit.is_some(), Relaxed);
            *spent = limit.map(|limit| Spent { limit, requests: 0, bytes: 0 });
        }
    }

    /// Returns true if the address has a limit.
    pub(crate) fn is_limited(&self) -> bool {
        self.is_limited.load(Relaxed)
    }

    /// Counts requests and bytes.
    pub(crate) fn charge(&self, requests: u64, bytes: usize, now: impl FnOnce() -> Instant) {
        if self.is_limited()
            && let Some(spent) = &mut *self.spent.lock()
        {
            let now = spent.limit.nanos(now());
            spent.requests = paid(spent.requests, now, requests, spent.limit.requests);
            spent.bytes = paid(spent.bytes, now, bytes as u64, spent.limit.bytes);
        }
    }

    /// Returns the time until the next request may be handled; none if it may be handled now.
    pub(crate) fn wait(&self, now: Instant) -> Option<Duration> {
        if !self.is_limited() {
            return None;
        }
        let spent = self.spent.lock();
        let Spent { limit, requests, bytes } = spent.as_ref()?;
        let due = limit.nanos(now).saturating_add(limit.burst.as_nanos() as u64);
        let wait = (*requests).max(*bytes).saturating_sub(due);
        (wait > 0).then(|| Duration::from_nanos(wait))
    }

    /// Counts a connection of the address that is not read for `time`.
    pub(crate) fn count_delay(&self, time: Duration) {
        self.spent.lock().iter().for_each(|spent| spent.limit.count(time));
    }
}

/// A rate that several addresses share.
pub struct SharedRate(Rate);

impl SharedRate {
    /// Returns a rate of which nothing is used.
    pub fn new(limit: Arc<RateLimit>) -> Arc<Self> {
        let rate = Rate::default();
        rate.set(Some(limit));
        Arc::new(Self(rate))
    }

    /// Counts requests and bytes.
    pub fn charge(&self, requests: u64, bytes: usize) {
        self.0.charge(requests, bytes, Instant::now);
    }

    /// Ends the limit, also for connections that wait. They are looked at within a second.
    pub fn end(&self) {
        self.0.set(None);
    }
}

/// The shared rate that the last request of a connection was for, if that request had one.
#[derive(Default)]
pub struct LastRate {
    is_set: AtomicBool,
    rate: Mutex<Option<Arc<SharedRate>>>,
}

impl LastRate {
    /// Notes the rate of a request.
    pub fn note(&self, rate: Option<&Arc<SharedRate>>) {
        if rate.is_some() || self.is_set.load(Relaxed) {
            self.is_set.store(rate.is_some(), Relaxed);
            *self.rate.lock() = rate.cloned();
        }
    }

    /// Returns the time until the next request may be handled; none if it may be handled now.
    pub(crate) fn wait(&self, now: Instant) -> Option<Duration> {
        if !self.is_set.load(Relaxed) {
            return None;
        }
        self.rate.lock().as_ref().and_then(|rate| rate.0.wait(now))
    }

    /// Counts a connection that is not read for `time`.
    pub(crate) fn count_delay(&self, time: Duration) {
        self.rate.lock().iter().for_each(|rate| rate.0.count_delay(time));
    }
}

impl std::fmt::Debug for LastRate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LastRate").field("is_set", &self.is_set).finish_non_exhaustive()
    }
}

/// Returns the time up to which the work is paid after `more` of it, at `rate` a second.
fn paid(until: u64, now: u64, more: u64, rate: Option<NonZeroU64>) -> u64 {
    let Some(rate) = rate.filter(|_| more > 0) else { return until };
    let cost = u128::from(more) * u128::from(SECOND) / u128::from(rate.get());
    until.max(now).saturating_add(u64::try_from(cost).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Returns the rate of an address, and the time when its limit was made.
    fn limited(requests: u64, bytes: u64, burst: Duration) -> (Rate, Instant, Arc<RateLimit>) {
        let limit = RateLimit::new(NonZeroU64::new(requests), NonZeroU64::new(bytes), burst);
        let (rate, limit) = (Rate::default(), Arc::new(limit));
        rate.set(Some(limit.clone()));
        (rate, limit.began, limit)
    }

    /// Returns the number of requests of `bytes` bytes handled in `time` by a client that always has the next one.
    fn handled(rate: &Rate, from: Instant, time: Duration, bytes: usize) -> u64 {
        let (mut now, mut handled) = (from, 0);
        loop {
            match rate.wait(now) {
                Some(wait) => now += wait,
                None => {
                    rate.charge(1, bytes, || now);
                    handled += 1;
                }
            }
            if now >= from + time {
                return handled;
            }
        }
    }

    #[test]
    fn requests_and_bytes_come_at_the_rate_of_the_limit_after_a_burst() {
        let (rate, began, _) = limited(100, 0, 500 * MS);
        let in_ten_seconds = handled(&rate, began, 10_000 * MS, 1 << 20);
        assert!((1049..=1052).contains(&in_ten_seconds), "1,000 and a burst of 50: {in_ten_seconds}");
        let (rate, began, _) = limited(0, 1 << 20, Duration::ZERO);
        assert!((1024 * 10..=1024 * 10 + 2).contains(&handled(&rate, began, 10_000 * MS, 1 << 10)));
        let (rate, began, _) = limited(100, 1 << 20, Duration::ZERO);
        assert!((10..=12).contains(&handled(&rate, began, 10_000 * MS, 1 << 20)), "the lower rate counts");
    }

    #[test]
    fn time_without_requests_saves_up_no_more_than_the_burst() {
        let (rate, began, _) = limited(10, 0, 1000 * MS);
        assert_eq!(rate.wait(began), None);
        let at = began + 3_600_000 * MS;
        let at_once =
            (0..).take_while(|_| rate.wait(at).is_none().then(|| rate.charge(1, 0, || at)).is_some()).count();
        assert_eq!(at_once, 11);
        assert_eq!(rate.wait(at), Some(100 * MS));
        assert_eq!(rate.wait(at + 100 * MS), None);
    }

    #[test]
    fn a_request_larger_than_the_burst_is_handled_and_paid_afterwards() {
        let (rate, began, _) = limited(0, 1 << 20, 10 * MS);
        assert_eq!(rate.wait(began), None);
        rate.charge(1, 4 << 20, || began);
        assert_eq!(rate.wait(began), Some(3990 * MS));
    }

    #[test]
    fn a_connection_waits_for_the_rate_of_its_last_request_alone() {
        let limit = |requests| Arc::new(RateLimit::new(NonZeroU64::new(requests), None, Duration::ZERO));
        let (slow, quick) = (limit(1), limit(1_000_000));
        let (one, other) = (SharedRate::new(slow.clone()), SharedRate::new(quick));
        let (first, second) = (LastRate::default(), LastRate::default());
        one.charge(100, 0);
        let now = slow.began + 10_000 * MS;
        assert_eq!(first.wait(now), None, "it has sent no request");
        first.note(Some(&one));
        let wait = first.wait(now).unwrap();
        assert!((80_000 * MS..=100_000 * MS).contains(&wait), "{wait:?}");
        first.count_delay(7 * MS);
        assert_eq!(slow.delays(), 1);
        second.note(Some(&one));
        assert!(second.wait(now).is_some(), "all connections share the rate");
        second.note(Some(&other));
        assert_eq!(second.wait(now), None);
        second.note(Some(&one));
        second.note(None);
        assert_eq!(second.wait(now), None);
        one.end();
        assert_eq!(first.wait(now), None, "a limit that is gone delays nobody");
    }

    #[test]
    fn another_limit_forgets_what_was_spent_and_no_limit_delays_nothing() {
        let (rate, began, limit) = limited(1, 0, Duration::ZERO);
        rate.charge(100, 0, || began);
        rate.set(Some(limit.clone()));
        assert_eq!(rate.wait(began), Some(100_000 * MS), "the same limit keeps what was spent");
        rate.count_delay(5 * MS);
        rate.count_delay(7 * MS);
        assert_eq!((limit.delays(), limit.delayed()), (2, 12 * MS));
        rate.set(Some(Arc::new(RateLimit::new(NonZeroU64::new(1), None, Duration::ZERO))));
        assert_eq!(rate.wait(began), None);
        rate.charge(100, 0, || began + 60_000 * MS);
        rate.set(None);
        assert_eq!(rate.wait(began), None);
        rate.charge(1, 0, || panic!("nobody needs to know"));
    }
}
