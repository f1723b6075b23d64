//! The sparse contents of one backing file.

use std::collections::BTreeMap;
use std::sync::Arc;

use forebay_engine::buffer::BLOCK;
use forebay_engine::io::Time;

use crate::disk::Page;

/// A file's bytes and attributes.
#[derive(Clone, Debug, Default)]
pub struct Content {
    /// Size in bytes.
    pub size: u64,
    /// Modification time.
    pub mtime: Time,
    pages: BTreeMap<u64, Page>,
}

impl Content {
    /// Returns the number of allocated blocks.
    pub fn allocated(&self) -> u64 {
        self.pages.len() as u64
    }

    /// Returns true if `block` is no hole.
    pub fn has(&self, block: u64) -> bool {
        self.pages.contains_key(&block)
    }

    /// Returns the blocks that are no holes.
    pub fn blocks(&self) -> impl Iterator<Item = u64> {
        self.pages.keys().copied()
    }

    /// Makes a block a hole.
    pub fn free(&mut self, block: u64) {
        self.pages.remove(&block);
    }

    /// Returns the block's bytes; zeros beyond the end and in holes.
    pub fn page(&self, block: u64) -> Page {
        self.pages.get(&block).cloned().unwrap_or_else(|| Arc::new([0; BLOCK]))
    }

    /// Replaces a block. Bytes beyond the end are dropped.
    pub fn put(&mut self, block: u64, page: Page) {
        let start = block * BLOCK as u64;
        if start < self.size {
            self.pages.insert(block, page);
            if start + BLOCK as u64 > self.size {
                self.clear_tail();
            }
        }
    }

    /// Gives the block its contents in `other`, which may be a hole.
    pub fn revert(&mut self, block: u64, other: &Content) {
        match other.pages.get(&block) {
            Some(page) => self.put(block, page.clone()),
            None => {
                self.pages.remove(&block);
            }
        }
    }

    /// Truncates, or grows with zeros.
    pub fn resize(&mut self, size: u64) {
        let shrinks = size < self.size;
        self.size = size;
        if shrinks {
            self.pages.split_off(&size.div_ceil(BLOCK as u64));
            self.clear_tail();
        }
    }

    /// Zeroes the bytes of the last block that lie behind the end of the file. A later growth must not show old
    /// bytes.
    fn clear_tail(&mut self) {
        let keep = (self.size % BLOCK as u64) as usize;
        if keep > 0
            && let Some(page) = self.pages.get_mut(&(self.size / BLOCK as u64))
        {
            Arc::make_mut(page)[keep..].fill(0);
        }
    }

    /// Fills `bytes` from `offset`. Returns the number of bytes that lie before the end.
    pub fn read(&self, offset: u64, bytes: &mut [u8]) -> usize {
        let len = self.size.saturating_sub(offset).min(bytes.len() as u64) as usize;
        let mut done = 0;
        while done < len {
            let at = offset + done as u64;
            let within = (at % BLOCK as u64) as usize;
            let count = (BLOCK - within).min(len - done);
            match self.pages.get(&(at / BLOCK as u64)) {
                Some(page) => bytes[done..done + count].copy_from_slice(&page[within..within + count]),
                None => bytes[done..done + count].fill(0),
            }
            done += count;
        }
        len
    }
}
