//! Entries of the simulated queues, and the state of a block in one simulated tier. Both are packed: memory is scarce,
//! and there are as many states as blocks and sizes.

/// The highest number of blocks that entries can tell apart.
pub(crate) const MOST_BLOCKS: u32 = 1 << BLOCK_BITS;
const BLOCK_BITS: u32 = 22;
const TURNS: u32 = 1 << 9;
const LOG: u32 = 1 << 31;

/// A place in a queue: the block's number, the turn in which the block took the place, and whether the place is in the
/// log.
///
/// A block that takes a newer place leaves its older entry behind. The turn tells the two apart. After 512 turns within
/// one queue an old entry is taken for the current one, which costs one wrong eviction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry(u32);

impl Entry {
    pub(crate) fn new(block: u32, place: Place, in_log: bool) -> Self {
        Entry(block | place.turn() << BLOCK_BITS | if in_log { LOG } else { 0 })
    }

    pub(crate) fn block(self) -> u32 {
        self.0 & (MOST_BLOCKS - 1)
    }

    pub(crate) fn in_log(self) -> bool {
        self.0 & LOG != 0
    }

    /// Returns the entry after its segment has left the log.
    pub(crate) fn out_of_log(self) -> Self {
        Entry(self.0 & !LOG)
    }

    /// Returns true if this is the current entry of a block with this state.
    pub(crate) fn is_current(self, place: Place) -> bool {
        place.is_live() && self.0 >> BLOCK_BITS & (TURNS - 1) == place.turn()
    }
}

const LIVE: u16 = 1;
const HIT: u16 = 2;
const DIRTY: u16 = 4;
const TURN_SHIFT: u32 = 3;

/// The state of a block in one tier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Place(u16);

impl Place {
    fn turn(self) -> u32 {
        u32::from(self.0 >> TURN_SHIFT)
    }

    /// Returns true if the tier has the block.
    pub(crate) fn is_live(self) -> bool {
        self.0 & LIVE != 0
    }

    /// Returns true if the block was used since it took its place.
    pub(crate) fn is_hit(self) -> bool {
        self.0 & HIT != 0
    }

    /// Returns true if the backing store does not have the block yet.
    pub(crate) fn is_dirty(self) -> bool {
        self.0 & DIRTY != 0
    }

    /// Gives the block a newer place. The mark of a use is cleared, the mark of dirty data stays.
    pub(crate) fn renew(&mut self) {
        let turn = (self.turn() + 1) & (TURNS - 1);
        self.0 = (turn as u16) << TURN_SHIFT | self.0 & DIRTY | LIVE;
    }

    pub(crate) fn leave(&mut self) {
        self.0 &= !(LIVE | HIT);
    }

    pub(crate) fn set_hit(&mut self, hit: bool) {
        self.0 = self.0 & !HIT | if hit { HIT } else { 0 };
    }

    pub(crate) fn set_dirty(&mut self, dirty: bool) {
        self.0 = self.0 & !DIRTY | if dirty { DIRTY } else { 0 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_newest_entry_of_a_block_is_current() {
        let mut place = Place::default();
        place.renew();
        place.set_dirty(true);
        let old = Entry::new(MOST_BLOCKS - 1, place, true);
        assert!(old.is_current(place) && old.in_log() && old.block() == MOST_BLOCKS - 1);
        place.set_hit(true);
        assert!(old.is_current(place) && old.out_of_log().is_current(place) && !old.out_of_log().in_log());
        place.renew();
        assert!(!old.is_current(place) && !place.is_hit() && place.is_dirty());
        let new = Entry::new(MOST_BLOCKS - 1, place, false);
        assert!(new.is_current(place));
        place.leave();
        assert!(!new.is_current(place) && place.is_dirty(), "a block may be dirty beyond its tier");
    }

    #[test]
    fn turns_start_again() {
        let mut place = Place::default();
        for _ in 0..3 * TURNS {
            place.renew();
            assert!(Entry::new(7, place, true).is_current(place));
        }
    }
}
