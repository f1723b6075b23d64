//! Whether a transfer makes progress.

use std::time::{Duration, Instant};

/// Bytes that count as progress; fewer and slower is a peer that holds resources for nothing.
const STEP: u64 = 64 << 10;

/// Watches a byte count.
#[derive(Default)]
pub(crate) struct Stall {
    since: Option<Instant>,
    seen: u64,
}

impl Stall {
    /// The count stands at `bytes`; `fresh` = whatever was under way before has ended.
    pub(crate) fn moved(&mut self, bytes: u64, fresh: bool, now: Instant) {
        if fresh || self.since.is_none() || bytes < self.seen || bytes - self.seen >= STEP {
            self.since = Some(now);
            self.seen = bytes;
        }
    }

    /// Nothing is under way, or it is not the peer's fault that it does not go on.
    pub(crate) fn restart(&mut self, now: Instant) {
        self.since = Some(now);
    }

    /// Whether `limit` passed without progress.
    pub(crate) fn stalled(&self, limit: Duration, now: Instant) -> bool {
        self.since.is_some_and(|since| now.duration_since(since) >= limit)
    }
}
