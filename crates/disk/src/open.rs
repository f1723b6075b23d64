//! Opens, creates and locks cache devices.

use std::fs::{File, FileType};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use forebay_engine::buffer::{BLOCK, Buffer};
use rustix::fs::{CWD, FallocateFlags, FlockOperation, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

use crate::discard::block_device_size;

/// The smallest cache device: 16 MiB.
pub const MIN_SIZE: u64 = 16 << 20;

/// The size up to which new files are filled with zeros, which takes a second or two. Larger files have unwritten
/// extents, so the first write to each block costs one more journal commit.
const FILL_MAX: u64 = 4 << 30;

/// The reason why a cache device cannot be opened or created.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The path is not something that blocks can be stored in.
    #[error(
        "cannot use {} as a cache device: it is {what}; name a block device, a regular file, or a path where nothing is",
        path.display()
    )]
    Unsuitable {
        /// The device.
        path: PathBuf,
        /// The kind of the path, with its article.
        what: &'static str,
    },
    /// The size is below [`MIN_SIZE`].
    #[error(
        "cannot use {} as a cache device: {size} bytes are too few; it needs {} MiB or more",
        path.display(), MIN_SIZE >> 20
    )]
    TooSmall {
        /// The device.
        path: PathBuf,
        /// The bytes that it has, or would be created with.
        size: u64,
    },
    /// Another opening owns the device.
    #[error(
        "cannot use {} as a cache device: it is in use, by another process or by a mount; end that use or name another",
        path.display()
    )]
    InUse {
        /// The device.
        path: PathBuf,
    },
    /// The device does not answer.
    #[error(
        "cannot use {} as a cache device: it has not answered for {} s; see the kernel's log, and when it answers, add it with \
         `forebay pool add`",
        path.display(), after.as_secs()
    )]
    Silent {
        /// The device.
        path: PathBuf,
        /// The time without an answer.
        after: Duration,
    },
    /// The NBD server of the device cannot be reached, or its export cannot be used.
    #[error("cannot use {} as a cache device: {reason}", path.display())]
    Server {
        /// The URL.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
    /// The file system cannot hold the file.
    #[error(
        "cannot use {} as a cache device: its file system has no room for all of its {} MiB; free some or ask for less",
        path.display(), size >> 20
    )]
    NoSpace {
        /// The device.
        path: PathBuf,
        /// Bytes of the whole file.
        size: u64,
    },
    /// The system refused.
    #[error("cannot {action} the cache device {}: {errno}", path.display())]
    System {
        /// The action that failed.
        action: &'static str,
        /// The device.
        path: PathBuf,
        /// The system's reason.
        errno: Errno,
    },
}

pub(crate) struct Opened {
    pub(crate) file: File,
    /// The size in bytes, in whole blocks.
    pub(crate) size: u64,
    pub(crate) is_file: bool,
    pub(crate) direct: bool,
}

/// Opens or creates a device, see [`FileDevice::open_or_create`](crate::FileDevice::open_or_create).
pub(crate) fn open_or_create(path: &Path, size: u64) -> Result<Opened, OpenError> {
    match rustix::fs::stat(path) {
        Ok(_) => open(path),
        Err(Errno::NOENT) => create(path, size, &|| ()),
        Err(errno) => Err(system("open", path, errno)),
    }
}

/// Opens an existing device for this process alone. A file gets the blocks that it lacks. Fails if another program
/// uses the device.
fn open(path: &Path) -> Result<Opened, OpenError> {
    // The path is examined before it is opened: opening has side effects on some character devices.
    let before = std::fs::metadata(path).map_err(|error| from_io("open", path, &error))?;
    let exclusive = if kind(path, before.file_type())? { OFlags::empty() } else { OFlags::EXCL };
    let (file, direct) = open_direct(path, exclusive)?;
    let meta = file.metadata().map_err(|error| from_io("look at", path, &error))?;
    let is_file = kind(path, meta.file_type())?;
    let size = if is_file {
        lock(path, &file)?;
        meta.len()
    } else {
        block_device_size(&file).map_err(|errno| system("find the size of", path, errno))?
    };
    let size = whole(path, size)?;
    if is_file && meta.blocks() * 512 < size {
        fill_holes(path, &file, size)?;
    }
    let direct = direct && keeps_direct(path, &file)?;
    Ok(Opened { file, size, is_file, direct })
}

/// Creates the file under a temporary name, so that a file with the right name is complete. Calls `step` after each MiB
/// that is filled.
pub(crate) fn create(path: &Path, size: u64, step: &dyn Fn()) -> Result<Opened, OpenError> {
    let size = whole(path, size)?;
    let Some(name) = path.file_name() else {
        return Err(OpenError::Unsuitable { path: path.to_owned(), what: "not the name of a file" });
    };
    let mut hidden = std::ffi::OsString::from(".");
    hidden.push(name);
    hidden.push(".new");
    let temporary = path.with_file_name(hidden);
    let (file, direct) = open_direct(&temporary, OFlags::CREATE | OFlags::NOFOLLOW)?;
    lock(path, &file)?;
    if !is_at(&file, &temporary) {
        // Another process has just completed the file, and uses it.
        return Err(OpenError::InUse { path: path.to_owned() });
    }
    let made = allocate(path, &file, size, step).and_then(|()| publish(&temporary, path, &file));
    if let Err(error) = made {
        let _ = std::fs::remove_file(&temporary);
        return Err(error);
    }
    let direct = direct && keeps_direct(path, &file)?;
    Ok(Opened { file, size, is_file: true, direct })
}

/// Returns true for a regular file, false for a block device.
fn kind(path: &Path, file_type: FileType) -> Result<bool, OpenError> {
    let what = match file_type {
        t if t.is_file() => return Ok(true),
        t if t.is_block_device() => return Ok(false),
        t if t.is_dir() => "a directory",
        t if t.is_char_device() => "a character device",
        _ => "a pipe or socket",
    };
    Err(OpenError::Unsuitable { path: path.to_owned(), what })
}

/// Returns `size` in whole blocks, if they are enough.
fn whole(path: &Path, size: u64) -> Result<u64, OpenError> {
    match size {
        MIN_SIZE.. => Ok(size - size % BLOCK as u64),
        _ => Err(OpenError::TooSmall { path: path.to_owned(), size }),
    }
}

/// Opens with direct I/O if the file system has it; returns whether it has.
fn open_direct(path: &Path, flags: OFlags) -> Result<(File, bool), OpenError> {
    let flags = flags | OFlags::RDWR | OFlags::CLOEXEC;
    let open = |flags| rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR);
    let opened = match open(flags | OFlags::DIRECT) {
        Ok(file) => Ok((file, true)),
        Err(Errno::INVAL) => open(flags).map(|file| (file, false)),
        Err(errno) => Err(errno),
    };
    match opened {
        Ok((file, direct)) => Ok((File::from(file), direct)),
        Err(Errno::BUSY) => Err(OpenError::InUse { path: path.to_owned() }),
        Err(errno) => Err(system("open", path, errno)),
    }
}

/// Turns direct I/O off if reads with it fail. Some file systems accept O_DIRECT when a file is opened and refuse it
/// when the file is read, or require more than whole blocks.
fn keeps_direct(path: &Path, file: &File) -> Result<bool, OpenError> {
    let mut block = Buffer::zeroed(1);
    if rustix::io::pread(file, &mut *block, 0) != Err(Errno::INVAL) {
        return Ok(true);
    }
    let flags = rustix::fs::fcntl_getfl(file).map_err(|errno| system("open", path, errno))?;
    rustix::fs::fcntl_setfl(file, flags - OFlags::DIRECT).map_err(|errno| system("open", path, errno))?;
    Ok(false)
}

/// Locks the file. The lock belongs to the open file, so it ends with the process, however the process ends.
fn lock(path: &Path, file: &File) -> Result<(), OpenError> {
    match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(()),
        Err(Errno::WOULDBLOCK) => Err(OpenError::InUse { path: path.to_owned() }),
        Err(errno) => Err(system("lock", path, errno)),
    }
}

/// Tries to open a device again while it is in use, for a tenth of a second. A thread of the kernel that has ended a
/// request of io_uring may hold the file a moment longer than the program that has closed it.
pub(crate) fn unless_just_closed<T>(open: impl Fn() -> Result<T, OpenError>) -> Result<T, OpenError> {
    for _ in 0..50 {
        match open() {
            Err(OpenError::InUse { .. }) => std::thread::sleep(std::time::Duration::from_millis(2)),
            opened => return opened,
        }
    }
    open()
}

/// Returns true if the path still leads to the open file.
fn is_at(file: &File, path: &Path) -> bool {
    let (Ok(open), Ok(named)) = (file.metadata(), std::fs::symlink_metadata(path)) else { return false };
    (open.dev(), open.ino()) == (named.dev(), named.ino())
}

/// Empties a file, and gives it `size` bytes with all of their blocks, so that no later write lacks space.
fn allocate(path: &Path, file: &File, size: u64, step: &dyn Fn()) -> Result<(), OpenError> {
    // The remains of an earlier attempt that crashed are discarded.
    file.set_len(0).map_err(|error| from_io("make", path, &error))?;
    match rustix::fs::fallocate(file, FallocateFlags::empty(), 0, size) {
        Ok(()) if size > FILL_MAX => Ok(()),
        Ok(()) | Err(Errno::OPNOTSUPP) => fill(file, size, step).map_err(|errno| no_room(path, size, errno)),
        Err(errno) => Err(no_room(path, size, errno)),
    }
}

/// Writes zeros over the whole file. Calls `step` after each MiB.
fn fill(file: &File, size: u64, step: &dyn Fn()) -> Result<(), Errno> {
    let zeros = Buffer::zeroed(256);
    let mut offset = 0;
    while offset < size {
        let len = (size - offset).min(zeros.len() as u64);
        file.write_all_at(&zeros[..len as usize], offset).map_err(|error| errno_of(&error))?;
        offset += len;
        step();
    }
    Ok(())
}

/// Gives an existing file the blocks it lacks, so that no write fails for want of space.
fn fill_holes(path: &Path, file: &File, size: u64) -> Result<(), OpenError> {
    match rustix::fs::fallocate(file, FallocateFlags::empty(), 0, size) {
        Ok(()) => rustix::fs::fsync(file).map_err(|errno| system("sync", path, errno)),
        Err(Errno::OPNOTSUPP) => {
            tracing::warn!(
                "{}: its blocks cannot be allocated now: writes may find no space",
                path.display()
            );
            Ok(())
        }
        Err(errno) => Err(no_room(path, size, errno)),
    }
}

/// Makes the file durable, and then its name.
fn publish(temporary: &Path, path: &Path, file: &File) -> Result<(), OpenError> {
    rustix::fs::fsync(file).map_err(|errno| system("sync", path, errno))?;
    match rustix::fs::renameat_with(CWD, temporary, CWD, path, RenameFlags::NOREPLACE) {
        Ok(()) => {}
        Err(Errno::EXIST) => return Err(OpenError::InUse { path: path.to_owned() }),
        Err(errno) => return Err(system("name", path, errno)),
    }
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let synced = open_directory(parent).and_then(rustix::fs::fsync);
    synced.map_err(|errno| system("sync the directory of", path, errno))
}

fn open_directory(path: &Path) -> Result<OwnedFd, Errno> {
    rustix::fs::open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
}

/// Returns the error for a file that could not get `size` bytes.
fn no_room(path: &Path, size: u64, errno: Errno) -> OpenError {
    match errno {
        Errno::NOSPC | Errno::DQUOT | Errno::FBIG => OpenError::NoSpace { path: path.to_owned(), size },
        errno => system("make", path, errno),
    }
}

fn system(action: &'static str, path: &Path, errno: Errno) -> OpenError {
    OpenError::System { action, path: path.to_owned(), errno }
}

fn from_io(action: &'static str, path: &Path, error: &std::io::Error) -> OpenError {
    system(action, path, errno_of(error))
}

fn errno_of(error: &std::io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn a_device_is_opened_once_nobody_holds_it_and_refused_if_that_does_not_happen() {
        let open_after = |tries: u32| {
            let left = Cell::new(tries);
            unless_just_closed(|| match left.replace(left.get().saturating_sub(1)) {
                0 => Ok(()),
                _ => Err(OpenError::InUse { path: "device".into() }),
            })
        };
        assert!(open_after(0).is_ok() && open_after(5).is_ok());
        assert!(matches!(open_after(u32::MAX), Err(OpenError::InUse { .. })));
        let refused = unless_just_closed(|| Err::<(), _>(system("open", Path::new("device"), Errno::ACCESS)));
        assert!(matches!(refused, Err(OpenError::System { .. })), "another error is no reason to wait");
    }
}
