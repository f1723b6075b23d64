//! The simulated ghost list: the blocks that left memory recently, as in `tiers/ghost.rs` of the engine. A newer mark
//! replaces an older one in its place.

/// The ghost list of one simulated size.
#[derive(Debug)]
pub(crate) struct Ghosts {
    /// Hashes of blocks; 0 for an empty place.
    marks: Vec<u64>,
}

impl Ghosts {
    pub(crate) fn new(room: usize) -> Self {
        Ghosts { marks: vec![0; room.max(1)] }
    }

    /// Returns the place in the list that the hash of a block has.
    fn place(&self, hash: u64) -> usize {
        // The low half decides: the high bits of all sampled hashes are 0.
        (((hash & 0xffff_ffff) * self.marks.len() as u64) >> 32) as usize
    }

    /// Notes that the block with this hash has left memory.
    pub(crate) fn note(&mut self, hash: u64) {
        let place = self.place(hash);
        self.marks[place] = hash;
    }

    pub(crate) fn knows(&self, hash: u64) -> bool {
        self.marks[self.place(hash)] == hash
    }

    /// Keeps the blocks whose hash is below `threshold`, in a list of another length.
    pub(crate) fn resize(&mut self, room: usize, threshold: u64) {
        let old = std::mem::replace(self, Ghosts::new(room));
        old.marks.into_iter().filter(|hash| *hash != 0 && *hash < threshold).for_each(|hash| self.note(hash));
    }

    pub(crate) fn bytes(&self) -> usize {
        self.marks.capacity() * 8
    }
}
