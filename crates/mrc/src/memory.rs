//! The simulated memory tier: a FIFO whose used blocks go to its end again, as in `tiers/ram.rs` of the engine.

use std::collections::VecDeque;

use crate::blocks::Blocks;
use crate::entry::Entry;

/// The number of entries beyond twice the blocks from which on stale entries are dropped.
const SLACK: usize = 64;

/// A memory tier of one size.
#[derive(Debug)]
pub(crate) struct Memory {
    /// The number of the tier in [`Blocks`].
    tier: usize,
    queue: VecDeque<Entry>,
    live: usize,
    most: usize,
}

/// A block that the memory tier has examined because it holds too many.
pub(crate) enum Examined {
    /// The block was used, and goes to the end of the queue.
    Spared(u32),
    /// The block has left. The caller calls [`Blocks::removed`] when it is done with the block.
    Left(u32),
}

impl Memory {
    pub(crate) fn new(tier: usize) -> Self {
        Memory { tier, queue: VecDeque::new(), live: 0, most: 0 }
    }

    pub(crate) fn set_room(&mut self, most: f64) {
        self.most = (most.round() as usize).max(1);
    }

    pub(crate) fn has(&self, blocks: &Blocks, block: u32) -> bool {
        blocks.place(block, self.tier).is_live()
    }

    /// Marks a block as used. Returns false if the tier lacks the block.
    pub(crate) fn use_block(&self, blocks: &mut Blocks, block: u32) -> bool {
        let place = blocks.place_mut(block, self.tier);
        let live = place.is_live();
        if live {
            place.set_hit(true);
        }
        live
    }

    /// Adds a block, unless the tier has it.
    pub(crate) fn add(&mut self, blocks: &mut Blocks, block: u32) {
        let place = blocks.place_mut(block, self.tier);
        if place.is_live() {
            return;
        }
        place.renew();
        let entry = Entry::new(block, *place, false);
        self.queue.push_back(entry);
        blocks.added(block);
        self.live += 1;
        if self.queue.len() > 2 * self.live + SLACK {
            self.sweep(blocks, |_, _| true);
        }
    }

    /// Drops a block that is no longer valid.
    pub(crate) fn drop_block(&mut self, blocks: &mut Blocks, block: u32) {
        let place = blocks.place_mut(block, self.tier);
        if place.is_live() {
            place.leave();
            self.live -= 1;
        }
    }

    /// Examines the oldest block if there are too many.
    pub(crate) fn examine(&mut self, blocks: &mut Blocks) -> Option<Examined> {
        while self.live > self.most {
            let entry = self.queue.pop_front()?;
            let block = entry.block();
            let place = blocks.place_mut(block, self.tier);
            if !entry.is_current(*place) {
                blocks.removed(block);
            } else if place.is_hit() {
                place.set_hit(false);
                self.queue.push_back(entry);
                return Some(Examined::Spared(block));
            } else {
                place.leave();
                self.live -= 1;
                return Some(Examined::Left(block));
            }
        }
        None
    }

    /// Drops stale entries, and those of blocks that `keeps` does not want.
    pub(crate) fn sweep(&mut self, blocks: &mut Blocks, keeps: impl Fn(&Blocks, u32) -> bool) {
        for _ in 0..self.queue.len() {
            let Some(entry) = self.queue.pop_front() else { break };
            let block = entry.block();
            let current = entry.is_current(blocks.place(block, self.tier));
            if current && keeps(blocks, block) {
                self.queue.push_back(entry);
                continue;
            }
            if current {
                blocks.place_mut(block, self.tier).leave();
                self.live -= 1;
            }
            blocks.removed(block);
        }
        self.queue.shrink_to(self.queue.len() + SLACK);
    }

    pub(crate) fn entries(&self) -> usize {
        self.queue.len()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.queue.capacity() * size_of::<Entry>()
    }
}
