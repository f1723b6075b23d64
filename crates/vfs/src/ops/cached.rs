//! READ, WRITE and changes of size with the cache in between.

use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use forebay_engine::buffer::BLOCK;
use forebay_engine::io::Time as CacheTime;
use forebay_engine::{CachedObject as Cached, Engine, Keep, Logged as Accepted, Mode, Outcome};
use forebay_runtime::block_on;

use crate::admission::room::Rooms;
use crate::attr::{Attr, Time};
use crate::caches::inode::Inode;
use crate::caches::overlay::{Undestaged, file_time};
use crate::cred::Cred;
use crate::durability::journal::{Data, SyncRequest};
use crate::error::{Error, Result, from_cache};
use crate::export::Target;
use crate::export::cache::Linked;
use crate::export::cache::LogFrame;
use crate::export::external_change::refresh;
use crate::export::filesystem::Filesystem;
use crate::export::vfs::Vfs;
use crate::file_io::{read_full, write_full};
use crate::oplog::commit::CommitRequest;
use crate::ops::data::ReadOut;
use crate::ops::data_caller::DataCaller;
use crate::wait::Wait;

/// Set-uid and set-gid. A write by any user but root removes them.
const SET_ID: u32 = 0o6000;

/// A checked WRITE.
pub(crate) struct Writing<'a> {
    pub(crate) target: &'a Target,
    pub(crate) caller: DataCaller<'a>,
    pub(crate) offset: u64,
    pub(crate) data: &'a [u8],
    pub(crate) stable: bool,
    pub(crate) attr: Attr,
    /// [`Uncommitted::errors`](crate::caches::uncommitted::Uncommitted::errors) from before it.
    pub(crate) errors: u64,
}

/// The part of a WRITE that was carried out.
pub(crate) struct Written {
    /// Bytes written, from the start of the WRITE.
    pub(crate) len: usize,
    /// True if the bytes are durable once the commit request is.
    pub(crate) stable: bool,
    /// The commit request of the reply, if the reply has to wait for one.
    pub(crate) intent: Option<CommitRequest>,
}

/// A change of bytes of a file that goes past the log.
pub(crate) struct Bypass<'a> {
    pub(crate) target: &'a Target,
    pub(crate) cred: &'a Cred,
    /// The bytes whose cached blocks do not count any more.
    pub(crate) range: Range<u64>,
}

/// The part of a change that the backing file took.
#[derive(Default)]
pub(crate) struct Taken<'a> {
    /// The contents from the start of the range on, as far as they may be cached.
    pub(crate) contents: &'a [u8],
    /// The file has at least this size.
    pub(crate) size: u64,
    /// Bytes of the backing store that the change may have taken.
    pub(crate) space: u64,
}

/// The largest READ in bytes that an event loop begins itself. Copying a larger one would delay other requests.
const SMALL_READ: usize = 64 << 10;

/// The outcome of a READ through the cache: the number of bytes read, or the engine and the object to read from the
/// cache devices.
type CachedRead = Outcome<usize, (Arc<Engine>, Arc<Cached>), ()>;

/// A READ of data on the cache devices. It can be carried out on a thread that must not block.
pub struct SsdRead {
    pub(crate) engine: Arc<Engine>,
    pub(crate) object: Arc<Cached>,
    pub(crate) offset: u64,
    /// The facts for the reply, and the length of the data.
    pub out: ReadOut,
}

impl SsdRead {
    /// Fills `buf`, which has [`ReadOut::len`] bytes. False: something has changed meanwhile or is wrong, so the READ
    /// has to begin again and may wait.
    pub async fn fill(&self, buf: &mut [u8]) -> bool {
        self.engine.read_cached(&self.object, self.offset, buf).await == Ok(Some(buf.len()))
    }
}

impl Vfs {
    /// Reads into `buf`, from wherever it is fastest. `Done` is the number of bytes read. A READ `FromSsd` is only for
    /// a caller that may not wait, and a READ `FromBacking` is not worth caching.
    pub(crate) fn read_through_cache(
        &self,
        linked: &Linked,
        target: &Target,
        offset: u64,
        buf: &mut [u8],
        wait: Wait,
    ) -> Result<CachedRead> {
        let link = &target.object.link;
        let Some(policy) = target.export.policy(&target.object, wait) else { return Ok(Outcome::Wait) };
        let keeps =
            linked.cache.keeps_reads() && policy.keep != Keep::Never && policy.mode != Mode::PassThrough;
        // While there is room, everything read is worth caching, streams as well.
        let fills = keeps && (policy.caches_streams() || linked.cache.engine.has_room());
        let Some(cached) = link.get() else {
            // Nothing is known of it. In memory already, it needs no cache; and only a worker makes it known.
            if !wait.allowed() {
                if fills {
                    self.start_reading(target, offset, buf);
                    return Ok(Outcome::Wait);
                }
                return Ok(Outcome::FromBacking(()));
            }
            if !keeps || (!fills && link.reads.streams(offset, buf.len() as u64)) {
                return Ok(Outcome::FromBacking(()));
            }
            let read = linked.cache.engine.read(linked.object(&target.object)?, offset, buf);
            return block_on(read).map(Outcome::Done).map_err(from_cache);
        };
        if link.is_suspect() {
            if !wait.allowed() {
                return Ok(Outcome::Wait);
            }
            refresh(linked, &target.object, cached)?;
        }
        match linked.cache.engine.try_read(cached, offset, buf) {
            Outcome::Done(len) if len == buf.len() => return Ok(Outcome::Done(len)),
            Outcome::FromBacking(()) => {
                if !wait.allowed() {
                    if fills {
                        self.start_reading(target, offset, buf);
                        return Ok(Outcome::Wait);
                    }
                    return Ok(Outcome::FromBacking(()));
                }
                if !keeps || (!fills && link.reads.streams(offset, buf.len() as u64)) {
                    return Ok(Outcome::FromBacking(()));
                }
            }
            Outcome::FromSsd(()) if !wait.allowed() && buf.len() <= SMALL_READ => {
                return Ok(Outcome::FromSsd((linked.cache.engine.clone(), cached.clone())));
            }
            _ if !wait.allowed() => return Ok(Outcome::Wait),
            _ => {}
        }
        let read =
            |buf: &mut [u8]| block_on(linked.cache.engine.read(cached, offset, buf)).map_err(from_cache);
        let len = read(buf)?;
        if len < buf.len() && Undestaged::of(cached).is_none() {
            // An external change made the file longer.
            refresh(linked, &target.object, cached)?;
            return read(buf).map(Outcome::Done);
        }
        Ok(Outcome::Done(len))
    }

    /// Starts reading, for a worker to wait for. A read that is not to wait makes the kernel begin to read the pages
    /// that it lacks. So the disks have as many reads as there are requests, not only as many as there are workers.
    fn start_reading(&self, target: &Target, offset: u64, buf: &mut [u8]) {
        if buf.len() <= SMALL_READ
            && let Ok(file) = target.object.reader(&self.budget, false)
        {
            // The worker meets the same error.
            let _ = read_full(file, buf, offset, Wait::No);
        }
    }

    /// Writes into the cache's log or to the backing file, as the mode and the free room decide.
    pub(crate) fn write_cached(&self, linked: &Linked, write: &Writing<'_>, wait: Wait) -> Result<Written> {
        let object = &write.target.object;
        if !wait.allowed() && (object.link.get().is_none() || object.link.is_suspect()) {
            return Err(Error::WouldBlock);
        }
        if write.target.export.policy(object, wait).is_none() {
            return Err(Error::WouldBlock);
        }
        // A file that cannot be opened cannot be destaged either.
        object.writer(&self.budget, wait.allowed())?;
        let cached = linked.object(object)?;
        if object.link.is_suspect() {
            // The caller shares the lock that this takes alone.
            return Err(Error::Busy);
        }
        let engine = &linked.cache.engine;
        // The kernel takes the set-id bits away when the write is the caller's own.
        if write.attr.mode & SET_ID != 0 && write.caller.cred.uid() != 0 {
            return self.write_direct(linked, write, wait);
        }
        if !wait.allowed() && linked.admission.is_charge_due() {
            return Err(Error::WouldBlock);
        }
        let charge = linked.admission.charge(&write.attr);
        let len = space_of(write.offset, write.data.len() as u64);
        let Some(rooms) = linked.admission.room(cached, charge.as_deref(), len, wait)? else {
            return self.write_direct(linked, write, wait);
        };
        charge.iter().for_each(|charge| cached.charge(&charge.account));
        let now = cache_time(file_time());
        let accepted = match engine.try_write(cached, write.offset, write.data, now).map_err(from_cache)? {
            Outcome::Done(frame) => Accepted { len: write.data.len(), frame },
            Outcome::Wait if wait.allowed() => {
                block_on(engine.write_log(cached, write.offset, write.data, now)).map_err(from_cache)?
            }
            Outcome::Wait => return Err(Error::WouldBlock),
            Outcome::FromBacking(()) => Accepted { len: 0, frame: 0 },
        };
        rooms.into_iter().for_each(|room| room.used(space_of(write.offset, accepted.len as u64)));
        if accepted.len < write.data.len() {
            return self.write_rest(linked, write, accepted, wait);
        }
        let frame = Some(LogFrame::Change(accepted.frame));
        let intent = write.stable.then(|| CommitRequest { frame, ..CommitRequest::default() });
        Ok(Written { len: accepted.len, stable: write.stable, intent })
    }

    /// Prepares the first WRITE to a new file, so that an event loop can carry it out. This may wait for a disk. A
    /// WRITE meets the same errors. [`Vfs::was_closed`] undoes it.
    pub fn expect_writes(&self, target: &Target) {
        let fs = &target.export.fs;
        // No event loop asks a file system that may have to ask another host.
        let Some(linked) = fs.linked().filter(|_| fs.attributes_in_memory()) else { return };
        if target.object.writer(&self.budget, true).is_ok() && linked.object(&target.object).is_ok() {
            target.export.policy(&target.object, Wait::Yes);
        }
    }

    /// Notes that a client has closed the file with this handle. Closes a descriptor to which nothing was written,
    /// since nobody can execute a file that is open for changes. Never waits.
    pub fn was_closed(&self, wire: &[u8]) {
        let Ok(target) = self.target(wire, Wait::No) else { return };
        // Destage needs the descriptor, and closes it.
        if target.object.link.get().is_none_or(|cached| Undestaged::of(cached).is_none()) {
            target.object.rest();
        }
    }

    /// Writes the part that the log has not accepted to the backing file.
    fn write_rest(
        &self,
        linked: &Linked,
        write: &Writing<'_>,
        Accepted { len, frame }: Accepted,
        wait: Wait,
    ) -> Result<Written> {
        let rest = Writing { offset: write.offset + len as u64, data: &write.data[len..], ..*write };
        let Written { len: direct, stable, intent } = match self.write_direct(linked, &rest, wait) {
            Err(error) if len == 0 => return Err(error),
            // The accepted part counts. The client sends the rest again and then gets the error.
            Err(_) => Written { len: 0, stable: write.stable, intent: None },
            Ok(written) => written,
        };
        if len == 0 || !stable {
            return Ok(Written { len: len + direct, stable, intent });
        }
        let mut intent = intent.unwrap_or_default();
        let frame = match intent.frame {
            Some(LogFrame::Change(later)) => frame.max(later),
            _ => frame,
        };
        intent.frame = Some(LogFrame::Change(frame));
        Ok(Written { len: len + direct, stable: true, intent: Some(intent) })
    }

    /// Writes to the backing file, past the log. Fails with `WouldBlock` unless the caller may wait.
    fn write_direct(&self, linked: &Linked, write: &Writing<'_>, wait: Wait) -> Result<Written> {
        if !wait.allowed() {
            return Err(Error::WouldBlock);
        }
        let target = write.target;
        let cached = linked.object(&target.object)?;
        let charge = linked.admission.charge(&write.attr);
        let space = space_of(write.offset, write.data.len() as u64);
        let rooms = linked.admission.claim(cached, charge.as_deref(), space)?;
        let range = write.offset..write.offset + write.data.len() as u64;
        let bypass = Bypass { target, cred: write.caller.cred, range };
        let (taken, frame) = self.bypass(linked, &bypass, rooms, |fd| {
            let len = write_full(fd, write.data, write.offset)?;
            let (contents, end) = (&write.data[..len], write.offset + len as u64);
            Ok(Taken { contents, size: end, space: space_of(write.offset, len as u64) })
        })?;
        let len = taken.contents.len();
        // Counted only now: a COMMIT that counted it earlier could have synced before the data was there.
        let stable = write.stable || !target.object.uncommitted.wrote();
        if !stable {
            target.export.fs.writeback.wrote(&target.object, write.offset, len as u64);
        }
        let data = stable.then(|| Data {
            object: target.object.clone(),
            offset: write.offset,
            len: len as u64,
            errors: write.errors,
        });
        let intent = (data.is_some() || frame.is_some()).then(|| CommitRequest {
            sync: SyncRequest { data, ..SyncRequest::default() },
            frame,
            ..CommitRequest::default()
        });
        Ok(Written { len, stable, intent })
    }

    /// Changes the backing file past the log, as the caller. No dirty block of the range is left before that, and no
    /// older copy counts any more. Returns the part that was carried out, and the frame that must be durable before the
    /// acknowledgement.
    pub(crate) fn bypass<'d>(
        &self,
        linked: &Linked,
        bypass: &Bypass<'_>,
        rooms: Rooms<'_>,
        change: impl FnOnce(BorrowedFd<'_>) -> Result<Taken<'d>>,
    ) -> Result<(Taken<'d>, Option<LogFrame>)> {
        let Bypass { target, cred, range } = bypass;
        let engine = &linked.cache.engine;
        // Recovery might make the file again, and would find nothing of this in the log.
        linked.cache.checkpoints.make_of_touched(&target.export.fs, &target.object)?;
        let cached = linked.object(&target.object)?;
        let fd = target.object.writer(&self.budget, true)?;
        let direct = block_on(engine.begin_bypass(cached, range.start, range.end - range.start));
        let direct = direct.map_err(from_cache)?;
        let own = target.export.fs.own_write(&target.object);
        let taken = self.act_as(cred).and_then(|_acting| change(fd.as_fd()));
        drop(own);
        let done = taken.as_ref().ok().map(|taken| (range.start, taken.contents));
        let size = taken.as_ref().map_or(0, |taken| taken.size);
        let ended = block_on(engine.end_bypass(cached, direct, done, size, cache_time(file_time())))
            .map_err(from_cache);
        let (taken, frame) = (taken?, ended?);
        rooms.into_iter().for_each(|room| room.used(taken.space));
        Ok((taken, (frame > 0).then_some(LogFrame::Change(frame))))
    }

    /// Returns true if a WRITE may be answered without waiting for a disk.
    pub fn writes_in_memory(&self) -> bool {
        let cache = self.cache.get();
        cache.is_some_and(|cache| cache.engine.effective_mode() == Mode::WriteBack)
    }

    /// Changes the size of a file on behalf of a caller who may do that. The caller's own call follows.
    pub(crate) fn resize_cached(
        &self,
        fs: &Filesystem,
        object: &Inode,
        size: u64,
        mtime: Option<Time>,
    ) -> Result<()> {
        let Some(linked) = fs.linked() else { return Ok(()) };
        let cached = linked.object(object)?;
        // Nothing to cut off, nothing to keep in order.
        if cached.size() == size && Undestaged::of(cached).is_none() && object.raw_attr()?.size == size {
            return Ok(());
        }
        let now = cache_time(mtime.unwrap_or_else(file_time));
        block_on(linked.cache.engine.truncate(cached, size, now)).map_err(from_cache)
    }

    /// Tells the engine of a modification time that was set.
    pub(crate) fn touch_cached(&self, fs: &Filesystem, object: &Inode, mtime: Option<Time>) -> Result<()> {
        let Some((linked, cached)) = fs.linked().zip(object.link.get()) else { return Ok(()) };
        let mtime = cache_time(mtime.unwrap_or_else(file_time));
        block_on(linked.cache.engine.set_mtime(cached, mtime)).map_err(from_cache)
    }
}

/// Returns the bytes of the backing store that a write may take, in whole blocks.
pub(crate) fn space_of(offset: u64, len: u64) -> u64 {
    let block = BLOCK as u64;
    if len == 0 {
        return 0;
    }
    ((offset + len).div_ceil(block) - offset / block) * block
}

fn cache_time(time: Time) -> CacheTime {
    CacheTime { sec: time.sec, nsec: time.nsec }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_takes_all_blocks_that_it_touches() {
        for (offset, len, blocks) in
            [(0, 0, 0), (100, 0, 0), (0, 1, 1), (4095, 1, 1), (4095, 2, 2), (4096, 4096, 1), (100, 8192, 3)]
        {
            assert_eq!(space_of(offset, len), blocks * 4096, "{len} bytes at {offset}");
        }
    }
}
