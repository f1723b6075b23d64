//! The blocks of an object that the backing store does not have yet.

use std::ops::Range;

use crate::index::leaf::{Entry, LEAF};
use crate::index::object::State;
use crate::segments::Segments;

impl State {
    /// Counts an entry that was made, if it is dirty.
    pub(super) fn count_dirty(&mut self, dirty: bool) {
        if dirty {
            self.dirty += 1;
            self.volume.dirtied();
            self.account.iter().for_each(|account| account.dirtied(1));
        }
    }

    /// Counts an entry that went or became clean, if it was dirty.
    pub(super) fn count_clean(&mut self, was_dirty: bool) {
        if was_dirty {
            self.dirty -= 1;
            self.volume.cleaned();
            self.account.iter().for_each(|account| account.cleaned(1));
        }
    }

    /// Records that no copy of a dirty block can be read, or that a copy can be read again. Returns true if that is
    /// new.
    pub(crate) fn set_damaged(&mut self, block: u64, damaged: bool, segments: &Segments) -> bool {
        if !damaged && self.damaged.is_empty() {
            return false;
        }
        let Some(segment) = self.entry(block).filter(|entry| entry.dirty).map(|entry| entry.segment) else {
            return false;
        };
        let changed = if damaged { self.damaged.insert(block) } else { self.damaged.remove(&block) };
        if changed {
            segments.damage(segment, damaged);
        }
        changed
    }

    /// Marks a block as clean if `copy`, which the backing store has now, is still its copy.
    pub(crate) fn cleaned(&mut self, block: u64, copy: &Entry, segments: &Segments) {
        let Some(entry) = self.entry(block) else { return };
        let same = entry.same_place(copy)
            || crate::planted_bugs::active("destage cleans what was rewritten meanwhile");
        if entry.dirty && same {
            self.set_damaged(block, false, segments);
            self.entry_mut(block).into_iter().for_each(|entry| entry.dirty = false);
            segments.clean(copy.segment);
            self.count_clean(true);
        }
    }

    /// Returns the dirty blocks of `range`, in order, with their copies; at most `most`.
    pub(crate) fn dirty_in(&self, range: Range<u64>, most: usize) -> Vec<(u64, Entry)> {
        self.dirty_where(range, most, |_| true)
    }

    /// Returns the dirty blocks of `range` that have a readable copy, in order; at most `most`.
    pub(crate) fn to_destage(&self, range: Range<u64>, most: usize) -> Vec<(u64, Entry)> {
        self.dirty_where(range, most, |block| !self.damaged.contains(&block))
    }

    /// Returns up to `most` dirty blocks, the next part to be destaged: from the cursor on, or else from the front. The
    /// cursor is then in front of them. Refused blocks come last, one at a time.
    pub(crate) fn next_part(&mut self, most: usize) -> Vec<(u64, Entry)> {
        let most = self.refused.limit(most);
        let wanted = |state: &Self, block: u64| !state.damaged.contains(&block) && !state.refused.has(block);
        let mut blocks = self.dirty_where(self.cursor..u64::MAX, most, |block| wanted(self, block));
        if blocks.is_empty() && self.cursor > 0 {
            self.cursor = 0;
            blocks = self.dirty_where(0..u64::MAX, most, |block| wanted(self, block));
        }
        if blocks.is_empty() && self.refused.any() {
            let mut refused = std::mem::take(&mut self.refused);
            let next = refused.next(|block| !self.to_destage(block..block + 1, 1).is_empty());
            self.refused = refused;
            blocks = next.map_or_else(Vec::new, |block| self.to_destage(block..block + 1, 1));
        }
        blocks
    }

    /// Returns true if the backing store refuses a block that is to be destaged.
    pub(crate) fn is_refused(&self) -> bool {
        self.refused.any() && (self.needs_destage() || self.mtime.is_some())
    }

    /// Returns true if the backing store has refused a dirty block of the range when it was written alone.
    pub(crate) fn refuses(&self, range: &Range<u64>) -> bool {
        let is_dirty = |range: Range<u64>| !self.to_destage(range, 1).is_empty();
        let is_full = self.refused.is_full() && is_dirty(range.clone());
        is_full || self.refused.among(range.clone()).any(|block| is_dirty(block..block + 1))
    }

    /// Returns true if the object has a dirty block with a readable copy.
    pub(crate) fn needs_destage(&self) -> bool {
        self.dirty > self.damaged.len() as u64
    }

    /// Returns the first `most` dirty blocks of a range that are `wanted`, in order, with their entries.
    fn dirty_where(&self, range: Range<u64>, most: usize, wanted: impl Fn(u64) -> bool) -> Vec<(u64, Entry)> {
        let dirty = self.dirty_entries(range).filter(|(block, _)| wanted(*block));
        dirty.map(|(block, entry)| (block, *entry)).take(most).collect()
    }

    /// Returns the dirty blocks of `range`, in order.
    pub(crate) fn dirty_entries(&self, range: Range<u64>) -> impl Iterator<Item = (u64, &Entry)> {
        let wanted = self.dirty > 0 && !range.is_empty();
        let leaves = wanted.then(|| self.leaves.range(range.start / LEAF..=(range.end - 1) / LEAF));
        leaves.into_iter().flatten().flat_map(move |(number, leaf)| {
            let first = number * LEAF;
            let here = leaf.entries_in(range.start.saturating_sub(first), range.end.saturating_sub(first));
            here.filter(|(_, entry)| entry.dirty).map(move |(index, entry)| (first + u64::from(index), entry))
        })
    }

    /// Returns true if no copy of some block of `range` can be read.
    pub(crate) fn is_damaged(&self, range: &Range<u64>) -> bool {
        self.damaged.range(range.clone()).next().is_some()
    }
}
