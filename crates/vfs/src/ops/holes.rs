//! Holes and reserved space of files: DEALLOCATE and ALLOCATE of NFSv4.2. docs/decisions/049-holes.md tells why
//! they go past the log.

use std::ops::Range;
use std::os::fd::BorrowedFd;

use forebay_engine::Outcome;
use forebay_engine::buffer::BLOCK;
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::{Errno, retry_on_intr};

use crate::admission::room::Needs;
use crate::attr::Attr;
use crate::caches::access_cache::want;
use crate::durability::journal::{Data, SyncRequest};
use crate::error::{Error, Result};
use crate::export::Target;
use crate::export::cache::LogFrame;
use crate::export::vfs::Vfs;
use crate::oplog::commit::CommitRequest;
use crate::ops::cached::{Bypass, Taken, space_of};
use crate::ops::change::Changed;
use crate::ops::data::permitted;
use crate::ops::data_caller::DataCaller;
use crate::wait::Wait;

impl Vfs {
    /// Makes `len` bytes at `offset` read as zeros, and frees their space in the file system. The size stays. The
    /// outcome is `Wait` only if the file system or the cache would not answer.
    pub fn deallocate(
        &self,
        target: &Target,
        caller: DataCaller<'_>,
        offset: u64,
        len: u64,
    ) -> Outcome<Changed<()>> {
        self.change_contents(target, Wait::Yes, |attr, errors| {
            permitted(self, target, caller, &attr, want::WRITE, Wait::Yes)?;
            let range = offset..offset.saturating_add(len).min(attr.size);
            if range.is_empty() {
                return Ok(((), None));
            }
            let bypass = Bypass { target, cred: caller.cred, range: range.clone() };
            let frame = self.change_past_log(&bypass, &attr, Needs::default(), |fd| {
                let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                allocate(fd, flags, &range)?;
                Ok(Taken::default())
            })?;
            Ok(((), Some(durable(target, &range, errors, frame))))
        })
    }

    /// Reserves space for `len` bytes at `offset` in the file system. The file grows if the range ends behind its end.
    pub fn allocate(
        &self,
        target: &Target,
        caller: DataCaller<'_>,
        offset: u64,
        len: u64,
    ) -> Outcome<Changed<()>> {
        self.change_contents(target, Wait::Yes, |attr, errors| {
            permitted(self, target, caller, &attr, want::WRITE, Wait::Yes)?;
            let end = offset.checked_add(len).filter(|end| *end <= target.export.fs.largest_file);
            let range = offset..end.ok_or(Error::Os(Errno::FBIG))?;
            if range.is_empty() {
                return Ok(((), None));
            }
            // Cached blocks within the file stay. The bytes behind the end of the last block are zeros already.
            let grown = attr.size.next_multiple_of(BLOCK as u64)..range.end;
            let grows = range.end > attr.size;
            let grown = if grown.is_empty() { 0..0 } else { grown };
            let bypass = Bypass { target, cred: caller.cred, range: grown.clone() };
            let space = space_of(offset, len);
            let frame = self.change_past_log(&bypass, &attr, Needs { space, quota: space }, |fd| {
                allocate_in_file(fd, &range, &grown)?;
                if grows {
                    // The space is there already, so this only sets the size. It never makes a file shorter, which
                    // destaging may extend at the same time. For the whole range XFS would ask for its space again.
                    allocate(fd, FallocateFlags::empty(), &(range.end - 1..range.end))?;
                }
                Ok(Taken { contents: &[], size: if grows { range.end } else { 0 }, space })
            })?;
            let range = if grows { offset.min(attr.size)..range.end } else { range };
            Ok(((), Some(durable(target, &range, errors, frame))))
        })
    }

    /// Changes the backing file past the log, or without a cache.
    pub(super) fn change_past_log(
        &self,
        bypass: &Bypass<'_>,
        attr: &Attr,
        needs: Needs,
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
        let rooms = linked.admission.hold(cached, charge.as_deref(), needs)?;
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

/// Allocates `range` of a file without a change of its size. `grown` is the part of it that has no contents, and that
/// no other thread writes. After a failure the space of that part is free again, as far as the file system can free it.
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
