//! The state directory: made private, and owned by one server at a time.

use std::fs::{File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use rustix::fs::{FlockOperation, flock};

use crate::error::Error;

/// Makes and locks the directory; the lock lasts as long as the returned file, and no longer than the process.
pub(crate) fn take(path: &Path) -> Result<File, Error> {
    let failed = |source: io::Error| Error::StateDir { path: path.into(), source };
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(failed)?;
    std::fs::set_permissions(path, Permissions::from_mode(0o700)).map_err(failed)?;
    let lock =
        OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(path.join("lock"));
    let lock = lock.map_err(failed)?;
    match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(lock),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(Error::StateDirInUse(path.into())),
        Err(errno) => Err(failed(errno.into())),
    }
}
