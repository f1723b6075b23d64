//! Moves of blocks within the log while a destage batch writes them. A moved copy has the contents of the former
//! copy, so the end of the batch makes it clean. Without that, a write past the log could wait for ever for a clean
//! block, if each batch is overtaken by the next move.

use std::collections::BTreeMap;

use crate::index::leaf::Entry;

/// The moves of one object's blocks since its batch was gathered: the source of the first move of each block, and the
/// target of the last one.
#[derive(Debug, Default)]
pub(crate) struct Moves(BTreeMap<u64, (Entry, Entry)>);

impl Moves {
    /// Records that a block was moved with its contents.
    pub(crate) fn moved(&mut self, block: u64, from: Entry, to: Entry) {
        let known = self.0.get(&block).filter(|(_, last)| last.same_place(&from));
        // If the block was overwritten since the last move, a new chain begins.
        let first = known.map_or(from, |(first, _)| *first);
        self.0.insert(block, (first, to));
    }

    /// Returns the present place of the copy of a block that was at `copy`. If the block was overwritten, returns
    /// `copy`.
    pub(crate) fn of(&self, block: u64, copy: &Entry) -> Entry {
        let moved = self.0.get(&block).filter(|(first, _)| first.same_place(copy));
        moved.map_or(*copy, |(_, last)| *last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::leaf::Hit;

    #[test]
    fn a_copy_is_followed_from_move_to_move_until_it_is_overwritten() {
        let at = |segment, slot| Entry { segment, checksum: 0, slot, dirty: true, hit: Hit::No };
        let mut moves = Moves::default();
        assert_eq!(moves.of(7, &at(1, 5)), at(1, 5));
        moves.moved(7, at(1, 5), at(2, 6));
        moves.moved(7, at(2, 6), at(3, 1));
        assert_eq!(moves.of(7, &at(1, 5)), at(3, 1));
        assert_eq!(moves.of(8, &at(1, 5)), at(1, 5), "another block");
        // The block is overwritten in segment 4, and moved from there.
        moves.moved(7, at(4, 2), at(5, 9));
        assert_eq!(moves.of(7, &at(1, 5)), at(1, 5));
        assert_eq!(moves.of(7, &at(4, 2)), at(5, 9));
    }
}
