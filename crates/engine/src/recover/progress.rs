//! How far a recovery has come.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Counts the parts of a step of recovery. Any thread may read it meanwhile.
#[derive(Debug, Default)]
pub struct RecoveryProgress {
    done: AtomicU64,
    total: AtomicU64,
}

impl RecoveryProgress {
    /// A step of so many parts begins.
    pub fn begin(&self, total: usize) {
        self.done.store(0, Relaxed);
        self.total.store(total as u64, Relaxed);
    }

    /// A part of it is done.
    pub fn advance(&self) {
        self.done.fetch_add(1, Relaxed);
    }

    /// No step is counted.
    pub fn reset(&self) {
        self.begin(0);
    }

    /// Parts that are done, and parts in total: 0 where nothing is counted.
    pub fn read(&self) -> (u64, u64) {
        let total = self.total.load(Relaxed);
        (self.done.load(Relaxed).min(total), total)
    }
}
