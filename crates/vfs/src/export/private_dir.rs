//! The server's own directory `.forebay` in the root of a file system.

use std::ffi::CString;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{AtFlags, Dir, Mode, OFlags};
use rustix::io::Errno;

use crate::error::{Error, Result};

/// The server's own directory in the root of the first export of a file system. Clients do not see it there.
pub(crate) const PRIVATE: &str = ".forebay";
/// The directory of aliases.
pub(super) const ALIASES: &str = "aliases";
/// The directory of inodes that recovery has moved from one place and not yet brought to another.
pub(crate) const MOVING: &str = "moving";
/// The directory of rename intents.
pub(crate) const SLOTS: &str = "slots";
/// The directory of kept files: removed files that clients have open.
pub(crate) const UNLINKED: &str = "unlinked";
/// The directories in it.
pub(super) const OWN: [&str; 4] = [ALIASES, MOVING, SLOTS, UNLINKED];

/// Opens a directory below another one. Makes it if it is not there. Only the server may enter it.
pub(crate) fn private_dir(at: impl AsFd, name: &str) -> Result<OwnedFd> {
    match rustix::fs::mkdirat(&at, name, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(errno) => return Err(errno.into()),
    }
    dir_if_there(at, name)?.ok_or(Error::Os(Errno::NOENT))
}

/// Opens a directory below another one. Returns `None` if it is not there.
pub(crate) fn dir_if_there(at: impl AsFd, name: &str) -> Result<Option<OwnedFd>> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match rustix::fs::openat(&at, name, flags, Mode::empty()) {
        Err(Errno::NOENT) => Ok(None),
        opened => Ok(Some(opened?)),
    }
}

/// Removes a file, if it is there.
pub(super) fn unlink_if_there(dir: &OwnedFd, name: &str) -> Result<()> {
    match rustix::fs::unlinkat(dir, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// Removes the server's own directory in `root` and its subdirectories, as far as they are empty.
pub(super) fn remove_empty(root: &OwnedFd, private: &OwnedFd) {
    for name in OWN {
        let _ = rustix::fs::unlinkat(private, name, AtFlags::REMOVEDIR);
    }
    let _ = rustix::fs::unlinkat(root, PRIVATE, AtFlags::REMOVEDIR);
}

/// Returns the names in a directory.
pub(crate) fn names(dir: &OwnedFd) -> Result<Vec<CString>> {
    let all: rustix::io::Result<Vec<_>> =
        Dir::read_from(dir)?.map(|entry| Ok(entry?.file_name().to_owned())).collect();
    Ok(all?.into_iter().filter(|name| !matches!(name.to_bytes(), b"." | b"..")).collect())
}
