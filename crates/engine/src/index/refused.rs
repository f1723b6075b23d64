//! Blocks that the backing store refuses, and the way of destaging around them.
//!
//! A backing store reports a bad block by an error of a write, or of the sync of the whole file. Which block is bad
//! is then unknown. So a refused part is tried again with a fraction of its blocks, until one block is refused alone.
//! That block waits until all others are destaged. Behind it destaging skips a distance that doubles with each
//! refusal, so that a long bad range does not hold up the rest. Skipped blocks have their turn in the next pass.

use std::collections::BTreeSet;
use std::ops::Range;

/// A refused part is tried again with its blocks divided by this number, at least one. Accepted parts grow by it.
const FRACTION: usize = 16;
/// The size of a part in blocks from which on there is no limit.
const LARGE: usize = 8192;
/// The highest number of blocks that are noted as refused. Further ones have their turn in each pass.
const NOTED: usize = 4096;
/// The longest skipped distance in blocks.
const FARTHEST: u64 = 1 << 20;

/// The refusals of one object's blocks.
#[derive(Debug, Default)]
pub(crate) struct Refused {
    /// The highest number of blocks in the next part.
    limit: Option<usize>,
    /// The blocks that were refused alone.
    alone: BTreeSet<u64>,
    /// The next block of `alone` to be tried is at or behind this one.
    next: u64,
    /// The number of refusals of single blocks in a row.
    in_a_row: u32,
    /// The number of refused parts.
    parts: u64,
}

impl Refused {
    /// Returns true if the backing store has refused blocks that it has not accepted since.
    pub(crate) fn any(&self) -> bool {
        self.limit.is_some() || !self.alone.is_empty()
    }

    /// Returns true if `block` was refused alone.
    pub(crate) fn has(&self, block: u64) -> bool {
        self.alone.contains(&block)
    }

    /// Returns the blocks of `range` that were refused alone.
    pub(crate) fn among(&self, range: Range<u64>) -> impl Iterator<Item = u64> {
        self.alone.range(range).copied()
    }

    /// Returns true if there are more refused blocks than can be noted.
    pub(crate) fn is_full(&self) -> bool {
        self.alone.len() >= NOTED
    }

    /// Returns the number of refused parts.
    pub(crate) fn parts(&self) -> u64 {
        self.parts
    }

    /// Returns the highest number of blocks in the next part, of which there is room for `most`.
    pub(crate) fn limit(&self, most: usize) -> usize {
        self.limit.map_or(most, |limit| limit.min(most))
    }

    /// Forgets all refused blocks but those that are `wanted`. Returns the one to be tried next.
    pub(crate) fn next(&mut self, wanted: impl Fn(u64) -> bool) -> Option<u64> {
        self.alone.retain(|block| wanted(*block));
        self.alone.range(self.next..).next().or(self.alone.first()).copied()
    }

    /// Notes that the backing store refused a part of these blocks. Returns the block at which to continue.
    pub(crate) fn refused(&mut self, blocks: &[u64]) -> u64 {
        self.parts += 1;
        self.limit = Some((blocks.len() / FRACTION).max(1));
        match blocks {
            [] => 0,
            [block] => {
                if self.alone.contains(block) {
                    self.next = block + 1;
                } else if self.alone.len() < NOTED {
                    self.alone.insert(*block);
                }
                let distance = 1u64.checked_shl(self.in_a_row).unwrap_or(FARTHEST).min(FARTHEST);
                self.in_a_row += 1;
                block.saturating_add(distance)
            }
            [first, ..] => *first,
        }
    }

    /// Notes that the backing store accepted a part of these blocks. After a refused block all others that were
    /// refused have their turn at once.
    pub(crate) fn accepted(&mut self, blocks: &[u64]) {
        self.in_a_row = 0;
        let limit = self.limit.map(|limit| limit * FRACTION);
        self.limit = limit.filter(|limit| *limit < LARGE && !blocks.is_empty());
        if blocks.iter().any(|block| self.has(*block)) {
            self.alone.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Destages `dirty` as the task does, over a store that refuses parts with a block of `bad`. Returns the number
    /// of refused parts until only bad blocks are left.
    fn refusals(dirty: &mut BTreeSet<u64>, bad: std::ops::Range<u64>, refused: &mut Refused) -> usize {
        let (mut cursor, mut count) = (0, 0);
        while dirty.iter().any(|block| !bad.contains(block)) {
            let most = refused.limit(LARGE);
            let of =
                |from: u64| dirty.range(from..).filter(|block| !refused.has(**block)).take(most).copied();
            let mut part: Vec<u64> = of(cursor).collect();
            if part.is_empty() {
                part = of(0).collect();
            }
            if part.is_empty() {
                part = refused.next(|_| true).into_iter().collect();
            }
            if part.iter().any(|block| bad.contains(block)) {
                cursor = refused.refused(&part);
                count += 1;
            } else {
                refused.accepted(&part);
                cursor = part.last().map_or(0, |block| block + 1);
                part.iter().for_each(|block| assert!(dirty.remove(block)));
            }
            assert!(count < 10_000, "{} blocks stay behind", dirty.len());
        }
        count
    }

    #[test]
    fn one_bad_block_holds_up_no_other() {
        for bad in [0, 1, 4711, 9999] {
            let mut dirty: BTreeSet<u64> = (0..10_000).collect();
            let mut refused = Refused::default();
            let count = refusals(&mut dirty, bad..bad + 1, &mut refused);
            assert_eq!(dirty, BTreeSet::from([bad]));
            assert!(count <= 40, "{count} refusals for block {bad}");
            assert!(refused.any());
        }
    }

    #[test]
    fn most_blocks_behind_a_long_bad_range_have_their_turn_after_a_few_refusals() {
        let (mut dirty, bad) = ((0..20_000).collect::<BTreeSet<u64>>(), 100..10_100);
        let mut refused = Refused::default();
        let (mut cursor, mut count) = (0, 0);
        // One pass.
        while cursor < 20_000 {
            let most = refused.limit(LARGE);
            let part: Vec<u64> = dirty.range(cursor..).take(most).copied().collect();
            if part.iter().any(|block| bad.contains(block)) {
                cursor = refused.refused(&part);
                count += 1;
            } else {
                refused.accepted(&part);
                cursor = part.last().map_or(u64::MAX, |block| block + 1);
                part.iter().for_each(|block| assert!(dirty.remove(block)));
            }
        }
        assert!(count <= 40, "{count} refusals");
        assert!(dirty.len() < 17_000, "{} blocks are left", dirty.len());
    }

    #[test]
    fn a_store_that_works_again_gets_all_blocks_in_a_few_parts() {
        let mut refused = Refused::default();
        let part: Vec<u64> = (0..8192).collect();
        refused.refused(&part);
        for block in 0..100 {
            refused.limit = Some(1);
            refused.refused(&[block]);
        }
        assert_eq!((refused.next(|_| true), refused.limit(LARGE)), (Some(0), 1));
        refused.accepted(&[0]);
        assert!(refused.alone.is_empty() && refused.any());
        for _ in 0..3 {
            refused.accepted(&[200]);
        }
        assert!(!refused.any());
    }

    #[test]
    fn refused_blocks_have_their_turns_in_order_and_vanish_with_their_contents() {
        let mut refused = Refused::default();
        for block in [3, 7, 9] {
            refused.refused(&[block]);
        }
        let mut turns = Vec::new();
        for _ in 0..4 {
            let block = refused.next(|_| true).unwrap();
            turns.push(block);
            refused.refused(&[block]);
        }
        assert_eq!(turns, [3, 7, 9, 3]);
        assert_eq!(refused.next(|block| block == 9), Some(9));
        assert!(!refused.has(3));
    }
}
