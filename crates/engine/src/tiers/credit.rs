//! The bound on blocks that eviction writes again for their high priority alone.

use forebay_common::lock::atomic::{AtomicU64, Ordering};

/// The highest number of segments whose blocks eviction may write again in a row for their priority alone.
const IN_A_ROW: u64 = 8;

/// The number of blocks that eviction may write again for their priority alone. Each block that it drops adds one. So
/// at least half of the unused blocks that eviction meets make room, whatever the priorities.
#[derive(Debug)]
pub(crate) struct Credit {
    left: AtomicU64,
    most: u64,
}

impl Credit {
    /// Returns the credit of a pool that has dropped nothing yet. A segment has `slots` blocks.
    pub(crate) fn new(slots: usize) -> Self {
        Credit { left: AtomicU64::new(0), most: IN_A_ROW * slots as u64 }
    }

    /// Counts a block that eviction has dropped.
    pub(crate) fn dropped(&self) {
        let more = |left: u64| (left < self.most).then_some(left + 1);
        let _ = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
    }

    /// Takes one block of the credit. Returns false if none is left.
    pub(crate) fn take(&self) -> bool {
        let less = |left: u64| left.checked_sub(1);
        self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_blocks_as_were_dropped_may_be_written_again_up_to_a_bound() {
        let credit = Credit::new(2);
        assert!(!credit.take());
        (0..3).for_each(|_| credit.dropped());
        assert_eq!([0; 4].map(|_| credit.take()), [true, true, true, false]);
        (0..100).for_each(|_| credit.dropped());
        assert_eq!((0..100).filter(|_| credit.take()).count(), 16);
    }
}
