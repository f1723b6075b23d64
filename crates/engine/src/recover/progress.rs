//! The progress of a recovery.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Counters of the parts of a recovery step. Any thread may read them meanwhile.
#[derive(Debug, Default)]
pub struct RecoveryProgress {
    done: AtomicU64,
    total: AtomicU64,
}

impl RecoveryProgress {
    /// Begins a step of `total` parts.
    pub fn begin(&self, total: usize) {
        self.done.store(0, Relaxed);
        self.total.store(total as u64, Relaxed);
    }

    /// Counts a part of the step as done.
    pub fn advance(&self) {
        self.done.fetch_add(1, Relaxed);
    }

    /// Resets the counters: no step is counted.
    pub fn reset(&self) {
        self.begin(0);
    }

    /// Returns the parts that are done, and the parts in total: 0 if no step is counted.
    pub fn read(&self) -> (u64, u64) {
        let total = self.total.load(Relaxed);
        (self.done.load(Relaxed).min(total), total)
    }
}
