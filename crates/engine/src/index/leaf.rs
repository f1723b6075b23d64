//! The index of 64 consecutive blocks (256 KiB) of an object: their places on the SSDs, and the pages in memory.
//!
//! Entries are packed behind a bitmap. A full leaf costs 12 bytes a block. A leaf with one block costs little more
//! than that block's entry.

use crate::index::page::Page;
use crate::segments::SegmentId;

/// Blocks of a leaf.
pub(crate) const LEAF: u64 = 64;

/// The use of a copy on the SSDs, for eviction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hit {
    /// The block was not read since it was written, or since eviction last spared it.
    No,
    /// The block was read since then.
    Yes,
    /// The block was not read since eviction wrote it again for its priority. Eviction does not do so twice.
    Spared,
}

/// The place of a block on the SSDs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) segment: SegmentId,
    /// [`bind`](crate::format::bind) of the block.
    pub(crate) checksum: u32,
    pub(crate) slot: u16,
    /// True if the backing store does not have the block yet.
    pub(crate) dirty: bool,
    pub(crate) hit: Hit,
}

const _: () = assert!(size_of::<Entry>() == 12);

impl Entry {
    /// Returns true if both entries stand for one copy.
    pub(crate) fn same_place(&self, other: &Entry) -> bool {
        (self.segment, self.slot) == (other.segment, other.slot)
    }
}

/// The index entries of [`LEAF`] consecutive blocks of an object.
#[derive(Debug, Default)]
pub(crate) struct Leaf {
    on_ssd: u64,
    in_ram: u64,
    ram_hit: u64,
    /// Blocks of which sweep number `sweep` has met an entry in the memory tier's queue.
    met: u64,
    sweep: u32,
    entries: Vec<Entry>,
    pages: Vec<Page>,
}

fn rank(map: u64, index: u32) -> usize {
    (map & ((1 << index) - 1)).count_ones() as usize
}

impl Leaf {
    pub(crate) fn is_empty(&self) -> bool {
        self.on_ssd == 0 && self.in_ram == 0
    }

    pub(crate) fn entry(&self, index: u32) -> Option<&Entry> {
        (self.on_ssd & 1 << index != 0).then(|| &self.entries[rank(self.on_ssd, index)])
    }

    pub(crate) fn entry_mut(&mut self, index: u32) -> Option<&mut Entry> {
        (self.on_ssd & 1 << index != 0).then(|| &mut self.entries[rank(self.on_ssd, index)])
    }

    /// Sets the place of a block. Returns its former place.
    pub(crate) fn set_entry(&mut self, index: u32, entry: Entry) -> Option<Entry> {
        if let Some(old) = self.entry_mut(index) {
            return Some(std::mem::replace(old, entry));
        }
        self.entries.insert(rank(self.on_ssd, index), entry);
        self.on_ssd |= 1 << index;
        None
    }

    /// Removes the entry of the copy on the devices, and returns it.
    pub(crate) fn remove_entry(&mut self, index: u32) -> Option<Entry> {
        self.entry(index)?;
        let entry = self.entries.remove(rank(self.on_ssd, index));
        self.on_ssd &= !(1 << index);
        Some(entry)
    }

    /// Returns the page of a block, and marks it as used.
    pub(crate) fn use_page(&mut self, index: u32) -> Option<&Page> {
        if self.in_ram & 1 << index == 0 {
            return None;
        }
        self.ram_hit |= 1 << index;
        Some(&self.pages[rank(self.in_ram, index)])
    }

    pub(crate) fn page(&self, index: u32) -> Option<&Page> {
        (self.in_ram & 1 << index != 0).then(|| &self.pages[rank(self.in_ram, index)])
    }

    /// Puts a block into memory. Returns true if it was not there.
    pub(crate) fn set_page(&mut self, index: u32, page: Page) -> bool {
        let at = rank(self.in_ram, index);
        if self.in_ram & 1 << index != 0 {
            self.pages[at] = page;
            return false;
        }
        self.pages.insert(at, page);
        self.in_ram |= 1 << index;
        self.ram_hit &= !(1 << index);
        true
    }

    /// Removes the page in memory, and returns it.
    pub(crate) fn remove_page(&mut self, index: u32) -> Option<Page> {
        if self.in_ram & 1 << index == 0 {
            return None;
        }
        let page = self.pages.remove(rank(self.in_ram, index));
        self.in_ram &= !(1 << index);
        Some(page)
    }

    /// Returns true if a block is in memory, and the sweep has met no entry of it yet.
    pub(crate) fn is_first_entry(&mut self, index: u32, sweep: u32) -> bool {
        if self.sweep != sweep {
            (self.sweep, self.met) = (sweep, 0);
        }
        let first = self.in_ram & !self.met & 1 << index != 0;
        self.met |= 1 << index;
        first
    }

    /// Returns true if the page was used since it was put there or last asked for; clears the mark.
    pub(crate) fn take_hit(&mut self, index: u32) -> bool {
        let hit = self.ram_hit & 1 << index != 0;
        self.ram_hit &= !(1 << index);
        hit
    }

    /// Returns the blocks on an SSD whose indexes are in `from..to`, in order.
    pub(crate) fn entries_in(&self, from: u64, to: u64) -> impl Iterator<Item = (u32, &Entry)> {
        let below =
            |index: u64| 1u64.checked_shl(u32::try_from(index).unwrap_or(64)).map_or(u64::MAX, |bit| bit - 1);
        bits(self.on_ssd & below(to) & !below(from)).filter_map(|index| Some((index, self.entry(index)?)))
    }

    /// Returns the indexes of blocks that are on an SSD.
    pub(crate) fn on_ssd(&self) -> impl Iterator<Item = u32> + use<> {
        bits(self.on_ssd)
    }

    /// Returns the indexes of blocks that are in memory.
    pub(crate) fn in_ram(&self) -> impl Iterator<Item = u32> + use<> {
        bits(self.in_ram)
    }

    /// Returns the bytes of memory that the index of the SSDs takes in this leaf.
    pub(crate) fn index_bytes(&self) -> usize {
        size_of::<Self>() + self.entries.capacity() * size_of::<Entry>()
    }
}

/// Returns the numbers of the bits that are set, lowest first.
fn bits(mut map: u64) -> impl Iterator<Item = u32> {
    std::iter::from_fn(move || {
        (map != 0).then(|| {
            let bit = map.trailing_zeros();
            map &= map - 1;
            bit
        })
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn entry(slot: u16) -> Entry {
        Entry { segment: 3, checksum: 7, slot, dirty: false, hit: Hit::No }
    }

    proptest! {
        #[test]
        fn a_leaf_is_a_map(steps in proptest::collection::vec((0..64_u32, any::<u16>(), 0..4_u8), 0..300)) {
            let mut leaf = Leaf::default();
            let span = steps.len() as u64 % 70;
            let (mut entries, mut pages) = (BTreeMap::new(), BTreeMap::new());
            for (index, value, what) in steps {
                match what {
                    0 => prop_assert_eq!(leaf.set_entry(index, entry(value)), entries.insert(index, entry(value))),
                    1 => prop_assert_eq!(leaf.remove_entry(index), entries.remove(&index)),
                    2 => {
                        let page = Page::from(value.to_le_bytes().as_slice());
                        let new = pages.insert(index, page.clone()).is_none();
                        prop_assert_eq!(leaf.set_page(index, page), new);
                    }
                    _ => prop_assert_eq!(leaf.remove_page(index), pages.remove(&index)),
                }
                prop_assert_eq!(leaf.on_ssd().collect::<Vec<_>>(), entries.keys().copied().collect::<Vec<_>>());
                prop_assert_eq!(leaf.in_ram().collect::<Vec<_>>(), pages.keys().copied().collect::<Vec<_>>());
                prop_assert!((0..64).all(|index| leaf.entry(index) == entries.get(&index)));
                prop_assert!((0..64).all(|index| leaf.page(index) == pages.get(&index)));
                let (from, to) = (u64::from(index), u64::from(index) + span);
                let within: Vec<_> = leaf.entries_in(from, to).map(|(index, entry)| (index, *entry)).collect();
                let expected = entries.iter().filter(|(at, _)| (from..to).contains(&u64::from(**at)));
                prop_assert_eq!(within, expected.map(|(at, entry)| (*at, *entry)).collect::<Vec<_>>());
                prop_assert_eq!(leaf.is_empty(), entries.is_empty() && pages.is_empty());
            }
        }
    }

    #[test]
    fn a_full_leaf_takes_less_than_16_bytes_a_block() {
        let mut leaf = Leaf::default();
        (0..64).for_each(|index| {
            leaf.set_entry(index, entry(1));
        });
        assert!(leaf.index_bytes() <= 14 * 64, "{}", leaf.index_bytes());
    }

    #[test]
    fn a_page_is_hit_once_it_was_used() {
        let mut leaf = Leaf::default();
        leaf.set_page(5, Page::from(&[1][..]));
        assert!(!leaf.take_hit(5));
        leaf.use_page(5);
        assert!(leaf.take_hit(5) && !leaf.take_hit(5));
    }
}
