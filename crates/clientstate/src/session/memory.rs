//! The memory of kept replies: a bound in bytes for all clients, and a share for each of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::lease::Lease;

/// The memory of the replies that all sessions keep. A request that asks for its reply to be kept counts the longest
/// reply that its session keeps, from its begin to its end.
#[derive(Debug)]
pub(crate) struct Memory {
    limit: u64,
    used: AtomicU64,
}

/// The part of the memory that one session has.
#[derive(Debug)]
pub(super) struct Share {
    memory: Arc<Memory>,
    lease: Arc<Lease>,
    used: u64,
}

impl Memory {
    /// Returns a memory of `limit` bytes.
    pub(crate) fn new(limit: u64) -> Self {
        Memory { limit, used: 0.into() }
    }

    /// Returns the bytes in use.
    pub(crate) fn used(&self) -> u64 {
        self.used.load(Relaxed)
    }

    fn free(&self) -> u64 {
        self.limit.saturating_sub(self.used())
    }

    /// Returns true if the client is to use fewer slots: it has more than half as many bytes as are free. A client that
    /// uses fewer slots already gets the others back below an eighth of the free bytes.
    pub(super) fn is_short_for(&self, lease: &Lease, uses_few: bool) -> bool {
        lease.kept.load(Relaxed) > self.free() / if uses_few { 8 } else { 2 }
    }
}

impl Share {
    pub(super) fn new(memory: Arc<Memory>, lease: Arc<Lease>) -> Self {
        Share { memory, lease, used: 0 }
    }

    /// Returns true if the client may have `more` bytes: it then has at most as many as are left for others. So one
    /// client has at most half of the memory.
    pub(super) fn has_room(&self, more: u64) -> bool {
        more == 0 || self.lease.kept.load(Relaxed) + 2 * more <= self.memory.free()
    }

    /// Returns the counted bytes of the session.
    pub(super) fn used(&self) -> u64 {
        self.used
    }

    /// Replaces `old` counted bytes by `new` ones.
    pub(super) fn count(&mut self, old: u64, new: u64) {
        self.used = self.used + new - old;
        for counter in [&self.memory.used, &self.lease.kept] {
            if new > old {
                counter.fetch_add(new - old, Relaxed);
            } else if old > new {
                counter.fetch_sub(old - new, Relaxed);
            }
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.count(self.used, 0);
    }
}
