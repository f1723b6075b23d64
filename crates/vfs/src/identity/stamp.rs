//! The count of starts in the file system itself. It distinguishes an older copy, which has an equal UUID and equal
//! handles, from the original.
//!
//! The count is an extended attribute of the exported directory, written before the pool's copy of it. Of two copies of
//! one state, the copy that is served first goes on counting. The other copy is the older one from then on.

use std::os::fd::AsFd;

use rustix::fs::{OFlags, XattrFlags};
use rustix::io::Errno;

use crate::error::{Error, Result};
use crate::sys;

const ATTRIBUTE: &str = "user.forebay.start";
const VERSION: u8 = 1;
const LEN: usize = 17;

/// A start of a server with a cache, as the file system remembers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// Grows by one with each.
    pub start: u64,
    /// The low 64 bits of the UUID of the pool that it was with.
    pub pool: u64,
}

/// Returns the directory's count of starts. Returns `None` if it has none, or cannot have one.
pub(crate) fn read(root: impl AsFd) -> Result<Option<Stamp>> {
    let mut bytes = [0; 64];
    let root = sys::reopen(root, OFlags::RDONLY | OFlags::DIRECTORY)?;
    match rustix::fs::fgetxattr(&root, ATTRIBUTE, &mut bytes) {
        Ok(LEN) if bytes[0] == VERSION => {
            Ok(Some(Stamp { start: word(&bytes[1..]), pool: word(&bytes[9..]) }))
        }
        // Another version's says nothing of this one's pool that may be believed.
        Ok(_) => Err(Error::Os(Errno::BADMSG)),
        Err(Errno::NODATA | Errno::NOTSUP) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

/// Writes it, durably. False: the directory can have none, since it may not be written or has no extended attributes.
pub(crate) fn write(root: impl AsFd, stamp: Stamp) -> Result<bool> {
    let mut bytes = [VERSION; LEN];
    bytes[1..9].copy_from_slice(&stamp.start.to_le_bytes());
    bytes[9..].copy_from_slice(&stamp.pool.to_le_bytes());
    let root = sys::reopen(root, OFlags::RDONLY | OFlags::DIRECTORY)?;
    match rustix::fs::fsetxattr(&root, ATTRIBUTE, &bytes, XattrFlags::empty()) {
        Ok(()) => {}
        Err(Errno::NOTSUP | Errno::ROFS | Errno::PERM | Errno::ACCESS | Errno::NOSPC | Errno::DQUOT) => {
            return Ok(false);
        }
        Err(errno) => return Err(errno.into()),
    }
    rustix::fs::fsync(&root)?;
    Ok(true)
}

fn word(bytes: &[u8]) -> u64 {
    bytes.first_chunk().map_or(0, |word| u64::from_le_bytes(*word))
}
