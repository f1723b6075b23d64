//! Unsynced bytes: bytes written past the log that no sync has covered yet (`request/unsynced.rs`).

use std::ops::Range;

use crate::buffer::BLOCK;
use crate::index::ranges::Ranges;

/// The unsynced bytes of one object. They are ranges of bytes, because a write of a part of a block does not bring back
/// the rest of the block after a failed sync.
#[derive(Debug, Default)]
pub(crate) struct UnsyncedBytes {
    /// Bytes written since the last sync began.
    bytes: Ranges,
    /// The bytes covered by each sync that is in flight or failed, by the sync's number. After a failed sync, no
    /// later sync tells what became of these bytes, until they are written again.
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

impl UnsyncedBytes {
    /// Records a write of these bytes, which the backing store has taken.
    pub(crate) fn wrote(&mut self, range: Range<u64>) {
        self.syncs.iter_mut().for_each(|sync| drop(sync.covered.take(&range)));
        self.syncs.retain(|sync| !sync.covered.is_empty());
        self.bytes.add(range);
    }

    /// Records that a write of these bytes failed. The backing store may have taken a part of the write, so the loss
    /// of older contents stays.
    pub(crate) fn may_have_written(&mut self, range: Range<u64>) {
        self.bytes.add(range);
    }

    /// Records a write of these bytes that a failed sync may have lost.
    pub(crate) fn lost(&mut self, range: Range<u64>) {
        self.bytes.take(&range);
        self.last += 1;
        let mut covered = Ranges::default();
        covered.add(range);
        self.syncs.push(Sync { number: self.last, covered, failed: true });
    }

    /// Records that the log, or durably the backing store, has new contents of these bytes. The loss of their older
    /// contents does not count any more. The rest of a block that is written in part stays lost.
    pub(crate) fn replaced(&mut self, range: &Range<u64>) {
        let failed = self.syncs.iter_mut().filter(|sync| sync.failed);
        failed.for_each(|sync| drop(sync.covered.take(range)));
        self.syncs.retain(|sync| !sync.covered.is_empty());
    }

    /// Returns true if a failed sync may have lost a byte that was not written again since.
    pub(crate) fn has_lost(&self) -> bool {
        self.syncs.iter().any(|sync| sync.failed)
    }

    /// Returns true if a failed sync may have lost a byte of `range` that was not written again since.
    pub(crate) fn has_lost_in(&self, range: &Range<u64>) -> bool {
        self.syncs.iter().any(|sync| sync.failed && sync.covered.overlaps(range))
    }

    /// Begins a sync of `range`. Returns its number, for [`UnsyncedBytes::end`].
    pub(crate) fn begin(&mut self, range: Range<u64>) -> u64 {
        self.last += 1;
        let covered = self.bytes.take(&range);
        if !covered.is_empty() {
            self.syncs.push(Sync { number: self.last, covered, failed: false });
        }
        self.last
    }

    /// Ends a sync. If another one failed meanwhile, the bytes stay lost: the error is reported only once.
    pub(crate) fn end(&mut self, number: u64, succeeded: bool) {
        if succeeded {
            self.syncs.retain(|sync| sync.number != number || sync.failed);
        }
        self.syncs.iter_mut().filter(|sync| sync.number == number).for_each(|sync| sync.failed = true);
    }

    /// Records that a sync of the file has failed. It may have lost every unsynced byte: those of other syncs in
    /// flight, and those written since it began. The error is reported once, so no later sync tells.
    pub(crate) fn failed(&mut self) {
        self.syncs.iter_mut().for_each(|sync| sync.failed = true);
        let covered = self.bytes.take(&(0..u64::MAX));
        if !covered.is_empty() {
            self.last += 1;
            self.syncs.push(Sync { number: self.last, covered, failed: true });
        }
    }

    /// Returns true if a power cut may take back the last write of a part of this block to the backing store.
    pub(crate) fn contains(&self, block: u64) -> bool {
        if crate::planted_bugs::active("what a power cut may take back of the backing file is cached") {
            return false;
        }
        let range = block * BLOCK as u64..(block + 1) * BLOCK as u64;
        self.bytes.overlaps(&range) || self.syncs.iter().any(|sync| sync.covered.overlaps(&range))
    }

    /// Returns true if no byte is unsynced or lost.
    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty() && self.syncs.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the bytes of a range of blocks.
    fn blocks(range: Range<u64>) -> Range<u64> {
        range.start * BLOCK as u64..range.end * BLOCK as u64
    }

    /// Returns the state after blocks 0 and 1 were written and their sync has failed.
    fn after_a_loss() -> UnsyncedBytes {
        let mut volatile = UnsyncedBytes::default();
        volatile.wrote(blocks(0..2));
        let sync = volatile.begin(0..u64::MAX);
        volatile.end(sync, false);
        volatile
    }

    /// Carries out a sync that succeeds.
    fn sync(volatile: &mut UnsyncedBytes) {
        let sync = volatile.begin(0..u64::MAX);
        volatile.end(sync, true);
    }

    #[test]
    fn a_block_is_durable_once_a_sync_succeeds_that_began_after_it_was_written() {
        let mut volatile = UnsyncedBytes::default();
        let early = volatile.begin(blocks(0..10));
        volatile.wrote(blocks(2..6));
        volatile.end(early, true);
        assert!(volatile.contains(2) && volatile.contains(5) && !volatile.contains(6));
        let part = volatile.begin(blocks(0..4));
        volatile.wrote(blocks(3..4));
        assert!(volatile.contains(2), "not ended yet");
        volatile.end(part, true);
        assert_eq!([2, 3, 4].map(|block| volatile.contains(block)), [false, true, true]);
        sync(&mut volatile);
        assert!(volatile.is_empty());
    }

    #[test]
    fn after_a_sync_that_failed_only_another_write_helps() {
        let mut volatile = UnsyncedBytes::default();
        volatile.wrote(blocks(0..2));
        for succeeded in [false, true] {
            let sync = volatile.begin(blocks(0..2));
            volatile.end(sync, succeeded);
            assert!(volatile.contains(0) && volatile.contains(1) && volatile.has_lost());
        }
        volatile.wrote(blocks(0..1));
        sync(&mut volatile);
        assert_eq!([0, 1].map(|block| volatile.contains(block)), [false, true]);
    }

    #[test]
    fn a_sync_that_fails_may_have_lost_every_unsynced_block() {
        for other_succeeds in [false, true] {
            let mut volatile = UnsyncedBytes::default();
            volatile.wrote(blocks(0..1));
            let other = volatile.begin(0..u64::MAX);
            volatile.wrote(blocks(1..2));
            volatile.failed();
            assert!(volatile.has_lost());
            volatile.end(other, other_succeeds);
            sync(&mut volatile);
            volatile.wrote(blocks(1..2));
            assert!(volatile.has_lost(), "block 0 is not written again");
            volatile.wrote(blocks(0..1));
            sync(&mut volatile);
            assert!(!volatile.has_lost() && volatile.is_empty());
        }
    }

    #[test]
    fn a_block_that_a_failed_sync_lost_is_whole_again_once_the_log_has_it() {
        let mut volatile = UnsyncedBytes::default();
        volatile.wrote(blocks(0..2));
        let sync = volatile.begin(0..u64::MAX);
        volatile.replaced(&blocks(0..2));
        assert!(volatile.contains(0) && !volatile.has_lost(), "the sync is in flight");
        volatile.end(sync, false);
        volatile.replaced(&blocks(0..1));
        assert!(volatile.has_lost());
        volatile.replaced(&blocks(1..2));
        assert!(!volatile.has_lost() && volatile.is_empty());
    }

    #[test]
    fn a_write_of_a_part_of_a_lost_block_does_not_end_the_loss() {
        let writes: [fn(&mut UnsyncedBytes, Range<u64>); 2] =
            [UnsyncedBytes::wrote, |volatile, range| volatile.replaced(&range)];
        for write in writes {
            let mut volatile = after_a_loss();
            for part in [512..1024, 0..512, 1024..5000] {
                write(&mut volatile, part.clone());
                sync(&mut volatile);
                assert!(volatile.has_lost() && volatile.contains(1), "{part:?}");
            }
            assert!(!volatile.contains(0), "all of it is written again");
            assert!(volatile.has_lost_in(&(8191..9000)) && !volatile.has_lost_in(&(0..5000)));
            write(&mut volatile, 4500..8192);
            sync(&mut volatile);
            assert!(!volatile.has_lost() && volatile.is_empty());
        }
    }

    #[test]
    fn a_write_of_what_a_failed_sync_lost_ends_the_loss_also_if_it_was_a_part_of_a_block() {
        let mut volatile = UnsyncedBytes::default();
        volatile.wrote(512..1024);
        volatile.failed();
        volatile.replaced(&(512..1024));
        assert!(!volatile.has_lost());
    }

    #[test]
    fn a_write_that_fails_does_not_end_a_loss() {
        let mut volatile = after_a_loss();
        volatile.may_have_written(blocks(0..2));
        sync(&mut volatile);
        assert!(volatile.has_lost() && volatile.contains(0));
    }

    #[test]
    fn a_write_during_which_a_sync_fails_may_be_lost() {
        let mut volatile = UnsyncedBytes::default();
        volatile.lost(blocks(0..2));
        sync(&mut volatile);
        assert!(volatile.has_lost() && volatile.contains(0));
        volatile.wrote(blocks(0..2));
        sync(&mut volatile);
        assert!(volatile.is_empty());
    }
}
