//! The contents of a device: durable, cached, unreadable.

use std::sync::Arc;

use forebay_engine::buffer::{BLOCK, Slice};
use forebay_engine::io::DeviceError;

use super::{Page, State};
use crate::executor::Executor;

impl State {
    /// Counts down to the crash that is planned behind a number of new segment headers. See
    /// [`super::Disk::crash_at_header`].
    pub(super) fn count_header(&mut self, executor: &Executor) {
        self.crash_at_header = match self.crash_at_header {
            Some((headers, steps)) if headers <= 1 => {
                executor.crash_in(Some(steps));
                None
            }
            Some((headers, steps)) => Some((headers - 1, steps)),
            None => None,
        };
    }

    /// Counts the beginning or end of an operation. Returns true if the device vanishes with it.
    pub(super) fn goes_now(&mut self) -> bool {
        let goes = self.vanish_in == Some(0);
        self.vanish_in = self.vanish_in.and_then(|events| events.checked_sub(1));
        self.gone |= goes;
        goes
    }

    /// Returns the contents that a read finds: the newest completed write, durable or not. `None` if the block was
    /// never written.
    pub(super) fn current(&self, block: u64) -> Option<&Page> {
        self.cached
            .get(&block)
            .and_then(|writes| writes.last())
            .map(|(_, page)| page)
            .or_else(|| self.stable.get(&block))
    }

    /// Puts a completed write of one block into the device's cache. It repairs sector errors and earlier faults of
    /// the block.
    pub(super) fn put(&mut self, block: u64, page: Page) {
        self.latent.remove(&block);
        self.promises.mend(block);
        self.cached.entry(block).or_default().push((self.completed, page));
    }

    /// Makes durable, block by block, the newest of the writes that `covered` accepts, and everything before it.
    pub(super) fn harden(&mut self, covered: impl Fn(u64) -> bool) {
        let stable = &mut self.stable;
        self.cached.retain(|block, writes| {
            let newest = writes.iter().rposition(|(completed, _)| covered(*completed));
            if let Some((_, page)) = newest.and_then(|newest| writes.drain(..=newest).next_back()) {
                stable.insert(*block, page);
            }
            !writes.is_empty()
        });
    }

    /// Returns the block with the highest number among the blocks that `is_one` accepts. Headers and frames have the
    /// number in one place.
    pub(super) fn newest(&self, is_one: impl Fn(&Page) -> bool) -> Option<u64> {
        let number = |page: &Page| page[56..64].iter().rev().fold(0, |all, byte| all << 8 | u64::from(*byte));
        let found = self.stable.iter().filter(|(_, page)| is_one(page));
        found.max_by_key(|(_, page)| number(page)).map(|(block, _)| *block)
    }

    /// Flips one bit of the block, at a place chosen by chance, in its durable and in all cached contents.
    pub(super) fn rot(&mut self, block: u64) {
        self.promises.harm(block);
        let bit = self.rng.index(BLOCK * 8);
        let flip = |page: &mut Page| Arc::make_mut(page)[bit / 8] ^= 1 << (bit % 8);
        self.stable.get_mut(&block).map(flip);
        for (_, page) in self.cached.get_mut(&block).into_iter().flatten() {
            flip(page);
        }
    }

    /// Copies the contents of a block to `bytes`; zeros if the block was never written. Fails on a sector error, and
    /// counts down an error that passes.
    pub(super) fn read_block(&mut self, block: u64, bytes: &mut [u8]) -> Result<(), DeviceError> {
        if let Some(reads) = self.latent.get_mut(&block) {
            if *reads != u32::MAX {
                *reads -= 1;
                if *reads == 0 {
                    self.latent.remove(&block);
                }
            }
            return Err(DeviceError::Io);
        }
        match self.current(block) {
            Some(page) => bytes.copy_from_slice(&page[..]),
            None => bytes.fill(0),
        }
        Ok(())
    }
}

/// Returns the blocks of `data`.
pub(super) fn pages(data: &Slice) -> impl Iterator<Item = Page> + use<> {
    let data = data.clone();
    (0..data.len() / BLOCK).map(move |place| {
        let mut page = [0; BLOCK];
        page.copy_from_slice(&data[place * BLOCK..(place + 1) * BLOCK]);
        Arc::new(page)
    })
}
