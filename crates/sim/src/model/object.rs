//! The known state of an object, and the values that a read of it may find.

use std::ops::Range;

use forebay_engine::buffer::BLOCK;

use super::{Block, ModelObject, Reading, blocks, within};
use crate::layers::Layered;
use crate::register::Overwrite;
use crate::stamp::{Generation, Place, Runs, Stamp, describe, plausible};

/// Lets uncertain contents of a block be cut off from the start of `tail` on.
fn may_end(register: &mut Block, tail: &Range<usize>) {
    if register.folded().is_some() && !register.is_one() {
        register.attempt(&Overwrite::Bytes(tail.clone(), Stamp::ZEROS));
    }
}

impl ModelObject {
    /// Moves the effects of finished operations into the known values, so that the registers stay small. Does nothing
    /// while a client reads the object.
    pub(super) fn fold(&mut self, logged: bool, lossy: bool) {
        if self.readers == 0 {
            for id in self.whole.drain(..) {
                self.torn.remove(&id);
            }
            self.size.fold(logged, lossy);
            self.mtime.fold(logged, lossy);
            let ModelObject { blocks, unfolded, .. } = self;
            unfolded.retain(|block| {
                let Some(register) = blocks.get_mut(block) else { return false };
                register.fold(logged, lossy);
                register.folded().is_none()
            });
        }
    }

    /// Returns true if a write up to `end` cannot make the object longer, whichever operations in progress have
    /// happened.
    pub(super) fn reaches(&self, end: u64) -> bool {
        self.size.folded().is_some_and(|sizes| sizes.iter().all(|size| *size >= end))
    }

    /// Notes the present size before a change.
    pub(super) fn note_end(&mut self, logged: bool) {
        if !logged {
            let partial = self.size.possible(0).into_iter().filter(|size| !size.is_multiple_of(BLOCK as u64));
            self.ends.extend(partial);
        }
    }

    /// Allows for new contents of the last block without the new size, of the object or of its backing file.
    pub(super) fn cut_short(&mut self) {
        for size in self.size.folded().unwrap_or_default().to_vec() {
            for (block, register) in self.blocks.range_mut(size / BLOCK as u64..) {
                may_end(register, &within(*block, &(size..u64::MAX)));
            }
        }
        for end in &self.ends {
            let block = end / BLOCK as u64;
            if let Some(register) = self.blocks.get_mut(&block) {
                may_end(register, &within(block, &(*end..u64::MAX)));
            }
        }
    }

    /// Returns true if the object may have a size that `fits`, and narrows the possible sizes to it. An object with a
    /// torn write may end at the end of each block of the write.
    pub(super) fn observe_size(&mut self, visible: u64, fits: impl Fn(&u64) -> bool) -> bool {
        if self.unsized_since || self.size.observe(visible, &fits) {
            return true;
        }
        let mut ends =
            self.torn.values().flat_map(|blocks| blocks.clone().skip(1)).map(|block| block * BLOCK as u64);
        match (ends.find(&fits), self.size.folded()) {
            (Some(size), Some(_)) => {
                self.size.found(size);
                true
            }
            (Some(_), None) => true,
            (None, _) => false,
        }
    }

    /// Cuts off the contents beyond the size, if only one size is possible.
    pub(super) fn clip(&mut self) {
        let Some([size]) = self.size.folded() else { return };
        let size = *size;
        for (block, register) in self.blocks.range_mut(size / BLOCK as u64..) {
            let Some(values) = register.folded() else { continue };
            let mut clipped: Vec<Layered> = Vec::new();
            for mut value in values.iter().cloned() {
                value.apply(&within(*block, &(size..u64::MAX)), Stamp::ZEROS);
                if !clipped.contains(&value) {
                    clipped.push(value);
                }
            }
            register.set(clipped);
        }
    }

    /// Compares the bytes that a client has read with the possible contents, and narrows those to the seen ones.
    /// Returns a sentence for people about the first wrong block.
    pub(super) fn check(&mut self, reading: &Reading, bytes: &[u8]) -> Result<(), String> {
        let Reading { object, offset, len, size: visible, .. } = *reading;
        let fits = |size: &u64| size.saturating_sub(offset).min(len as u64) == bytes.len() as u64;
        if !self.observe_size(visible, fits) {
            let possible = self.size.possible(visible);
            return Err(format!(
                "a read of {len} bytes at {offset} of object {object} gave {} bytes, possible sizes are {possible:?}",
                bytes.len()
            ));
        }
        let range = offset..offset + bytes.len() as u64;
        let zeros = Block::new(Runs::default().into());
        for block in blocks(&range) {
            let part = within(block, &range);
            let start = (block * BLOCK as u64 + part.start as u64 - offset) as usize;
            let bytes = &bytes[start..start + part.len()];
            let visible = reading.blocks.get(&block).copied().unwrap_or(0);
            let matches = |contents: &Layered| contents.matches(bytes, part.start);
            let narrow = |contents: &Layered| contents.narrow(bytes, part.start);
            let known = match self.blocks.get_mut(&block) {
                Some(register) => register.narrow(visible, matches, narrow),
                None => Runs::default().matches(bytes, part.start),
            };
            if !known {
                let register = self.blocks.get(&block).unwrap_or(&zeros);
                return Err(format!(
                    "object {object} block {block} from byte {} holds{}; possible are {:?}",
                    part.start,
                    describe(bytes, part.start),
                    register.possible(visible)
                ));
            }
        }
        Ok(())
    }

    /// Checks that every byte was once written to its place, by a write up to number `newest`. This still bounds the
    /// contents of a block whose last copy faults have destroyed.
    pub(super) fn plausible(
        &self,
        reading: &Reading,
        bytes: &[u8],
        newest: Generation,
    ) -> Result<(), String> {
        let range = reading.offset..reading.offset + bytes.len() as u64;
        for block in blocks(&range) {
            let part = within(block, &range);
            let start = (block * BLOCK as u64 + part.start as u64 - reading.offset) as usize;
            let bytes = &bytes[start..start + part.len()];
            let place = Place { object: reading.object, block };
            let cloned = self.cloned.get(&block);
            let fits = |found| found == place || cloned.is_some_and(|from| from.contains(&found));
            if !plausible(bytes, part.start, newest, fits) {
                return Err(format!(
                    "object {} block {block} holds what was never there:{}",
                    reading.object,
                    describe(bytes, part.start)
                ));
            }
        }
        Ok(())
    }
}
