//! The detection of transfers that make no progress.

use std::time::{Duration, Instant};

/// The bytes that count as progress. A peer that moves fewer holds resources without benefit.
const STEP: u64 = 64 << 10;

/// Watches a byte count.
#[derive(Default)]
pub(crate) struct Stall {
    since: Option<Instant>,
    seen: u64,
}

impl Stall {
    /// Records that the count is `bytes`; `fresh` = the transfer in progress before has ended.
    pub(crate) fn moved(&mut self, bytes: u64, fresh: bool, now: Instant) {
        if fresh || self.since.is_none() || bytes < self.seen || bytes - self.seen >= STEP {
            self.since = Some(now);
            self.seen = bytes;
        }
    }

    /// Restarts the time, because no transfer is in progress or the peer does not cause the delay.
    pub(crate) fn restart(&mut self, now: Instant) {
        self.since = Some(now);
    }

    /// Returns true if `limit` passed without progress.
    pub(crate) fn stalled(&self, limit: Duration, now: Instant) -> bool {
        self.since.is_some_and(|since| now.duration_since(since) >= limit)
    }
}
