//! Unsynced blocks: blocks written past the log that no sync has covered yet (`request/unsynced.rs`).

use std::ops::Range;

use crate::index::ranges::Ranges;

/// The unsynced blocks of one object.
#[derive(Debug, Default)]
pub(crate) struct UnsyncedBlocks {
    /// Blocks written since the last sync began.
    blocks: Ranges,
    /// The blocks covered by each sync that is in flight or failed, by the sync's number. After a failed sync, no
    /// later sync tells what became of these blocks, until they are written again.
    syncs: Vec<(u64, Ranges)>,
    last: u64,
}

impl UnsyncedBlocks {
    /// Records a write of these blocks.
    pub(crate) fn wrote(&mut self, range: Range<u64>) {
        self.syncs.iter_mut().for_each(|(_, covered)| drop(covered.take(&range)));
        self.syncs.retain(|(_, covered)| !covered.is_empty());
        self.blocks.add(range);
    }

    /// Begins a sync of `range`. Returns its number, for [`UnsyncedBlocks::end`].
    pub(crate) fn begin(&mut self, range: Range<u64>) -> u64 {
        self.last += 1;
        let covered = self.blocks.take(&range);
        if !covered.is_empty() {
            self.syncs.push((self.last, covered));
        }
        self.last
    }

    /// Ends a sync.
    pub(crate) fn end(&mut self, number: u64, succeeded: bool) {
        if succeeded {
            self.syncs.retain(|(other, _)| *other != number);
        }
    }

    pub(crate) fn contains(&self, block: u64) -> bool {
        if crate::planted_bugs::active("what a power cut may take back of the backing file is cached") {
            return false;
        }
        self.blocks.contains(block) || self.syncs.iter().any(|(_, covered)| covered.contains(block))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.blocks.is_empty() && self.syncs.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_durable_once_a_sync_succeeds_that_began_after_it_was_written() {
        let mut volatile = UnsyncedBlocks::default();
        let early = volatile.begin(0..10);
        volatile.wrote(2..6);
        volatile.end(early, true);
        assert!(volatile.contains(2) && volatile.contains(5) && !volatile.contains(6));
        let part = volatile.begin(0..4);
        volatile.wrote(3..4);
        assert!(volatile.contains(2), "not ended yet");
        volatile.end(part, true);
        assert_eq!([2, 3, 4].map(|block| volatile.contains(block)), [false, true, true]);
        let rest = volatile.begin(0..u64::MAX);
        volatile.end(rest, true);
        assert!(volatile.is_empty());
    }

    #[test]
    fn after_a_sync_that_failed_only_another_write_helps() {
        let mut volatile = UnsyncedBlocks::default();
        volatile.wrote(0..2);
        for succeeded in [false, true] {
            let sync = volatile.begin(0..2);
            volatile.end(sync, succeeded);
            assert!(volatile.contains(0) && volatile.contains(1));
        }
        volatile.wrote(0..1);
        let sync = volatile.begin(0..2);
        volatile.end(sync, true);
        assert_eq!([0, 1].map(|block| volatile.contains(block)), [false, true]);
    }
}
