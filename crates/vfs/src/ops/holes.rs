//! Holes and reserved space of files: SEEK, DEALLOCATE and ALLOCATE of NFSv4.2. docs/decisions/049-holes.md tells why
//! they go past the log.

use std::ops::Range;
use std::os::fd::BorrowedFd;

use forebay_engine::CachedObject as Cached;
use forebay_engine::Outcome;
use forebay_engine::buffer::BLOCK;
use forebay_runtime::block_on;
use rustix::fs::{FallocateFlags, SeekFrom, fallocate};
use rustix::io::{Errno, retry_on_intr};

use crate::attr::Attr;
use crate::caches::access_cache::want;
use crate::cred::Cred;
use crate::durability::journal::{Data, SyncRequest};
use crate::error::{Error, Result, from_cache};
use crate::export::Target;
use crate::export::cache::LogFrame;
use crate::export::vfs::Vfs;
use crate::oplog::commit::CommitRequest;
use crate::ops::cached::{Bypass, Taken, space_of};
use crate::ops::change::Changed;
use crate::ops::data::permitted;
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
    pub fn seek(&self, target: &Target, cred: &Cred, offset: u64, content: Content) -> Result<Sought> {
        let attr = target.attr()?;
        permitted(self, target, cred, &attr, want::READ, Wait::Yes)?;
        if offset >= attr.size {
            return Err(Error::Os(Errno::NXIO));
        }
        let file = target.object.reader(&self.budget, true)?;
        let cached = target.object.link.get().filter(|cached| cached.dirty_blocks() > 0);
        let found = match content {
            Content::Data => next_data(file, cached.map(AsRef::as_ref), offset)?,
            Content::Hole => Some(next_hole(file, cached.map(AsRef::as_ref), offset)?),
        };
        if let Some(linked) = target.export.fs.linked().filter(|_| cached.is_some()) {
            // A crash must not take back what the client was told of a write.
            let engine = &linked.cache.engine;
            block_on(engine.commit(engine.last())).map_err(from_cache)?;
        }
        let offset = found.unwrap_or(attr.size).min(attr.size);
        Ok(Sought { offset, eof: offset == attr.size })
    }

    /// Makes `len` bytes at `offset` read as zeros, and frees their space in the file system. The size stays. The outcome
    /// is `Wait` only if the file system or the cache would not answer.
    pub fn deallocate(&self, target: &Target, cred: &Cred, offset: u64, len: u64) -> Outcome<Changed<()>> {
        self.change_contents(target, Wait::Yes, |attr, errors| {
            permitted(self, target, cred, &attr, want::WRITE, Wait::Yes)?;
            let range = offset..offset.saturating_add(len).min(attr.size);
            if range.is_empty() {
                return Ok(((), None));
            }
            let bypass = Bypass { target, cred, range: range.clone() };
            let frame = self.change_past_log(&bypass, &attr, 0, |fd| {
                let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                allocate(fd, flags, &range)?;
                Ok(Taken::default())
            })?;
            Ok(((), Some(durable(target, &range, errors, frame))))
        })
    }

    /// Reserves space for `len` bytes at `offset` in the file system. The file grows if the range ends behind its end.
    pub fn allocate(&self, target: &Target, cred: &Cred, offset: u64, len: u64) -> Outcome<Changed<()>> {
        self.change_contents(target, Wait::Yes, |attr, errors| {
            permitted(self, target, cred, &attr, want::WRITE, Wait::Yes)?;
            let end = offset.checked_add(len).filter(|end| *end <= target.export.fs.largest_file);
            let range = offset..end.ok_or(Error::Os(Errno::FBIG))?;
            if range.is_empty() {
                return Ok(((), None));
            }
            // Cached blocks within the file stay. The bytes behind the end of the last block are zeros already.
            let grown = attr.size.next_multiple_of(BLOCK as u64)..range.end;
            let grows = range.end > attr.size;
            let grown = if grown.is_empty() { 0..0 } else { grown };
            let bypass = Bypass { target, cred, range: grown.clone() };
            let space = space_of(offset, len);
            let frame = self.change_past_log(&bypass, &attr, space, |fd| {
                allocate_in_file(fd, &range, &grown)?;
                if grows {
                    // The space is there already, so this only sets the size. It never makes a file shorter, which
                    // destaging may extend at the same time.
                    allocate(fd, FallocateFlags::empty(), &range)?;
                }
                Ok(Taken { contents: &[], size: if grows { range.end } else { 0 }, space })
            })?;
            let range = if grows { offset.min(attr.size)..range.end } else { range };
            Ok(((), Some(durable(target, &range, errors, frame))))
        })
    }

    /// Changes the backing file past the log, or without a cache. `space` is the number of bytes that the change may take
    /// from the file system.
    pub(super) fn change_past_log(
        &self,
        bypass: &Bypass<'_>,
        attr: &Attr,
        space: u64,
        change: impl FnOnce(BorrowedFd<'_>) -> Result<Taken<'static>>,
    ) -> Result<Option<LogFrame>> {
        let Bypass { target, cred, .. } = bypass;
        let Some(linked) = target.export.fs.linked() else {
            let fd = target.object.writer(&self.budget, true)?;
            let _acting = self.act_as(cred)?;
            change(std::os::fd::AsFd::as_fd(&fd))?;
            return Ok(None);
        };
        let cached = linked.object(&target.object)?;
        let charge = linked.admission.charge(attr);
        let rooms = match space {
            0 => Default::default(),
            space => linked.admission.hold(cached, charge.as_deref(), space)?,
        };
        Ok(self.bypass(linked, bypass, rooms, change)?.1)
    }
}

/// Returns the commit request of a change of these bytes of the backing file.
pub(super) fn durable(
    target: &Target,
    range: &Range<u64>,
    errors: u64,
    frame: Option<LogFrame>,
) -> CommitRequest {
    let (object, len) = (target.object.clone(), range.end - range.start);
    let data = Some(Data { object, offset: range.start, len, errors });
    let sync = SyncRequest { data, ..SyncRequest::default() };
    CommitRequest { sync, frame, ..CommitRequest::default() }
}

fn allocate(fd: BorrowedFd<'_>, flags: FallocateFlags, range: &Range<u64>) -> Result<()> {
    Ok(retry_on_intr(|| fallocate(fd, flags, range.start, range.end - range.start))?)
}

/// Allocates `range` of a file without a change of its size. `grown` is the part of it that has no contents, and that no
/// other thread writes. After a failure the space of that part is free again, as far as the file system can free it.
fn allocate_in_file(fd: BorrowedFd<'_>, range: &Range<u64>, grown: &Range<u64>) -> Result<()> {
    // Some file systems cannot free the space behind the end of a file, so a request that must fail is not tried.
    let stat = rustix::fs::fstatvfs(fd)?;
    let added = range.end.saturating_sub(grown.start.max(range.start));
    if !grown.is_empty() && added > stat.f_bfree.saturating_mul(stat.f_frsize) {
        return Err(Error::Os(Errno::NOSPC));
    }
    allocate(fd, FallocateFlags::KEEP_SIZE, range).inspect_err(|_| {
        let Ok(size) = rustix::fs::fstat(fd).map(|stat| stat.st_size as u64) else { return };
        let unused = grown.start.max(size)..grown.end;
        if !grown.is_empty() && !unused.is_empty() {
            // The client gets the error of the allocation.
            let _ = allocate(fd, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, &unused);
        }
    })
}

/// Returns the offset of the first data at or behind `offset`. A block that is destaged meanwhile is found in one of the
/// two places, because the cache is asked first.
fn next_data(file: BorrowedFd<'_>, cached: Option<&Cached>, offset: u64) -> Result<Option<u64>> {
    let dirty = cached.and_then(|cached| cached.dirty_run(offset)).map(|run| run.start.max(offset));
    Ok(dirty.into_iter().chain(seek_in(file, SeekFrom::Data(offset))?).min())
}

/// Returns the offset of the first hole at or behind `offset`. The end of the backing file is one.
fn next_hole(file: BorrowedFd<'_>, cached: Option<&Cached>, mut offset: u64) -> Result<u64> {
    loop {
        // Asked first: a block that is not dirty is in the backing file.
        let dirty = cached.and_then(|cached| cached.dirty_run(offset));
        let hole = seek_in(file, SeekFrom::Hole(offset))?.unwrap_or(offset);
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
