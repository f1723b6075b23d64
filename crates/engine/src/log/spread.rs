//! Room for user records is spread over the time until some are released.

use std::time::Duration;

/// Spreads the room that is left for user records over the time until some are released. That time is taken to be as
/// long as it has lasted so far, or as it lasted the last time if that was longer. So the writers of user records get
/// slower, but none of them waits for the release.
#[derive(Debug, Default)]
pub(crate) struct Spread {
    /// The time since which user records must be released.
    since: Option<Duration>,
    /// The time that the last release took.
    took: Duration,
    /// The earliest time of the next append.
    next: Duration,
}

/// The shortest time that a release of user records is taken to need.
const SHORTEST: Duration = Duration::from_secs(2);

/// An append whose turn is no further away than this does not wait.
pub(crate) const SLACK: Duration = Duration::from_millis(1);

impl Spread {
    /// Returns when `cost` bytes of the `room` that is left may be appended, while user records must be released. The
    /// bytes count from now on. Returns `None` if there is no room until some records are released.
    pub(crate) fn admit(&mut self, now: Duration, cost: u64, room: u64) -> Option<Duration> {
        let since = *self.since.get_or_insert(now);
        if room <= cost {
            return None;
        }
        let takes = self.took.max(now.saturating_sub(since)).max(SHORTEST);
        let turn = self.next.max(now);
        self.next = turn + takes.mul_f64(cost as f64 / room as f64);
        Some(turn)
    }

    /// Records that some user records were released.
    pub(crate) fn released(&mut self, now: Duration) {
        self.took = self.since.take().map_or(Duration::ZERO, |since| now.saturating_sub(since));
        self.next = now;
    }
}
