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
    syncs: Vec<Sync>,
    last: u64,
}

/// A sync that is in flight or failed.
#[derive(Debug)]
struct Sync {
    number: u64,
    covered: Ranges,
    failed: bool,
}

impl UnsyncedBlocks {
    /// Records a write of these blocks.
    pub(crate) fn wrote(&mut self, range: Range<u64>) {
        self.syncs.iter_mut().for_each(|sync| drop(sync.covered.take(&range)));
        self.syncs.retain(|sync| !sync.covered.is_empty());
        self.blocks.add(range);
    }

    /// Records that the log has new contents of these blocks. What a failed sync has lost of them does not count any
    /// more: destaging writes them again.
    pub(crate) fn logged(&mut self, range: &Range<u64>) {
        let failed = self.syncs.iter_mut().filter(|sync| sync.failed);
        failed.for_each(|sync| drop(sync.covered.take(range)));
        self.syncs.retain(|sync| !sync.covered.is_empty());
    }

    /// Returns true if a failed sync may have lost a block that was not written again since.
    pub(crate) fn has_lost(&self) -> bool {
        self.syncs.iter().any(|sync| sync.failed)
    }

    /// Begins a sync of `range`. Returns its number, for [`UnsyncedBlocks::end`].
    pub(crate) fn begin(&mut self, range: Range<u64>) -> u64 {
        self.last += 1;
        let covered = self.blocks.take(&range);
        if !covered.is_empty() {
            self.syncs.push(Sync { number: self.last, covered, failed: false });
        }
        self.last
    }

    /// Ends a sync. If another one failed meanwhile, the blocks stay lost: the error is reported only once.
    pub(crate) fn end(&mut self, number: u64, succeeded: bool) {
        if succeeded {
            self.syncs.retain(|sync| sync.number != number || sync.failed);
        }
        self.syncs.iter_mut().filter(|sync| sync.number == number).for_each(|sync| sync.failed = true);
    }

    /// Records that a sync of the file has failed. It may have lost every unsynced block: those of other syncs in
    /// flight, and those written since it began. The error is reported once, so no later sync tells.
    pub(crate) fn failed(&mut self) {
        self.syncs.iter_mut().for_each(|sync| sync.failed = true);
        let covered = self.blocks.take(&(0..u64::MAX));
        if !covered.is_empty() {
            self.last += 1;
            self.syncs.push(Sync { number: self.last, covered, failed: true });
        }
    }

    /// Returns true if a power cut may take back the last write of this block to the backing store.
    pub(crate) fn contains(&self, block: u64) -> bool {
        if crate::planted_bugs::active("what a power cut may take back of the backing file is cached") {
            return false;
        }
        self.blocks.contains(block) || self.syncs.iter().any(|sync| sync.covered.contains(block))
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
            assert!(volatile.contains(0) && volatile.contains(1) && volatile.has_lost());
        }
        volatile.wrote(0..1);
        let sync = volatile.begin(0..2);
        volatile.end(sync, true);
        assert_eq!([0, 1].map(|block| volatile.contains(block)), [false, true]);
    }

    #[test]
    fn a_sync_that_fails_may_have_lost_every_unsynced_block() {
        for other_succeeds in [false, true] {
            let mut volatile = UnsyncedBlocks::default();
            volatile.wrote(0..1);
            let other = volatile.begin(0..u64::MAX);
            volatile.wrote(1..2);
            volatile.failed();
            assert!(volatile.has_lost());
            volatile.end(other, other_succeeds);
            let later = volatile.begin(0..u64::MAX);
            volatile.end(later, true);
            volatile.wrote(1..2);
            assert!(volatile.has_lost(), "block 0 is not written again");
            volatile.wrote(0..1);
            let last = volatile.begin(0..u64::MAX);
            volatile.end(last, true);
            assert!(!volatile.has_lost() && volatile.is_empty());
        }
    }

    #[test]
    fn a_block_that_a_failed_sync_lost_is_whole_again_once_the_log_has_it() {
        let mut volatile = UnsyncedBlocks::default();
        volatile.wrote(0..2);
        let sync = volatile.begin(0..u64::MAX);
        volatile.logged(&(0..2));
        assert!(volatile.contains(0) && !volatile.has_lost(), "the sync is in flight");
        volatile.end(sync, false);
        volatile.logged(&(0..1));
        assert!(volatile.has_lost());
        volatile.logged(&(1..2));
        assert!(!volatile.has_lost() && volatile.is_empty());
    }
}
