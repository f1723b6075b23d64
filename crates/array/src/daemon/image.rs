//! The bytes of the array: a sparse file, and the former contents that a power cut would bring back.
//!
//! A write changes the file at once. Until the disks have the block, its former content is kept. A power cut restores
//! the former content of a random subset of these blocks, as a lost cache or a torn write would.

use crate::model::BLOCK;
use memmap2::Mmap;
use rustix::fs::{FallocateFlags, SeekFrom};
use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

const BLOCK_SIZE: usize = BLOCK as usize;
static ZEROS: [u8; super::abi::MAX_TRANSFER] = [0; super::abi::MAX_TRANSFER];

/// The content of a block; `None` stands for zeros.
type Content = Option<Box<[u8; BLOCK_SIZE]>>;

/// A block whose content in the file is not yet on the platters.
#[derive(Debug)]
struct Volatile {
    platters: Content,
    /// True if the disks are writing the content that the file had when they began.
    started: bool,
    /// The content that the disks are writing, if the file has changed since they began.
    writing: Option<Content>,
}

/// The effect of a power cut on the blocks that were not on the platters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct Losses {
    /// Blocks of 4 KiB that have their former content again.
    pub(crate) lost: u64,
    /// Blocks of 4 KiB that kept their new content.
    pub(crate) kept: u64,
}

/// The file with the array's data.
#[derive(Debug)]
pub(super) struct Image {
    file: File,
    map: Mmap,
    /// One bit for each block: set if the block was written since its last discard. Other blocks read as zeros
    /// without touching the file, because reading a hole would allocate memory.
    present: Vec<u64>,
    volatile: HashMap<u64, Volatile>,
    /// True if a power cut may lose any block.
    tracks: bool,
}

impl Image {
    /// Opens or makes the file. `size` is its length in bytes, a multiple of 4096. With `tracks`, former contents are
    /// kept for a power cut.
    pub(super) fn open(path: &Path, size: u64, tracks: bool) -> io::Result<Self> {
        let file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
        if file.metadata()?.len() != size {
            file.set_len(size)?;
        }
        // SAFETY: the file keeps its length. Only this thread changes it, through `write_at` and `fallocate`. No
        // slice of the map is alive then, because slices borrow `self` and changes take `&mut self`.
        let map = unsafe { Mmap::map(&file)? };
        let mut image = Self {
            file,
            map,
            present: vec![0; size.div_ceil(BLOCK * 64) as usize],
            volatile: HashMap::new(),
            tracks,
        };
        image.find_data(size)?;
        Ok(image)
    }

    /// Marks the blocks that an existing image has as present. Holes stay absent, and so do not have to be read.
    fn find_data(&mut self, size: u64) -> io::Result<()> {
        let mut at = 0;
        while at < size {
            let start = match rustix::fs::seek(&self.file, SeekFrom::Data(at)) {
                Ok(start) => start,
                Err(rustix::io::Errno::NXIO) => break,
                Err(e) => return Err(e.into()),
            };
            at = rustix::fs::seek(&self.file, SeekFrom::Hole(start))?;
            (start / BLOCK..at.div_ceil(BLOCK)).for_each(|b| self.set(b, true));
        }
        Ok(())
    }

    /// Appends the slices that make up a range to `into`.
    pub(super) fn slices<'a>(&'a self, offset: u64, length: u64, into: &mut Vec<IoSlice<'a>>) {
        let (mut block, end) = (offset / BLOCK, (offset + length).div_ceil(BLOCK));
        while block < end {
            let present = self.has(block);
            let from = block;
            while block < end && self.has(block) == present {
                block += 1;
            }
            let (start, length) = ((from * BLOCK) as usize, ((block - from) * BLOCK) as usize);
            into.push(IoSlice::new(if present {
                &self.map[start..start + length]
            } else {
                &ZEROS[..length]
            }));
        }
    }

    /// Writes whole blocks.
    pub(super) fn write(&mut self, offset: u64, data: &[u8]) -> io::Result<()> {
        let blocks = offset / BLOCK..(offset + data.len() as u64) / BLOCK;
        if self.tracks {
            blocks.clone().for_each(|b| self.remember(b));
        }
        self.file.write_all_at(data, offset)?;
        blocks.for_each(|b| self.set(b, true));
        Ok(())
    }

    /// Makes a range read as zeros and frees its memory. A power cut does not restore the old content.
    pub(super) fn discard(&mut self, offset: u64, length: u64) -> io::Result<()> {
        let blocks = offset.div_ceil(BLOCK)..(offset + length) / BLOCK;
        if blocks.is_empty() {
            return Ok(());
        }
        let bytes = (blocks.end - blocks.start) * BLOCK;
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&self.file, flags, blocks.start * BLOCK, bytes)?;
        for block in blocks {
            self.volatile.remove(&block);
            self.set(block, false);
        }
        Ok(())
    }

    /// Notes that the disks begin to write the present content of the range.
    pub(super) fn started(&mut self, offset: u64, length: u64) {
        for block in offset / BLOCK..(offset + length) / BLOCK {
            if let Some(v) = self.volatile.get_mut(&block) {
                v.started = true;
                v.writing = None;
            }
        }
    }

    /// Notes that the content which the disks began to write is on the platters.
    pub(super) fn durable(&mut self, offset: u64, length: u64) {
        for block in offset / BLOCK..(offset + length) / BLOCK {
            let Some(v) = self.volatile.get_mut(&block).filter(|v| v.started) else { continue };
            match v.writing.take() {
                Some(written) => *v = Volatile { platters: written, started: false, writing: None },
                None => _ = self.volatile.remove(&block),
            }
        }
    }

    /// Cuts the power: restores the platters' content of a random subset of the blocks that are not on the platters.
    pub(super) fn cut(&mut self, seed: u64) -> io::Result<Losses> {
        let mut losses = Losses { lost: 0, kept: 0 };
        let mut volatile: Vec<(u64, Volatile)> = self.volatile.drain().collect();
        // Blocks are handled in order, so that the seed alone decides which are lost.
        volatile.sort_unstable_by_key(|(block, _)| *block);
        for (block, v) in volatile {
            if mix(seed ^ mix(block)) & 1 == 0 {
                losses.kept += 1;
                continue;
            }
            losses.lost += 1;
            match v.platters {
                Some(content) => self.file.write_all_at(&content[..], block * BLOCK)?,
                None => self.discard(block * BLOCK, BLOCK)?,
            }
        }
        Ok(losses)
    }

    /// Returns the number of blocks that a power cut at this moment could lose.
    pub(super) fn at_risk(&self) -> u64 {
        self.volatile.len() as u64
    }

    /// Keeps the content of a block from before a write, unless an older content of the platters is kept already.
    /// While the disks write the block, keeps the content in flight as well.
    fn remember(&mut self, block: u64) {
        let now = |image: &Self| {
            let start = (block * BLOCK) as usize;
            let bytes = image.has(block).then(|| &image.map[start..start + BLOCK_SIZE]);
            bytes.and_then(|b| b.try_into().ok()).map(|b: &[u8; BLOCK_SIZE]| Box::new(*b))
        };
        match self.volatile.get(&block) {
            None => {
                let entry = Volatile { platters: now(self), started: false, writing: None };
                self.volatile.insert(block, entry);
            }
            Some(v) if v.started && v.writing.is_none() => {
                let content = now(self);
                if let Some(v) = self.volatile.get_mut(&block) {
                    v.writing = Some(content);
                }
            }
            Some(_) => {}
        }
    }

    fn has(&self, block: u64) -> bool {
        self.present[(block / 64) as usize] >> (block % 64) & 1 == 1
    }

    /// Marks a block as present or as a hole. Changes no data.
    fn set(&mut self, block: u64, present: bool) {
        let word = &mut self.present[(block / 64) as usize];
        *word = *word & !(1 << (block % 64)) | u64::from(present) << (block % 64);
    }
}

/// Returns the finalizer of SplitMix64: every bit of the result depends on every bit of `x`.
fn mix(x: u64) -> u64 {
    let x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: u64 = 1 << 20;

    fn image(tracks: bool) -> (tempfile::TempDir, Image) {
        let dir = tempfile::tempdir().unwrap();
        let image = Image::open(&dir.path().join("image"), SIZE, tracks).unwrap();
        (dir, image)
    }

    fn read(image: &Image, offset: u64, length: u64) -> Vec<u8> {
        let mut parts = Vec::new();
        image.slices(offset, length, &mut parts);
        parts.iter().flat_map(|p| p.iter().copied()).collect()
    }

    fn filled(byte: u8, blocks: usize) -> Vec<u8> {
        vec![byte; blocks * BLOCK_SIZE]
    }

    #[test]
    fn holes_read_as_zeros_and_cost_no_memory() {
        let (_dir, mut image) = image(false);
        image.write(8192, &filled(3, 1)).unwrap();
        let all = read(&image, 0, 4 * BLOCK);
        assert!(all[..8192].iter().all(|b| *b == 0) && all[8192..12288].iter().all(|b| *b == 3));
        image.discard(8192, BLOCK).unwrap();
        assert_eq!(read(&image, 8192, BLOCK), filled(0, 1));
        assert_eq!(std::os::unix::fs::MetadataExt::blocks(&image.file.metadata().unwrap()), 0);
    }

    #[test]
    fn an_image_is_found_again() {
        let (dir, mut first) = image(false);
        first.write(40960, &filled(9, 2)).unwrap();
        drop(first);
        let again = Image::open(&dir.path().join("image"), SIZE, false).unwrap();
        assert_eq!(read(&again, 40960, 2 * BLOCK), filled(9, 2));
        assert_eq!(read(&again, 0, BLOCK), filled(0, 1));
    }

    #[test]
    fn a_cut_loses_a_subset_of_what_is_not_durable_and_nothing_else() {
        let (_dir, mut image) = image(true);
        image.write(0, &filled(1, 64)).unwrap();
        image.started(0, 64 * BLOCK);
        image.durable(0, 64 * BLOCK);
        image.write(0, &filled(2, 32)).unwrap();
        assert_eq!(image.at_risk(), 32);
        let losses = image.cut(5).unwrap();
        assert_eq!(losses.lost + losses.kept, 32);
        assert!(losses.lost > 4 && losses.kept > 4, "{losses:?}");
        let all = read(&image, 0, 64 * BLOCK);
        let old = all.chunks(BLOCK_SIZE).take(32).filter(|b| b[0] == 1).count() as u64;
        assert_eq!(old, losses.lost);
        assert!(all[32 * BLOCK_SIZE..].iter().all(|b| *b == 1));
    }

    #[test]
    fn the_seed_decides_what_is_lost() {
        let outcome = |seed| {
            let (_dir, mut image) = image(true);
            image.write(0, &filled(2, 32)).unwrap();
            image.cut(seed).unwrap();
            read(&image, 0, 32 * BLOCK)
        };
        assert_eq!(outcome(1), outcome(1));
        assert_ne!(outcome(1), outcome(2));
    }

    #[test]
    fn a_block_overwritten_while_it_is_destaged_goes_back_to_what_was_destaged() {
        let (_dir, mut image) = image(true);
        for block in 0..16 {
            image.write(block * BLOCK, &filled(1, 1)).unwrap();
        }
        image.started(0, 16 * BLOCK);
        image.write(0, &filled(2, 16)).unwrap();
        image.durable(0, 16 * BLOCK);
        assert!(image.cut(3).unwrap().lost > 0);
        let all = read(&image, 0, 16 * BLOCK);
        assert!(all.chunks(BLOCK_SIZE).all(|b| b[0] == 1 || b[0] == 2), "never the zeros from before");
        assert!(all.chunks(BLOCK_SIZE).any(|b| b[0] == 1));
    }
}
