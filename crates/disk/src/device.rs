//! A cache device: a block device or a preallocated file.

use std::fs::File;
use std::future::ready;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use forebay_engine::buffer::{BLOCK, Buffer, Slice};
use forebay_engine::io::{Device, DeviceError, Durability, Io};
use forebay_runtime::{Completion, Fault, Outcome, Request, Target, Work, start, start_or_run};
use rustix::fs::{AtFlags, StatxFlags};
use rustix::io::Errno;

use crate::barrier::{Barrier, Behind, Part};
use crate::discard::{Discarder, block_device_size};
use crate::open::{self, OpenError, Opened};
use crate::traffic::{Traffic, TrafficCounters};
use crate::wear;

/// A block device or a preallocated file, owned by this process alone while it is open.
///
/// If a file is removed or made shorter while it is open, every later operation returns [`DeviceError::Gone`]. The
/// error also follows if a block device is unplugged or shrinks. [`DeviceError::Gone`] is permanent.
pub struct FileDevice {
    name: String,
    shared: Arc<Shared>,
    direct: bool,
    /// Present for block devices only: files keep their blocks.
    discarder: Option<Discarder>,
    traffic: TrafficCounters,
}

struct Shared {
    path: PathBuf,
    target: Arc<Target>,
    size: u64,
    is_file: bool,
    gone: AtomicBool,
    /// The barrier that other devices may share.
    barrier: Option<Behind>,
}

impl FileDevice {
    /// Opens the block device or regular file at `path`, or creates a file of `size` bytes if the path does not exist.
    /// The device is locked against a second opening, by any process, until it is dropped or the process ends.
    ///
    /// A new file has all its blocks allocated, and the blocks and the file's name are durable. Up to 4 GiB are filled
    /// with zeros, so that writes need no change to the file system's metadata. That halves the time of a small durable
    /// write.
    ///
    /// # Errors
    /// A sentence that says what to do. Causes are a directory or character device, a size below
    /// [`MIN_SIZE`](crate::MIN_SIZE), a device in use, no space, or no permission.
    pub fn open_or_create(path: &Path, size: u64) -> Result<Self, OpenError> {
        open::unless_just_closed(|| open::open_or_create(path, size)).map(|opened| Self::of(path, opened))
    }

    /// Creates the file at `path` as [`FileDevice::open_or_create`] does, and calls `step` after each MiB that is
    /// filled.
    ///
    /// # Errors
    /// A sentence that says what to do. A path that exists by then counts as in use.
    pub fn make(path: &Path, size: u64, step: &dyn Fn()) -> Result<Self, OpenError> {
        open::create(path, size, step).map(|opened| Self::of(path, opened))
    }

    fn of(path: &Path, opened: Opened) -> Self {
        let Opened { file, size, is_file, direct } = opened;
        let name = path.display().to_string();
        if !direct {
            tracing::warn!(
                "{name}: the file system has no direct I/O; this device is cached twice in memory"
            );
        }
        let barrier = if is_file && direct { Barrier::of(&file, path, size) } else { None };
        let target = Arc::new(Target::new(file));
        let discarder = (!is_file).then(|| Discarder::new(name.clone(), target.clone()));
        let shared =
            Shared { path: path.to_owned(), target, size, is_file, gone: AtomicBool::new(false), barrier };
        let traffic = TrafficCounters::default();
        FileDevice { name, shared: Arc::new(shared), direct, discarder, traffic }
    }

    /// Returns the operations that the device was asked for since it was opened.
    pub fn traffic(&self) -> Traffic {
        self.traffic.now()
    }

    /// Returns true for a regular file, false for a block device.
    pub fn is_file(&self) -> bool {
        self.shared.is_file
    }

    /// Returns true if reads and writes bypass the page cache.
    pub fn is_direct(&self) -> bool {
        self.direct
    }

    /// Returns the name in /dev of the device's disk, for [`ask_health`](crate::ask_health). For a file, that is the
    /// disk of its file system. Returns `None` if there is no single disk, or disks of its kind do not report their
    /// health.
    pub fn disk(&self) -> Option<String> {
        wear::disk(&self.shared.target.file)
    }
}

impl Device for FileDevice {
    fn name(&self) -> &str {
        &self.name
    }

    fn size(&self) -> u64 {
        self.shared.size
    }

    fn read(&self, offset: u64, buffer: Buffer) -> Io<(Buffer, Result<(), DeviceError>)> {
        if let Err(error) = self.shared.check(offset, buffer.len() as u64) {
            return Box::pin(ready((buffer, Err(error))));
        }
        self.traffic.read(buffer.len());
        let read = start(Request::new(self.shared.target.clone(), offset, Work::Read(buffer)));
        let shared = self.shared.clone();
        Box::pin(async move {
            let outcome = read.await;
            let result = shared.judge("read", offset, outcome.result);
            match outcome.work {
                Work::Read(buffer) => (buffer, result),
                Work::Write(..) | Work::Flush { .. } => unreachable!("a read comes back as a read"),
            }
        })
    }

    /// Writes `data`. [`Durability::Now`] is one write with RWF_DSYNC, which is FUA if the device has it. A flush runs
    /// beside the write if earlier writes still need one. With other files on one drive, it may be a write, and one
    /// flush for all of them.
    fn write(&self, offset: u64, data: Slice, durability: Durability) -> Io<Result<(), DeviceError>> {
        if let Err(error) = self.shared.check(offset, data.len() as u64) {
            return Box::pin(ready(Err(error)));
        }
        let target = &self.shared.target;
        let now = durability == Durability::Now;
        if now && target.flush_failed() {
            return Box::pin(ready(Err(DeviceError::Io)));
        }
        self.traffic.write(data.len(), now);
        let behind = self.shared.barrier.as_ref().filter(|_| now);
        if let Some((barrier, number)) = behind.and_then(Behind::begin) {
            let write = Request::new(target.clone(), offset, Work::Write(data, Durability::Later));
            let write = start(write.observed(barrier.clone(), number));
            return Box::pin(self.shared.clone().flushed_together(offset, barrier, write));
        }
        let write = start(Request::new(target.clone(), offset, Work::Write(data, durability)));
        let flush = (now && target.needs_flush()).then(|| start(target.flush()));
        let shared = self.shared.clone();
        Box::pin(async move {
            shared.judge("write", offset, write.await.result)?;
            match flush {
                Some(flush) => shared.judge_flush(flush.await.result),
                None => Ok(()),
            }
        })
    }

    /// Flushes. After a flush that failed, every later flush and every durable write fails: the device has to be left.
    fn flush(&self) -> Io<Result<(), DeviceError>> {
        if let Err(error) = self.shared.check(0, 0) {
            return Box::pin(ready(Err(error)));
        }
        if self.shared.target.flush_failed() {
            return Box::pin(ready(Err(DeviceError::Io)));
        }
        self.traffic.flush();
        let flush = start(self.shared.target.flush());
        let shared = self.shared.clone();
        Box::pin(async move { shared.judge_flush(flush.await.result) })
    }

    /// Does nothing for a file. A freed block could be missing when it is written again (ENOSPC). A zeroed block would
    /// have to be allocated again in the file system's journal.
    fn discard(&self, offset: u64, len: u64) -> Io<Result<(), DeviceError>> {
        if let Err(error) = self.shared.check(offset, len) {
            return Box::pin(ready(Err(error)));
        }
        let Some(discarder) = &self.discarder else { return Box::pin(ready(Ok(()))) };
        let discard = discarder.start(offset, len);
        let shared = self.shared.clone();
        Box::pin(async move { shared.judge("discard", offset, discard.await) })
    }
}

impl Shared {
    /// Refuses ranges outside the device. Refuses everything once the device is unplugged, removed or shortened.
    fn check(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        let block = BLOCK as u64;
        let inside = offset.checked_add(len).is_some_and(|end| end <= self.size);
        if !inside || !offset.is_multiple_of(block) || !len.is_multiple_of(block) {
            tracing::error!("{}: {len} bytes at {offset} are not whole blocks of it", self.path.display());
            return Err(DeviceError::Io);
        }
        // A write would extend a file that was truncated, with zeros in between, so the size is checked first.
        if self.gone.load(Ordering::Relaxed) || (self.is_file && !self.is_whole()) {
            return Err(self.set_gone());
        }
        Ok(())
    }

    /// Returns true if the device still has its size, and a file still has its name. A system call asks the kernel
    /// for that.
    fn is_whole(&self) -> bool {
        let file = &self.target.file;
        match self.is_file {
            true => file_state(file).is_ok_and(|(links, size)| links > 0 && size >= self.size),
            false => block_device_size(file).is_ok_and(|size| size >= self.size),
        }
    }

    /// Gives the device up for good, and returns the error for its requests. The first call writes to the log.
    fn set_gone(&self) -> DeviceError {
        if !self.gone.swap(true, Ordering::Relaxed) {
            tracing::error!("{}: the device is gone, or smaller than it was", self.path.display());
        }
        DeviceError::Gone
    }

    /// Ends when the write is durable, by the flush of any write.
    async fn flushed_together(
        self: Arc<Self>,
        offset: u64,
        barrier: Arc<Barrier>,
        write: Completion<Outcome>,
    ) -> Result<(), DeviceError> {
        let Outcome { result, written, moment, .. } = write.await;
        self.judge("write", offset, result)?;
        let target = &self.target;
        let flushed = match barrier.part(moment).await {
            Part::Covered => {
                target.cover(written);
                Ok(())
            }
            Part::Uncovered => start(target.flush()).await.result,
            Part::Flush(number) if barrier.is_quick() => {
                start_or_run(barrier.flush(target, number)).await.result
            }
            Part::Flush(number) => start(barrier.flush(target, number)).await.result,
        };
        self.judge_flush(flushed)
    }

    /// Returns the result of a flush. A flush is good only if no other flush has failed: the kernel reports a loss only
    /// once, perhaps to the other flush.
    fn judge_flush(&self, result: Result<(), Fault>) -> Result<(), DeviceError> {
        self.judge("flush", 0, result)?;
        if self.target.flush_failed() { Err(DeviceError::Io) } else { Ok(()) }
    }

    /// Returns the engine's error for an operation that failed: `Gone` if the device has left or shrunk, else `Io`.
    /// `what` and `offset` are for the log.
    fn judge(&self, what: &str, offset: u64, result: Result<(), Fault>) -> Result<(), DeviceError> {
        let Err(fault) = result else { return Ok(()) };
        let gone = matches!(fault, Fault::End | Fault::Errno(Errno::NXIO | Errno::NODEV));
        if gone || !self.is_whole() {
            return Err(self.set_gone());
        }
        if let Fault::Errno(errno) = fault {
            tracing::error!("{}: {what} at {offset} fails: {errno}", self.path.display());
        }
        Err(DeviceError::Io)
    }
}

/// Returns hard links and bytes of an open file, without the times. A request for the times makes the next write record
/// a new time in the journal (multigrain timestamps, Linux 6.13). That costs a third of the durable writes.
fn file_state(file: &File) -> Result<(u32, u64), Errno> {
    let wanted = StatxFlags::NLINK | StatxFlags::SIZE;
    let state = rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, wanted)?;
    Ok((state.stx_nlink, state.stx_size))
}
