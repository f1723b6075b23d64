//! One server per directory: an flock on the directory itself, which a crash releases.

use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::FlockOperation;
use rustix::io::Errno;

use crate::error::{Error, Result};
use crate::identity::export_identity::open_root;

/// Held while a directory is served; the kernel drops it with the process.
#[derive(Debug)]
pub struct Ownership {
    _lock: OwnedFd,
}

impl Ownership {
    /// Takes the directory, or returns `None` if another process serves it.
    pub fn take(path: &Path) -> Result<Option<Self>> {
        let fd = open_root(path)?;
        match rustix::fs::flock(&fd, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(Ownership { _lock: fd })),
            Err(Errno::WOULDBLOCK) => Ok(None),
            Err(errno) => Err(Error::Os(errno)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_owner_is_refused_until_the_first_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let first = Ownership::take(dir.path()).unwrap().unwrap();
        assert!(Ownership::take(dir.path()).unwrap().is_none());
        drop(first);
        assert!(Ownership::take(dir.path()).unwrap().is_some());
    }
}
