//! The abilities of a file system, as far as they show only when they are tried.

use std::ffi::CStr;
use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::attr::Attr;
use crate::error::Result;
use crate::identity::fs_type::EXT4;

/// Returns the largest size in bytes that a file may have in the file system and that this process may write. Finds it
/// by lengthening an unnamed file. The cache could never destage an accepted write beyond it.
pub(crate) fn largest_file(root: &OwnedFd, magic: i64) -> Result<u64> {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Fsize).current;
    let most = (i64::MAX as u64).min(limit.unwrap_or(u64::MAX));
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let Ok(probe) = rustix::fs::openat(root, c".", flags, Mode::RUSR | Mode::WUSR) else {
        let holds = match magic {
            EXT4 => rustix::fs::fstatvfs(root)?.f_bsize.saturating_mul(u64::from(u32::MAX)),
            _ => i64::MAX as u64,
        };
        return Ok(holds.min(most));
    };
    let holds = |size| rustix::fs::ftruncate(&probe, size) != Err(Errno::FBIG);
    if holds(most) {
        return Ok(most);
    }
    // It holds `least` bytes and not `beyond`.
    let (mut least, mut beyond) = (0, most);
    while beyond - least > 1 {
        let middle = least + (beyond - least) / 2;
        if holds(middle) { least = middle } else { beyond = middle }
    }
    Ok(least)
}

/// Returns true if the kernel gives this file system fine-grained change times (Linux 6.13 and most local file
/// systems). Tries it with an unnamed file: if times are as coarse as a tick, some of eight consecutive changes share
/// one.
pub(crate) fn fine_times(root: &OwnedFd) -> bool {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let Ok(probe) = rustix::fs::openat(root, c".", flags, Mode::RUSR) else { return false };
    let mut last = None;
    [Mode::RUSR | Mode::WUSR, Mode::RUSR].iter().cycle().take(8).all(|mode| {
        let ctime = rustix::fs::fchmod(&probe, *mode).and_then(|()| rustix::fs::fstat(&probe));
        let ctime = ctime.map(|stat| Attr::from(&stat).ctime).ok();
        ctime.is_some() && std::mem::replace(&mut last, ctime) != ctime
    })
}

/// Returns true unless the file system says that it has no extended attributes of this kind.
pub(crate) fn has_attribute(root: &OwnedFd, name: &CStr) -> bool {
    rustix::fs::fgetxattr(root, name, &mut [0u8; 0]) != Err(Errno::OPNOTSUPP)
}

/// Returns true if the file system has handles that this process may open, judged by the result of opening one.
/// Clients' handles depend on the answer, so an error that decides neither ends the start.
pub(crate) fn has_handles(opened: rustix::io::Result<()>) -> Result<bool> {
    match opened {
        Ok(()) => Ok(true),
        // Without CAP_DAC_READ_SEARCH; a file system without handles, or with such as lead nowhere or are too long.
        Err(
            Errno::PERM
            | Errno::ACCESS
            | Errno::NOSYS
            | Errno::OPNOTSUPP
            | Errno::STALE
            | Errno::OVERFLOW
            | Errno::INVAL,
        ) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_that_says_nothing_of_handles_is_not_taken_for_none() {
        assert!(has_handles(Ok(())).unwrap());
        for errno in [Errno::PERM, Errno::OPNOTSUPP, Errno::STALE] {
            assert!(!has_handles(Err(errno)).unwrap(), "{errno}");
        }
        for errno in [Errno::IO, Errno::NOMEM, Errno::MFILE] {
            assert!(has_handles(Err(errno)).is_err(), "{errno}");
        }
    }
}
