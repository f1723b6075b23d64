//! The files of a handle map: a file for each entry, and the list of spent identities.
//!
//! An identity that becomes spent is first an entry that leads nowhere. The list takes it over later.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;

use forebay_oplog::Spent;
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

use crate::error::{Error, Result};
use crate::export::private_dir::{ALIASES, dir_if_there, names, unlink_if_there};
use crate::sys::KernelHandle;

/// The list of spent identities, and its next version while that is written.
const SPENT: &str = "spent";
const SPENT_NEW: &str = "spent.new";

/// Returns the inner identity in the entry of a spent identity, which leads to no inode.
pub(super) fn nowhere() -> KernelHandle {
    KernelHandle::made_up(0)
}

/// Returns the name of the file that stands for an entry.
pub(super) fn file_name(outer: &KernelHandle, inner: &KernelHandle) -> String {
    format!("{}={}", outer.to_name(), inner.to_name())
}

/// Returns the entry that a file of this name stands for: outer identity, inner identity.
pub(super) fn parse(name: &[u8]) -> Option<(KernelHandle, KernelHandle)> {
    let at = name.iter().position(|byte| *byte == b'=')?;
    Some((KernelHandle::from_name(&name[..at])?, KernelHandle::from_name(&name[at + 1..])?))
}

/// Reads the list of spent identities in the server's own directory. It is empty if there is none.
pub(super) fn read_list(private: &OwnedFd) -> Result<Vec<u8>> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut list = Vec::new();
    match rustix::fs::openat(private, SPENT, flags, Mode::empty()) {
        Err(Errno::NOENT) => {}
        opened => _ = File::from(opened?).read_to_end(&mut list).map_err(failed)?,
    }
    Ok(list)
}

fn failed(error: io::Error) -> Error {
    Error::Os(Errno::from_io_error(&error).unwrap_or(Errno::IO))
}

/// Writes the list of spent identities into the server's own directory, in one transaction. The list comes after the
/// changes that it follows from, so a power cut does not leave it alone.
pub(super) fn write_list(private: &OwnedFd, spent: &Spent) -> Result<()> {
    if spent.is_empty() {
        return remove_list(private);
    }
    let flags = OFlags::CREATE | OFlags::TRUNC | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut file = File::from(rustix::fs::openat(private, SPENT_NEW, flags, Mode::RUSR | Mode::WUSR)?);
    file.write_all(&spent.encode()).and_then(|()| file.sync_all()).map_err(failed)?;
    Ok(rustix::fs::renameat(private, SPENT_NEW, private, SPENT)?)
}

/// Removes the list of spent identities, if there is one.
pub(super) fn remove_list(private: &OwnedFd) -> Result<()> {
    unlink_if_there(private, SPENT)
}

/// Removes the entries of spent identities, once the list has them.
pub(super) fn remove_spent_entries(private: &OwnedFd) -> Result<()> {
    let Some(dir) = dir_if_there(private, ALIASES)? else { return Ok(()) };
    for name in names(&dir)? {
        if parse(name.to_bytes()).is_some_and(|(_, inner)| inner == nowhere()) {
            rustix::fs::unlinkat(&dir, &name, AtFlags::empty())?;
        }
    }
    Ok(())
}
