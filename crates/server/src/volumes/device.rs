//! The backing device of a volume in production: a block device or a regular file, by direct I/O where it has that.

use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::ops::Range;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_common::lock::Mutex;
use forebay_engine::buffer::{BLOCK, Buffer, Slice};
use forebay_engine::io::{BackingError, BackingResult, Io};
use forebay_runtime::IoPool;
use forebay_volume::device::BackingDevice;
use rustix::fs::{CWD, FallocateFlags, FlockOperation, Mode, OFlags, SeekFrom as Place};
use rustix::io::Errno;
use rustix::ioctl::{Getter, Setter, ioctl, opcode};

use super::identity::{disk_of, text};
use super::unopened::{is_write_protected, unopened, write_protected};

const BLKSSZGET: rustix::ioctl::Opcode = opcode::none(0x12, 104);
const BLKDISCARD: rustix::ioctl::Opcode = opcode::none(0x12, 119);

/// The bytes of zeros that one write has, where the device cannot zero a range.
const ZEROS: u64 = 1 << 20;

/// An open backing device. No other program can claim it meanwhile: a block device is opened with `O_EXCL`, a file is
/// locked.
pub(crate) struct DeviceFile {
    open: Arc<Open>,
    pool: IoPool,
    is_rotational: bool,
    /// Bytes of a logical block of a block device; of a file 512.
    logical_block: u32,
    /// Held while the file grows: of two growths at once, the second one could cut the file.
    growing: Mutex<()>,
}

struct Open {
    file: File,
    is_block: bool,
    /// Offsets, lengths and addresses of direct I/O are multiples of this; 1 without direct I/O.
    align: u64,
    size: AtomicU64,
}

impl DeviceFile {
    /// Opens the device at `path`, for reads only if it is `read_only`.
    ///
    /// # Errors
    /// A sentence: the device is in use, or cannot be opened.
    pub(crate) fn open(path: &Path, read_only: bool, is_rotational: bool) -> Result<Self, String> {
        let failed = |errno: Errno| unopened(path, &errno.into());
        let meta = std::fs::metadata(path).map_err(|error| unopened(path, &error))?;
        let is_block = meta.file_type().is_block_device();
        if !read_only && is_write_protected(path) {
            return Err(write_protected(path));
        }
        let access = if read_only { OFlags::RDONLY } else { OFlags::RDWR };
        let exclusive = if is_block { OFlags::EXCL } else { OFlags::empty() };
        let open = |more: OFlags| {
            let flags = access | exclusive | more | OFlags::CLOEXEC;
            rustix::fs::openat(CWD, path, flags, Mode::empty()).map(File::from)
        };
        let opened = match open(OFlags::DIRECT) {
            Err(Errno::INVAL) => open(OFlags::empty()).map(|file| (file, false)),
            opened => opened.map(|file| (file, true)),
        };
        let (mut file, direct) = opened.map_err(failed)?;
        if !is_block {
            let lock = rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive);
            lock.map_err(failed)?;
        }
        let size = size_of(&mut file).map_err(|error| unopened(path, &error))?;
        let sector = if is_block { sector_size(&file).map_err(failed)? } else { BLOCK as u64 };
        let usable = direct && size.is_multiple_of(sector) && reads(&file);
        if direct && !usable {
            let flags = rustix::fs::fcntl_getfl(&file).map_err(failed)?;
            rustix::fs::fcntl_setfl(&file, flags - OFlags::DIRECT).map_err(failed)?;
        }
        let open =
            Open { file, is_block, align: if usable { sector } else { 1 }, size: AtomicU64::new(size) };
        let logical_block = if is_block { u32::try_from(sector).unwrap_or(512) } else { 512 };
        Ok(DeviceFile {
            open: Arc::new(open),
            pool: IoPool::queueing(),
            is_rotational,
            logical_block,
            growing: Mutex::default(),
        })
    }

    /// Returns the bytes of a logical block.
    pub(crate) fn logical_block(&self) -> u32 {
        self.logical_block
    }

    /// Looks up the size again. Returns the size in bytes, which never becomes smaller here.
    ///
    /// # Errors
    /// The system cannot tell the size, or a larger size is not a multiple of [`DeviceFile::unit`].
    pub(crate) fn measure(&self) -> std::io::Result<u64> {
        let size = size_of(&mut self.open.file.try_clone()?)?;
        if size > self.size() {
            self.check_size(size).map_err(std::io::Error::other)?;
            self.open.size.fetch_max(size, Ordering::AcqRel);
        }
        Ok(self.size())
    }

    /// Returns the bytes of which a new size is a multiple. With direct I/O the last block is written as a whole, so
    /// another size would grow the file beyond the size of the volume.
    fn unit(&self) -> u64 {
        self.open.align.max(512)
    }

    /// Fails with a sentence if the device must not get a size.
    fn check_size(&self, size: u64) -> Result<(), String> {
        let unit = self.unit();
        match size.is_multiple_of(unit) {
            true => Ok(()),
            false => Err(format!("{size} bytes are not a multiple of {unit} bytes; make it a multiple")),
        }
    }

    /// Makes a file `size` bytes long, durably. A shorter size, and any size of a block device, is refused.
    ///
    /// # Errors
    /// A sentence.
    pub(crate) fn grow(&self, size: u64) -> Result<(), String> {
        let failed = |error: std::io::Error| error.to_string();
        let _growing = self.growing.lock();
        let there = size_of(&mut self.open.file.try_clone().map_err(failed)?).map_err(failed)?;
        let now = there.max(self.size());
        if size < now {
            return Err(format!("it has {now} bytes, and a volume cannot become smaller"));
        }
        if self.open.is_block {
            return Err(format!("it is a block device of {now} bytes; grow the device, then name no size"));
        }
        self.check_size(size)?;
        rustix::fs::ftruncate(&self.open.file, size).map_err(|errno| errno.to_string())?;
        self.open.file.sync_all().map_err(failed)?;
        self.measure().map_err(failed)?;
        Ok(())
    }

    /// Runs `work` on a thread of the device's pool, where it may wait for the device.
    fn run<T: Send + 'static>(&self, work: impl FnOnce(&Open) -> T + Send + 'static) -> Io<T> {
        let open = self.open.clone();
        self.pool.run(move || work(&open))
    }
}

/// Returns the size in bytes of a file or block device.
fn size_of(file: &mut File) -> std::io::Result<u64> {
    file.seek(SeekFrom::End(0))
}

/// Returns the size of a block device's logical sectors in bytes.
fn sector_size(file: &File) -> Result<u64, Errno> {
    // SAFETY: BLKSSZGET stores an int.
    let size = unsafe { ioctl(file, Getter::<BLKSSZGET, i32>::new()) }?;
    Ok(u64::try_from(size).unwrap_or(BLOCK as u64))
}

/// Returns true if direct I/O works. Some file systems accept `O_DIRECT` when a file is opened and refuse it later.
fn reads(file: &File) -> bool {
    let mut buffer = Buffer::zeroed(1);
    rustix::io::pread(file, &mut buffer[..], 0).is_ok()
}

/// Returns the engine's error for an error of the backing device. The engine tells lack of space from failures.
fn backing(errno: Errno) -> BackingError {
    match errno {
        Errno::NOSPC => BackingError::NoSpace,
        Errno::DQUOT => BackingError::Quota,
        errno => BackingError::Io(errno.raw_os_error()),
    }
}

impl Open {
    fn size(&self) -> u64 {
        self.size.load(Ordering::Acquire)
    }

    /// Reads into `buffer` from `offset`. Returns the number of bytes read, which is smaller only at the end of the
    /// device.
    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<usize, Errno> {
        let mut done = 0;
        while done < buffer.len() {
            match rustix::io::pread(&self.file, &mut buffer[done..], offset + done as u64) {
                Ok(0) => break,
                // Direct I/O reads a part only at the end of the device.
                Ok(n) if self.align > 1 && !(n as u64).is_multiple_of(self.align) => return Ok(done + n),
                Ok(n) => done += n,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(done)
    }

    /// Writes `data` at `offset`. A write that direct I/O cannot take is completed with the bytes around it, which
    /// are read first. Fails with ENOSPC behind the end.
    fn write(&self, offset: u64, data: &[u8]) -> Result<(), Errno> {
        if offset + data.len() as u64 > self.size() {
            return Err(Errno::NOSPC);
        }
        let is_aligned = [offset, data.len() as u64, data.as_ptr() as u64];
        if is_aligned.iter().all(|value| value.is_multiple_of(self.align)) {
            return self.write_all(offset, data);
        }
        // The caller has no other write of these blocks in flight.
        let start = offset / self.align * self.align;
        let end = (offset + data.len() as u64).next_multiple_of(self.align);
        let mut buffer = Buffer::zeroed(((end - start) as usize).div_ceil(BLOCK));
        let whole = &mut buffer[..(end - start) as usize];
        let skipped = (offset - start) as usize;
        if skipped > 0 || data.len() < whole.len() {
            self.read(start, whole)?;
        }
        whole[skipped..][..data.len()].copy_from_slice(data);
        self.write_all(start, whole)
    }

    /// Writes all of `data` at `offset`, in as many calls as the kernel needs.
    fn write_all(&self, offset: u64, data: &[u8]) -> Result<(), Errno> {
        let mut done = 0;
        while done < data.len() {
            match rustix::io::pwrite(&self.file, &data[done..], offset + done as u64) {
                Ok(0) => return Err(Errno::NOSPC),
                Ok(n) => done += n,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    /// Tells the device that a range of bytes is not needed. The range may keep its contents, and does so on a device
    /// without this operation.
    fn discard(&self, offset: u64, len: u64) -> Result<(), Errno> {
        let done = match self.is_block {
            // SAFETY: BLKDISCARD reads two u64.
            true => unsafe { ioctl(&self.file, Setter::<BLKDISCARD, [u64; 2]>::new([offset, len])) },
            false => self.punch(offset, len),
        };
        match done {
            // The device has no such operation, so its contents stay.
            Err(Errno::OPNOTSUPP | Errno::NOTTY | Errno::INVAL) => Ok(()),
            done => done,
        }
    }

    /// Makes a hole of a range of bytes, which then reads as zeros.
    fn punch(&self, offset: u64, len: u64) -> Result<(), Errno> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::io::retry_on_intr(|| rustix::fs::fallocate(&self.file, flags, offset, len))
    }

    /// Makes a range of bytes read as zeros. With `keep` the device keeps its space reserved. A device without such
    /// an operation gets zeros as data.
    fn write_zeroes(&self, offset: u64, len: u64, keep: bool) -> Result<(), Errno> {
        let range = FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE;
        let done = match keep {
            true => rustix::io::retry_on_intr(|| rustix::fs::fallocate(&self.file, range, offset, len)),
            false => self.punch(offset, len),
        };
        match done {
            Err(Errno::OPNOTSUPP | Errno::INVAL) => {
                let zeros = Buffer::zeroed((ZEROS.min(len) as usize).div_ceil(BLOCK));
                let mut at = offset;
                while at < offset + len {
                    let part = (zeros.len() as u64).min(offset + len - at);
                    self.write(at, &zeros[..part as usize])?;
                    at += part;
                }
                Ok(())
            }
            done => done,
        }
    }

    /// Returns true if a range can be zeroed without data. Asks a file system by a hole behind the end of the file,
    /// where nothing is.
    fn zeroes_fast(&self) -> bool {
        match self.is_block {
            true => {
                let disk = self.file.metadata().ok().and_then(|meta| disk_of(meta.rdev()));
                disk.is_some_and(|disk| zeroes_fast(&disk.join("queue")))
            }
            false => self.punch(self.size().next_multiple_of(BLOCK as u64), BLOCK as u64).is_ok(),
        }
    }

    /// Returns the parts of a range, in bytes, that may hold data: the first `most` of them. A block device, and a file
    /// system without SEEK_DATA, counts as full.
    fn allocated(&self, offset: u64, len: u64, most: usize) -> Result<Vec<Range<u64>>, Errno> {
        let end = offset + len;
        if self.is_block {
            return Ok(std::iter::once(offset..end).collect());
        }
        let (mut found, mut at) = (Vec::new(), offset);
        while at < end && found.len() < most {
            let data = match rustix::fs::seek(&self.file, Place::Data(at)) {
                Ok(data) => data,
                Err(Errno::NXIO) => break,
                Err(Errno::INVAL) => return Ok(std::iter::once(offset..end).collect()),
                Err(errno) => return Err(errno),
            };
            if data >= end {
                break;
            }
            let hole = rustix::fs::seek(&self.file, Place::Hole(data))?;
            found.push(data..hole.min(end));
            at = hole;
        }
        Ok(found)
    }
}

impl BackingDevice for DeviceFile {
    fn size(&self) -> u64 {
        self.open.size()
    }

    fn is_rotational(&self) -> bool {
        self.is_rotational
    }

    fn read(&self, offset: u64, mut buffer: Buffer) -> Io<(Buffer, BackingResult<usize>)> {
        self.run(move |open| {
            let read = open.read(offset, &mut buffer).map_err(backing);
            (buffer, read)
        })
    }

    fn write(&self, offset: u64, data: Slice) -> Io<BackingResult<()>> {
        self.run(move |open| open.write(offset, &data).map_err(backing))
    }

    fn sync(&self) -> Io<BackingResult<()>> {
        self.run(|open| rustix::fs::fdatasync(&open.file).map_err(backing))
    }

    fn discard(&self, offset: u64, len: u64) -> Io<BackingResult<()>> {
        self.run(move |open| open.discard(offset, len).map_err(backing))
    }

    fn write_zeroes(&self, offset: u64, len: u64, keep: bool) -> Io<BackingResult<()>> {
        self.run(move |open| open.write_zeroes(offset, len, keep).map_err(backing))
    }

    fn zeroes_fast(&self) -> Io<bool> {
        self.run(Open::zeroes_fast)
    }

    fn allocated(&self, offset: u64, len: u64, most: usize) -> Io<BackingResult<Vec<Range<u64>>>> {
        self.run(move |open| open.allocated(offset, len, most).map_err(backing))
    }
}

/// Returns true if a device with these limits zeroes a range faster than it writes one. A rotating disk without
/// discards carries the zeros out as writes of its own.
fn zeroes_fast(queue: &Path) -> bool {
    let is_set = |name: &str| text(&queue.join(name)).is_some_and(|value| value != "0");
    is_set("write_zeroes_max_bytes") && (!is_set("rotational") || is_set("discard_max_bytes"))
}

/// Returns the path of a backing device as the system resolves it.
///
/// # Errors
/// A sentence: nothing is there.
pub(crate) fn resolved(path: &Path) -> Result<PathBuf, String> {
    path.canonicalize().map_err(|error| unopened(path, &error))
}

#[cfg(test)]
mod tests;
