//! The tracked blocks: a table from a block's hash to its number, and the state of each block in every tier.

use crate::entry::{MOST_BLOCKS, Place};

/// Marks an unused slot of the table.
const NONE: u32 = u32::MAX;

/// The tracked blocks. A block is tracked while any queue has an entry of it.
#[derive(Debug)]
pub(crate) struct Blocks {
    /// The number of tiers.
    tiers: usize,
    hashes: Vec<u64>,
    /// The number of queue entries of each block; 0 for an unused number.
    entries: Vec<u32>,
    /// The state of each block in each tier, block by block.
    places: Vec<Place>,
    unused: Vec<u32>,
    /// Numbers of blocks, by hash, with linear probing. The length is a power of two.
    table: Vec<u32>,
    len: usize,
}

impl Blocks {
    /// Returns an empty table with room for `room` blocks before it grows.
    pub(crate) fn new(tiers: usize, room: usize) -> Self {
        Blocks {
            tiers,
            hashes: Vec::with_capacity(room),
            entries: Vec::with_capacity(room),
            places: Vec::with_capacity(room * tiers),
            unused: Vec::new(),
            table: vec![NONE; (room * 2).next_power_of_two().max(64)],
            len: 0,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn hash(&self, block: u32) -> u64 {
        self.hashes[block as usize]
    }

    pub(crate) fn place(&self, block: u32, tier: usize) -> Place {
        self.places[block as usize * self.tiers + tier]
    }

    pub(crate) fn place_mut(&mut self, block: u32, tier: usize) -> &mut Place {
        &mut self.places[block as usize * self.tiers + tier]
    }

    /// Returns the place of a hash in the table where a search begins.
    fn slot(&self, hash: u64) -> usize {
        // The low bits: the high ones decide whether a block is sampled.
        hash as usize & (self.table.len() - 1)
    }

    /// Returns the number of the block with this hash. A block that was not tracked has no entries yet, so the caller
    /// adds one.
    pub(crate) fn get(&mut self, hash: u64) -> u32 {
        let mask = self.table.len() - 1;
        let mut slot = self.slot(hash);
        while self.table[slot] != NONE {
            if self.hashes[self.table[slot] as usize] == hash {
                return self.table[slot];
            }
            slot = (slot + 1) & mask;
        }
        let block = self.unused.pop().unwrap_or_else(|| {
            let block = self.hashes.len() as u32;
            assert!(block < MOST_BLOCKS, "more blocks are tracked than entries can name");
            self.hashes.push(0);
            self.entries.push(0);
            self.places.resize(self.places.len() + self.tiers, Place::default());
            block
        });
        self.hashes[block as usize] = hash;
        self.table[slot] = block;
        self.len += 1;
        if self.len * 4 > self.table.len() * 3 {
            self.grow();
        }
        block
    }

    /// Doubles the hash table.
    fn grow(&mut self) {
        let old = std::mem::take(&mut self.table);
        self.table = vec![NONE; old.len() * 2];
        for block in old.into_iter().filter(|block| *block != NONE) {
            let mask = self.table.len() - 1;
            let mut slot = self.slot(self.hashes[block as usize]);
            while self.table[slot] != NONE {
                slot = (slot + 1) & mask;
            }
            self.table[slot] = block;
        }
    }

    /// Counts a queue entry of the block.
    pub(crate) fn added(&mut self, block: u32) {
        self.entries[block as usize] += 1;
    }

    /// Uncounts a queue entry of the block. Without any entry the block is tracked no more.
    pub(crate) fn removed(&mut self, block: u32) {
        self.entries[block as usize] -= 1;
        if self.entries[block as usize] > 0 {
            return;
        }
        let first = block as usize * self.tiers;
        self.places[first..first + self.tiers].fill(Place::default());
        self.unlink(block);
        self.unused.push(block);
        self.len -= 1;
    }

    /// Removes a block from the table. Later blocks of the same run move up, so that they are still found.
    fn unlink(&mut self, block: u32) {
        let mask = self.table.len() - 1;
        let mut slot = self.slot(self.hashes[block as usize]);
        while self.table[slot] != block {
            slot = (slot + 1) & mask;
        }
        let mut next = (slot + 1) & mask;
        while self.table[next] != NONE {
            let home = self.slot(self.hashes[self.table[next] as usize]);
            // The block may move up unless that is before its home.
            if (next.wrapping_sub(home) & mask) >= (next.wrapping_sub(slot) & mask) {
                self.table[slot] = self.table[next];
                slot = next;
            }
            next = (next + 1) & mask;
        }
        self.table[slot] = NONE;
    }

    /// Returns the bytes of memory that the table takes.
    pub(crate) fn bytes(&self) -> usize {
        self.hashes.capacity() * 8
            + (self.entries.capacity() + self.unused.capacity() + self.table.capacity()) * 4
            + self.places.capacity() * size_of::<Place>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    #[test]
    fn blocks_are_found_whatever_was_dropped_before() {
        let mut blocks = Blocks::new(2, 16);
        let mut known = HashMap::new();
        let mut random = 1_u64;
        for step in 0..20_000_u64 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            // Many hashes share their low bits, so that runs of the table are long.
            let hash = (random >> 60) << 32 | (random >> 40 & 0xff);
            match known.get(&hash) {
                Some(block) if step % 3 == 0 => {
                    blocks.removed(*block);
                    known.remove(&hash);
                }
                Some(block) => {
                    assert_eq!(blocks.get(hash), *block);
                    assert!(blocks.place(*block, 1).is_live());
                }
                None => {
                    let block = blocks.get(hash);
                    assert_eq!(blocks.place(block, 1), Place::default());
                    blocks.place_mut(block, 1).renew();
                    blocks.added(block);
                    known.insert(hash, block);
                }
            }
            assert_eq!(blocks.len(), known.len());
        }
        for (hash, block) in &known {
            assert_eq!((blocks.get(*hash), blocks.hash(*block)), (*block, *hash));
        }
    }
}
