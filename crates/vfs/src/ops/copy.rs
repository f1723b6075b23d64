//! COPY and CLONE of NFSv4.2: contents of one file become contents of a file, without a way over the client.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use forebay_engine::Outcome;
use forebay_runtime::block_on;
use rustix::io::Errno;

use crate::admission::room::Needs;
use crate::caches::access_cache::want;
use crate::error::{Error, Result, from_cache};
use crate::export::Target;
use crate::export::cache::LogFrame;
use crate::export::vfs::Vfs;
use crate::oplog::commit::CommitRequest;
use crate::ops::cached::{Bypass, Taken, space_of};
use crate::ops::change::Changed;
use crate::ops::data::{ReadInto, ReadOut, Wrote, permitted};
use crate::ops::data_caller::DataCaller;
use crate::ops::holes::durable;
use crate::sys;
use crate::wait::Wait;

/// Bytes of one piece of a copy: the largest WRITE of a client.
const PIECE: u64 = 1 << 20;

/// The bytes to copy, and the callers as whom they are read and written.
pub struct CopyRange<'a> {
    /// The file to read.
    pub source: &'a Target,
    /// The caller, under the rules of the source's export.
    pub reader: DataCaller<'a>,
    /// Offset in the source.
    pub source_offset: u64,
    /// The file to write.
    pub target: &'a Target,
    /// The caller, under the rules of the target's export.
    pub writer: DataCaller<'a>,
    /// Offset in the target.
    pub offset: u64,
    /// Number of bytes; 0 means to the end of the source.
    pub len: u64,
}

/// The result of a COPY.
#[derive(Clone, Copy, Debug)]
pub struct Copied {
    /// Bytes copied, from the start of the range on.
    pub len: u64,
    /// True if the bytes are on stable storage once the commit request is durable.
    pub stable: bool,
    /// The verifier from before the copy.
    pub verifier: [u8; 8],
}

impl CopyRange<'_> {
    /// Returns the number of bytes to copy (RFC 7862 sections 15.2.3 and 15.13.3).
    ///
    /// # Errors
    /// EINVAL: the range ends behind the end of the source, or the two ranges are in one file and overlap.
    fn checked_len(&self) -> Result<u64> {
        let size = self.source.attr()?.size;
        let there = size.checked_sub(self.source_offset).ok_or(Error::INVALID)?;
        let len = if self.len == 0 { there } else { self.len };
        let distance = self.source_offset.abs_diff(self.offset);
        let overlap = Arc::ptr_eq(&self.source.object, &self.target.object) && distance < len;
        if len > there || overlap {
            return Err(Error::INVALID);
        }
        match self.offset.checked_add(len) {
            Some(end) if end <= self.target.export.fs.largest_file => Ok(len),
            _ => Err(Error::Os(Errno::FBIG)),
        }
    }
}

/// Returns the length to give to FICLONERANGE for `len` bytes that may end in the middle of a block.
///
/// XFS counts the bytes of whole blocks in a signed number. If that overflows, it shares them and still fails with
/// EINVAL, unless the length is given as 0: to the end of the source. Only the largest files are that long.
fn countable(len: u64, block: u64) -> u64 {
    let blocks = len.checked_next_multiple_of(block);
    if blocks.is_some_and(|blocks| i64::try_from(blocks).is_ok()) { len } else { 0 }
}

/// The buffer of a piece.
struct Piece(Vec<u8>);

impl ReadInto for Piece {
    fn buffer(&mut self, len: usize) -> &mut [u8] {
        self.0.resize(len, 0);
        &mut self.0
    }

    fn may_splice(&self, _: u64, _: usize) -> bool {
        false
    }

    fn splice(&mut self, _: BorrowedFd<'_>, _: u64, _: usize) -> bool {
        false
    }
}

/// The copied pieces so far.
struct Progress {
    len: u64,
    intent: Option<CommitRequest>,
}

impl Progress {
    /// Adds a piece that follows the earlier ones.
    fn add(&mut self, len: usize, intent: Option<CommitRequest>) {
        self.len += len as u64;
        let Some(piece) = intent else { return };
        let Some(whole) = &mut self.intent else {
            self.intent = Some(piece);
            return;
        };
        whole.frame = match (whole.frame, piece.frame) {
            (Some(LogFrame::Change(one)), Some(LogFrame::Change(other))) => {
                Some(LogFrame::Change(one.max(other)))
            }
            (one, other) => other.or(one),
        };
        whole.sync.data = match (whole.sync.data.take(), piece.sync.data) {
            (Some(mut data), Some(next)) => {
                data.len = next.offset + next.len - data.offset;
                Some(data)
            }
            (one, other) => one.or(other),
        };
    }
}

impl Vfs {
    /// Returns the number of bytes that a COPY asks for.
    ///
    /// # Errors
    /// EINVAL: the range ends behind the end of the source, or the two ranges are in one file and overlap. EFBIG: the
    /// file system has no files of that size.
    pub fn copy_len(&self, copy: &CopyRange<'_>) -> Result<u64> {
        copy.checked_len()
    }

    /// Copies pieces in ascending order while `goes_on` returns true for the bytes copied so far. At least one piece is
    /// copied. With a write-back cache the copy is stable.
    pub fn copy(&self, copy: &CopyRange<'_>, goes_on: impl Fn(u64) -> bool) -> Changed<Copied> {
        let (stable, verifier) = (self.writes_in_memory(), self.verifier.get());
        let mut done = Progress { len: 0, intent: None };
        let result = copy.checked_len().and_then(|len| {
            let mut piece = Piece(Vec::new());
            while done.len < len {
                let offset = copy.offset + done.len;
                let most = (PIECE - offset % PIECE).min(len - done.len);
                match self.copy_piece(copy, done.len, most as usize, &mut piece, stable) {
                    Ok((0, _)) => break,
                    Ok((len, intent)) => done.add(len, intent),
                    // The copied part counts. The client sends the rest again and then gets the error.
                    Err(_) if done.len > 0 => break,
                    Err(error) => return Err(error),
                }
                if !goes_on(done.len) {
                    break;
                }
            }
            Ok(Copied { len: done.len, stable, verifier })
        });
        Changed { result, wcc: self.wcc_of(copy.target), intent: done.intent }
    }

    /// Copies `len` bytes that begin `at` bytes behind the start of the range. Returns the bytes copied.
    fn copy_piece(
        &self,
        copy: &CopyRange<'_>,
        at: u64,
        len: usize,
        piece: &mut Piece,
        stable: bool,
    ) -> Result<(usize, Option<CommitRequest>)> {
        let read = self.read(copy.source, copy.reader, copy.source_offset + at, len, Wait::Yes, piece)?;
        let Outcome::Done(ReadOut { len, .. }) = read else { return Err(Error::Busy) };
        if len == 0 {
            return Ok((0, None));
        }
        let data = &piece.0[..len];
        let written = self.write(copy.target, copy.writer, copy.offset + at, data, stable, Wait::Yes);
        let Outcome::Done(Changed { result, intent, .. }) = written else { return Err(Error::Busy) };
        result.map(|Wrote { len, .. }| (len, intent))
    }

    /// Makes a range of one file share its contents with a range of a file in the same file system, if that can do so.
    /// The source's dirty blocks are destaged first.
    pub fn clone_range(&self, copy: &CopyRange<'_>) -> Outcome<Changed<()>> {
        let CopyRange { source, target, writer, offset, .. } = *copy;
        let prepared = self.prepare_clone(copy);
        self.change_contents(target, Wait::Yes, |attr, errors| {
            let len = prepared?;
            if len == 0 {
                return Ok(((), None));
            }
            let range = offset..offset + len;
            let bypass = Bypass { target, cred: writer.cred, range: range.clone() };
            // Shared blocks take no space, but their owners are charged for them.
            let quota = space_of(offset, len);
            let from = source.object.reader(&self.budget, true)?;
            let frame = self.change_past_log(&bypass, &attr, Needs { space: 0, quota }, |fd| {
                let block = u64::from(target.export.fs.clone_block());
                sys::clone_range(from, copy.source_offset, countable(len, block), fd, offset)?;
                Ok(Taken { contents: &[], size: range.end, space: quota })
            })?;
            Ok(((), Some(durable(target, &range, errors, frame))))
        })
    }

    /// Checks a CLONE, and destages its source. Returns the number of bytes.
    fn prepare_clone(&self, copy: &CopyRange<'_>) -> Result<u64> {
        let CopyRange { source, reader, target, writer, .. } = *copy;
        if !Arc::ptr_eq(&source.export.fs, &target.export.fs) {
            return Err(Error::Os(Errno::XDEV));
        }
        let block = match source.export.fs.clone_block() {
            0 => return Err(Error::Os(Errno::OPNOTSUPP)),
            block => u64::from(block),
        };
        permitted(self, target, writer, &target.attr()?, want::WRITE, Wait::Yes)?;
        permitted(self, source, reader, &source.attr()?, want::READ, Wait::Yes)?;
        let len = copy.checked_len()?;
        let at_end = copy.source_offset + len == source.attr()?.size;
        let aligned = |offset: u64| offset.is_multiple_of(block);
        if !aligned(copy.source_offset) || !aligned(copy.offset) || !aligned(len) && !at_end {
            return Err(Error::INVALID);
        }
        if let Some((linked, cached)) = source.export.fs.linked().zip(source.object.link.get()) {
            // Writes wait meanwhile: destaging would not end otherwise. Later writes are beside the CLONE.
            let _alone = source.object.changing.write();
            block_on(linked.cache.engine.destage_object(cached)).map_err(from_cache)?;
        }
        Ok(len)
    }
}
