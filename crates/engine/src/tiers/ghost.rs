//! The ghost list: hashes of blocks that left memory recently, or were used while there (S3-FIFO's ghost queue,
//! SOSP'23). A block found there is worth a place on an SSD, even if one must be made. The blocks of a scan never
//! return.

use std::sync::atomic::{AtomicU32, Ordering};

/// The marks of recent blocks. A newer mark replaces an older one in its place.
#[derive(Debug)]
pub(crate) struct Ghosts(Vec<AtomicU32>);

impl Ghosts {
    /// Returns a list with room for about `blocks`.
    pub(crate) fn new(blocks: usize) -> Self {
        Ghosts((0..blocks.next_power_of_two().max(1024)).map(|_| AtomicU32::new(0)).collect())
    }

    /// Returns the place of a block in the list, and the mark that stands for the block there. Other blocks share the
    /// place.
    fn place(&self, object: u64, block: u64) -> (&AtomicU32, u32) {
        let hash = (object ^ block.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_mul(0xd6e8_feb8_6659_fd93);
        // 0 marks an empty place.
        (&self.0[(hash >> 32) as usize & (self.0.len() - 1)], hash as u32 | 1)
    }

    /// Adds a block of the object whose key hashes to `object`.
    pub(crate) fn note(&self, object: u64, block: u64) {
        let (place, mark) = self.place(object, block);
        place.store(mark, Ordering::Relaxed);
    }

    /// Returns true if the block is in the list.
    pub(crate) fn knows(&self, object: u64, block: u64) -> bool {
        let (place, mark) = self.place(object, block);
        place.load(Ordering::Relaxed) == mark
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_noted_is_known_until_others_take_its_place() {
        let ghosts = Ghosts::new(1);
        assert!(!ghosts.knows(7, 1));
        ghosts.note(7, 1);
        assert!(ghosts.knows(7, 1) && !ghosts.knows(7, 2) && !ghosts.knows(8, 1));
        (0..100_000).for_each(|block| ghosts.note(9, block));
        assert!(!ghosts.knows(7, 1));
        assert!((99_900..100_000).filter(|block| ghosts.knows(9, *block)).count() > 80);
    }
}
