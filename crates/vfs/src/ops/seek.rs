//! SEEK of NFSv4.2: the data and the holes of a file, of which a part is only in the cache.

use std::ops::Range;
use std::os::fd::BorrowedFd;

use forebay_runtime::block_on;
use rustix::fs::SeekFrom;
use rustix::io::Errno;

use crate::caches::access_cache::want;
use crate::error::{Error, Result, from_cache};
use crate::export::Target;
use crate::export::vfs::Vfs;
use crate::ops::data::permitted;
use crate::ops::data_caller::DataCaller;
use crate::wait::Wait;

/// The content that a SEEK looks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// Bytes that the file system, or only the cache, has stored.
    Data,
    /// Bytes that are not stored, and read as zeros. The end of the file is a hole.
    Hole,
}

/// The result of a SEEK.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sought {
    /// The offset of the content, or the size of the file.
    pub offset: u64,
    /// True if the search reached the end of the file.
    pub eof: bool,
}

impl Vfs {
    /// Returns the first `content` at or behind `offset`. Fails with ENXIO at and behind the end of the file.
    pub fn seek(
        &self,
        target: &Target,
        caller: DataCaller<'_>,
        offset: u64,
        content: Content,
    ) -> Result<Sought> {
        let attr = target.attr()?;
        permitted(self, target, caller, &attr, want::READ, Wait::Yes)?;
        if offset >= attr.size {
            return Err(Error::Os(Errno::NXIO));
        }
        let file = target.object.reader(&self.budget, true)?;
        let cached = target.object.link.get().filter(|cached| cached.dirty_blocks() > 0);
        let dirty = |offset| cached.and_then(|cached| cached.dirty_run(offset));
        let in_file = |from| seek_in(file, from);
        let found = match content {
            Content::Data => next_data(dirty, in_file, offset)?,
            Content::Hole => Some(next_hole(dirty, in_file, offset)?),
        };
        if let Some(linked) = target.export.fs.linked().filter(|_| cached.is_some()) {
            // A crash must not take back what the client was told of a write.
            let engine = &linked.cache.engine;
            block_on(engine.commit(engine.last())).map_err(from_cache)?;
        }
        let offset = found.unwrap_or(attr.size).min(attr.size);
        Ok(Sought { offset, eof: offset == attr.size })
    }
}

/// Returns the offset of the first data at or behind `offset`. `dirty` returns the first run of dirty blocks behind an
/// offset, and `file` seeks in the backing file. A block that is destaged meanwhile is found in one of the two places,
/// because the cache is asked first.
fn next_data(
    mut dirty: impl FnMut(u64) -> Option<Range<u64>>,
    mut file: impl FnMut(SeekFrom) -> Result<Option<u64>>,
    offset: u64,
) -> Result<Option<u64>> {
    let dirty = dirty(offset).map(|run| run.start.max(offset));
    Ok(dirty.into_iter().chain(file(SeekFrom::Data(offset))?).min())
}

/// Returns the offset of the first hole at or behind `offset`, like [`next_data`]. The end of the backing file is one.
fn next_hole(
    mut dirty: impl FnMut(u64) -> Option<Range<u64>>,
    mut file: impl FnMut(SeekFrom) -> Result<Option<u64>>,
    mut offset: u64,
) -> Result<u64> {
    loop {
        // Asked first: a block that is not dirty is in the backing file.
        let dirty = dirty(offset);
        let hole = file(SeekFrom::Hole(offset))?.unwrap_or(offset);
        match dirty {
            Some(run) if run.contains(&hole) => offset = run.end,
            // The cache was asked for the blocks up to the run only.
            Some(run) if hole >= run.end => offset = hole,
            _ => return Ok(hole),
        }
    }
}

/// Seeks in the backing file. Returns `None` if the offset is behind its end, or if there is no data behind the offset.
fn seek_in(file: BorrowedFd<'_>, from: SeekFrom) -> Result<Option<u64>> {
    match rustix::fs::seek(file, from) {
        Ok(offset) => Ok(Some(offset)),
        Err(Errno::NXIO) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use super::*;

    const BLOCKS: usize = 6;

    #[derive(Clone, Copy, PartialEq)]
    enum Block {
        Hole,
        InFile,
        Dirty,
    }

    /// A file whose dirty blocks are destaged before one of the questions.
    struct Model {
        blocks: RefCell<Vec<Block>>,
        questions: Cell<usize>,
        destage_at: usize,
        /// Most blocks of a run of dirty blocks.
        run: usize,
    }

    impl Model {
        fn ask(&self) -> Vec<Block> {
            self.questions.set(self.questions.get() + 1);
            if self.questions.get() == self.destage_at {
                let mut blocks = self.blocks.borrow_mut();
                blocks.iter_mut().filter(|block| **block == Block::Dirty).for_each(|b| *b = Block::InFile);
            }
            self.blocks.borrow().clone()
        }

        fn dirty(&self, offset: u64) -> Option<Range<u64>> {
            let blocks = self.ask();
            let first = (offset as usize..BLOCKS).find(|at| blocks[*at] == Block::Dirty)?;
            let len = blocks[first..].iter().take(self.run).take_while(|block| **block == Block::Dirty);
            Some(first as u64..(first + len.count()) as u64)
        }

        /// Seeks as lseek(2) does in a file that ends behind its last block with data.
        fn seek(&self, from: SeekFrom) -> Option<u64> {
            let blocks = self.ask();
            let end = blocks.iter().rposition(|block| *block == Block::InFile).map_or(0, |at| at + 1);
            let (offset, data) = match from {
                SeekFrom::Data(offset) => (offset as usize, true),
                SeekFrom::Hole(offset) => (offset as usize, false),
                _ => return None,
            };
            if offset >= end {
                return None;
            }
            let found = (offset..end).find(|at| (blocks[*at] == Block::InFile) == data);
            found.or((!data).then_some(end)).map(|at| at as u64)
        }
    }

    #[test]
    fn a_block_that_is_destaged_during_a_seek_is_found() {
        for case in 0..3_usize.pow(BLOCKS as u32) {
            let kinds = [Block::Hole, Block::InFile, Block::Dirty];
            let blocks: Vec<_> = (0..BLOCKS).map(|at| kinds[case / 3_usize.pow(at as u32) % 3]).collect();
            let expected = |offset: usize, data: bool| {
                (offset..BLOCKS).find(|at| (blocks[*at] != Block::Hole) == data).map(|at| at as u64)
            };
            for (destage_at, run) in (0..10).flat_map(|at| [(at, 1), (at, BLOCKS)]) {
                for offset in 0..BLOCKS {
                    let model = || {
                        let (blocks, questions) = (RefCell::new(blocks.clone()), Cell::new(0));
                        Model { blocks, questions, destage_at, run }
                    };
                    let (one, two) = (model(), model());
                    let data = next_data(|at| one.dirty(at), |from| Ok(one.seek(from)), offset as u64);
                    assert_eq!(data, Ok(expected(offset, true)), "case {case}, {destage_at}, {offset}");
                    let hole = next_hole(|at| two.dirty(at), |from| Ok(two.seek(from)), offset as u64);
                    let end = expected(offset, false).unwrap_or(BLOCKS as u64);
                    assert_eq!(hole, Ok(end), "case {case}, {destage_at}, {offset}");
                }
            }
        }
    }
}
