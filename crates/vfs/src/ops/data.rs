//! READ, WRITE and COMMIT.

use std::os::fd::{AsFd, BorrowedFd};

use forebay_engine::Outcome;
use rustix::fs::FileType;
use rustix::io::Errno;

use crate::attr::{Attr, Wcc};
use crate::caches::access_cache::want;
use crate::caches::recent_attr;
use crate::durability::journal::{Data, SyncRequest};
use crate::error::{Error, Result};
use crate::export::Target;
use crate::export::cache::LogFrame;
use crate::export::external_change::refresh;
use crate::export::vfs::Vfs;
use crate::file_io::{read_full, write_full};
use crate::oplog::commit::CommitRequest;
use crate::ops::cached::{SsdRead, Writing, Written};
use crate::ops::change::Changed;
use crate::ops::data_caller::{DataCaller, DataCheck};
use crate::sys::resident;
use crate::wait::Wait;

/// The destination of a READ's data.
pub trait ReadInto {
    /// Returns a buffer for up to `len` bytes, which may hold less. The buffer replaces an earlier one.
    fn buffer(&mut self, len: usize) -> &mut [u8];

    /// Returns true if [`splice`](Self::splice) is worth trying.
    fn may_splice(&self, offset: u64, len: usize) -> bool;

    /// Takes `len` bytes of `file` at `offset` without copying them, waiting for the disk if need be; false if not all
    /// of them are to be had this way.
    fn splice(&mut self, file: BorrowedFd<'_>, offset: u64, len: usize) -> bool;
}

/// The facts about a READ's data that its reply needs.
#[derive(Clone, Copy, Debug)]
pub struct ReadOut {
    /// Bytes of data: spliced, at the front of the buffer, or to be read by [`SsdRead::fill`].
    pub len: usize,
    /// True if the data reach the end of the file.
    pub eof: bool,
    /// The file's attributes.
    pub attr: Attr,
}

/// The result of a WRITE.
#[derive(Clone, Copy, Debug)]
pub struct Wrote {
    /// Bytes written.
    pub len: usize,
    /// True if the data is on stable storage, or will be once the commit request is durable. This may be more than the
    /// client asked for.
    pub stable: bool,
    /// The verifier from before the write: it goes into the reply of an unstable write.
    pub verifier: [u8; 8],
}

/// Checks that the caller may access the file's contents.
pub(super) fn permitted(
    vfs: &Vfs,
    target: &Target,
    DataCaller { cred, check, .. }: DataCaller<'_>,
    attr: &Attr,
    want: u8,
    wait: Wait,
) -> Result<()> {
    match attr.kind {
        FileType::RegularFile => {}
        FileType::Directory => return Err(Error::Os(Errno::ISDIR)),
        _ => return Err(Error::INVALID),
    }
    match check {
        DataCheck::Granted => return Ok(()),
        DataCheck::ModeUnlessOwner if vfs.owns(cred, attr) => return Ok(()),
        DataCheck::ModeUnlessOwner | DataCheck::Mode => {}
    }
    match vfs.require(target, cred, attr, want, wait) {
        // A file that may be executed must be readable to be executed over NFS.
        Err(Error::Os(Errno::ACCESS)) if want == want::READ => {
            vfs.require(target, cred, attr, want::EXECUTE, wait)
        }
        result => result,
    }
}

impl Vfs {
    /// Reads up to `count` bytes at `offset`, or fewer if `into` has no room for them. With [`Wait::No`] the outcome is
    /// `Done` only if all of them are in memory, and `FromSsd` if the cache devices have the rest. With [`Wait::Yes`]
    /// it is `Done`.
    pub fn read(
        &self,
        target: &Target,
        caller: DataCaller<'_>,
        offset: u64,
        count: usize,
        wait: Wait,
        into: &mut impl ReadInto,
    ) -> Result<Outcome<ReadOut, SsdRead>> {
        let mut read = || {
            let mut attr = match caller.recent.filter(|_| !wait.allowed()) {
                Some(arrived) => recent_attr::attr(target, arrived, offset.saturating_add(count as u64))?,
                None => target.attr()?,
            };
            permitted(self, target, caller, &attr, want::READ, wait)?;
            let there = attr.size.saturating_sub(offset);
            if there == 0 {
                return Ok(Outcome::Done(ReadOut { len: 0, eof: true, attr }));
            }
            let count = count.min(usize::try_from(there).unwrap_or(usize::MAX));
            let (found, room) = match target.export.fs.linked() {
                Some(linked) => {
                    linked.look(&target.object, &attr);
                    let buf = into.buffer(count);
                    let found = self.read_through_cache(linked, target, offset, buf, wait)?;
                    if matches!(found, Outcome::Done(_) | Outcome::FromSsd(_)) {
                        linked.was_read(&target.object, &mut attr);
                    }
                    (found, buf.len())
                }
                None => (Outcome::FromBacking(()), 0),
            };
            let (len, asked) = match found {
                Outcome::Done(len) => (len, room),
                Outcome::FromBacking(()) => {
                    let read = self.read_backing_file(target, &attr, offset, count, wait, into)?;
                    target
                        .export
                        .fs
                        .linked()
                        .inspect(|linked| linked.saw_past(&target.object, offset, read.0));
                    read
                }
                Outcome::FromSsd((engine, object)) => {
                    let eof = offset + room as u64 >= attr.size;
                    let out = ReadOut { len: room, eof, attr };
                    return Ok(Outcome::FromSsd(SsdRead { engine, object, offset, out }));
                }
                Outcome::Wait => return Ok(Outcome::Wait),
            };
            if len < asked {
                if !wait.allowed() {
                    return Ok(Outcome::Wait);
                }
                // The file shrank or grew while it was read. In the second case the client asks for the rest.
                attr = target.attr()?;
            }
            let eof = (len == 0 && asked > 0) || offset + len as u64 >= attr.size;
            Ok(Outcome::Done(ReadOut { len, eof, attr }))
        };
        match read() {
            Err(Error::WouldBlock) => Ok(Outcome::Wait),
            read => read,
        }
    }

    /// Reads from the backing file. Returns the bytes read and those there was room for.
    fn read_backing_file(
        &self,
        target: &Target,
        attr: &Attr,
        offset: u64,
        count: usize,
        wait: Wait,
        into: &mut impl ReadInto,
    ) -> Result<(usize, usize)> {
        let file = target.object.reader(&self.budget, wait.allowed())?;
        let may_splice = into.may_splice(offset, count)
            && (wait.allowed() || self.sees_residency(attr) && resident(file, offset, count));
        if may_splice && into.splice(file, offset, count) {
            return Ok((count, count));
        }
        let buf = into.buffer(count);
        Ok((read_full(file, buf, offset, wait)?, buf.len()))
    }

    /// Returns true if the kernel tells the truth about a file's pages in memory. It does to callers who may change the
    /// file.
    fn sees_residency(&self, attr: &Attr) -> bool {
        self.is_privileged() || attr.uid == self.server_uid
    }

    /// Writes `data` at `offset`. With `stable`, the intent must be made durable before the reply. With [`Wait::No`]
    /// the outcome is `Done` only if the cache takes the data without waiting for a disk, and `Wait` has no effect.
    /// With [`Wait::Yes`] it is `Done`.
    pub fn write(
        &self,
        target: &Target,
        caller: DataCaller<'_>,
        offset: u64,
        data: &[u8],
        stable: bool,
        wait: Wait,
    ) -> Outcome<Changed<Wrote>> {
        self.change_contents(target, wait, |attr, errors| {
            self.write_inner(Writing { target, caller, offset, data, stable, attr, errors }, wait)
        })
    }

    /// Changes contents of a file beside other changes of its contents. `carry_out` gets the attributes of the file,
    /// and [`Uncommitted::errors`](crate::caches::uncommitted::Uncommitted::errors) from before the change. It returns
    /// the result and the commit request of the reply. The outcome is `Wait` only if the change would have to wait, and
    /// then it has no effect.
    pub(crate) fn change_contents<T>(
        &self,
        target: &Target,
        wait: Wait,
        mut carry_out: impl FnMut(Attr, u64) -> Result<(T, Option<CommitRequest>)>,
    ) -> Outcome<Changed<T>> {
        loop {
            let side_by_side = match wait {
                Wait::Yes => Some(target.object.changing.read()),
                Wait::No => target.object.changing.try_read(),
            };
            let Some(side_by_side) = side_by_side else { return Outcome::Wait };
            let change = target.object.begin_change();
            let errors = target.object.uncommitted.errors();
            let attr = change.before.or_else(|_| target.attr());
            if let Ok(attr) = &attr
                && self.is_outdated(target, attr)
            {
                drop((change, side_by_side));
                match self.refresh(target, attr, wait) {
                    Ok(()) => continue,
                    Err(Error::WouldBlock) => return Outcome::Wait,
                    Err(error) => {
                        let wcc = self.wcc_of(target);
                        return Outcome::Done(Changed { result: Err(error), wcc, intent: None });
                    }
                }
            }
            let result = attr.and_then(|attr| carry_out(attr, errors));
            if matches!(result, Err(Error::WouldBlock)) {
                return Outcome::Wait;
            }
            if result.is_ok() {
                change.made();
            }
            let wcc = change.end();
            return Outcome::Done(match result {
                Ok((done, intent)) => Changed { result: Ok(done), wcc, intent },
                Err(error) => {
                    target.object.rest();
                    Changed { result: Err(error), wcc, intent: None }
                }
            });
        }
    }

    /// Returns true if an external change modified the file since it was cached. `attr` was just read.
    fn is_outdated(&self, target: &Target, attr: &Attr) -> bool {
        let Some(linked) = target.export.fs.linked() else { return false };
        linked.look(&target.object, attr);
        target.object.link.is_suspect()
    }

    /// Drops the cached contents of a file that an external change modified. `attr` was just read.
    pub(crate) fn refresh(&self, target: &Target, attr: &Attr, wait: Wait) -> Result<()> {
        let outdated = self.is_outdated(target, attr);
        match target.export.fs.linked().zip(target.object.link.get()).filter(|_| outdated) {
            None => Ok(()),
            Some(_) if !wait.allowed() => Err(Error::WouldBlock),
            Some((linked, cached)) => refresh(linked, &target.object, cached),
        }
    }

    /// Carries out a checked WRITE through the cache, or into the backing file if there is no cache. The caller shares
    /// the file's lock.
    fn write_inner(&self, write: Writing<'_>, wait: Wait) -> Result<(Wrote, Option<CommitRequest>)> {
        let Writing { target, caller, offset, data, stable, attr, errors } = write;
        permitted(self, target, caller, &attr, want::WRITE, wait)?;
        if offset.checked_add(data.len() as u64).is_none_or(|end| end > target.export.fs.largest_file) {
            return Err(Error::Os(Errno::FBIG));
        }
        let verifier = self.verifier.get();
        if let Some(linked) = target.export.fs.linked().filter(|_| !data.is_empty()) {
            let Written { len, stable, intent } = self.write_cached(linked, &write, wait)?;
            return Ok((Wrote { len, stable, verifier }, intent));
        }
        if !wait.allowed() {
            return Err(Error::WouldBlock);
        }
        let fd = target.object.writer(&self.budget, true)?;
        let len = {
            // As the caller, so that quotas, reserved blocks and set-uid bits are treated as its own.
            let _acting = self.act_as(caller.cred)?;
            write_full(fd.as_fd(), data, offset)?
        };
        // Counted only now: a COMMIT that counted it earlier could have synced before the data was there.
        let stable = stable || !target.object.uncommitted.wrote();
        if !stable {
            target.export.fs.writeback.wrote(&target.object, offset, len as u64);
        }
        let object = target.object.clone();
        let sync = SyncRequest {
            data: Some(Data { object, offset, len: len as u64, errors }),
            ..SyncRequest::default()
        };
        let intent = (stable && len > 0).then(|| CommitRequest { sync, ..CommitRequest::default() });
        Ok((Wrote { len, stable, verifier }, intent))
    }

    /// Returns the commit request for a COMMIT; it is empty if the file has no unstable data. The caller gives the
    /// count to [`Vfs::committed`] once the request is durable. A range that no file can have stands for the whole
    /// file.
    pub fn commit_range(
        &self,
        target: &Target,
        caller: DataCaller<'_>,
        offset: u64,
        count: u64,
    ) -> (Changed<()>, u64) {
        let (offset, count) = within(offset, count, target.export.fs.largest_file);
        let errors = target.object.uncommitted.errors();
        let seen = target.object.uncommitted.writes();
        let attr = target.attr();
        let result = match &attr {
            Ok(attr) => permitted(self, target, caller, attr, want::WRITE, Wait::Yes),
            Err(error) => Err(*error),
        };
        let linked = target.export.fs.linked().filter(|_| target.object.link.get().is_some());
        let frame = linked.map(|linked| LogFrame::Commit(linked.cache.engine.last()));
        let data = (seen != 0).then(|| Data { object: target.object.clone(), offset, len: count, errors });
        let intent = (result.is_ok() && (data.is_some() || frame.is_some())).then(|| CommitRequest {
            sync: SyncRequest { data, ..SyncRequest::default() },
            frame,
            ..CommitRequest::default()
        });
        let wcc = Wcc { before: attr.ok(), after: attr.ok() };
        let whole = offset == 0 && count == 0;
        (Changed { result, wcc, intent }, if whole { seen } else { 0 })
    }

    /// Notes that a COMMIT of the whole file became durable.
    pub fn committed(&self, target: &Target, seen: u64) {
        target.object.uncommitted.committed(seen);
    }
}

/// Returns the range to sync for a COMMIT of `count` bytes at `offset` in a file of at most `largest` bytes. A count of
/// 0 means everything behind the offset. RFC 1813 section 3.3.21 has no error for a bad range, and a Linux server
/// treats it in this way.
fn within(offset: u64, count: u64, largest: u64) -> (u64, u64) {
    match offset.checked_add(count) {
        _ if offset >= largest => (0, 0),
        Some(end) if end <= largest => (offset, count),
        _ => (offset, 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_commit_reaches_no_further_than_a_file_can() {
        let largest = i64::MAX as u64;
        for (asked, synced) in [
            ((0, 0), (0, 0)),
            ((4096, 0), (4096, 0)),
            ((0, largest), (0, largest)),
            ((1, largest), (1, 0)),
            ((largest - 1, 1), (largest - 1, 1)),
            ((largest - 1, 2), (largest - 1, 0)),
            ((largest, 0), (0, 0)),
            ((1 << 63, 1), (0, 0)),
            ((u64::MAX, u64::MAX), (0, 0)),
        ] {
            assert_eq!(within(asked.0, asked.1, largest), synced, "{asked:?}");
        }
    }
}
