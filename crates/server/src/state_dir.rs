//! The state directory: created private, and owned by one server at a time.

use std::fs::{File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use forebay_vfs::{DirectoryLocks, NotOwned, Ownership};
use rustix::fs::{FlockOperation, flock};

use crate::error::Error;

/// The directory, owned as long as the value and the process live. If this start created the directory and it is not
/// [kept](StateDir::keep), it is removed with the value.
pub(crate) struct StateDir {
    _lock: File,
    /// Keeps other servers from serving the directory to clients.
    place: Option<Ownership>,
    path: PathBuf,
    /// The directories that did not exist, the innermost first.
    made: Vec<PathBuf>,
}

impl StateDir {
    /// Keeps the directory, because its contents are needed from now on.
    pub(crate) fn keep(&mut self) {
        self.made.clear();
    }
}

impl Drop for StateDir {
    fn drop(&mut self) {
        if self.made.is_empty() {
            return;
        }
        // The directory holds only files of this start.
        let files = std::fs::read_dir(&self.path).into_iter().flatten().flatten();
        files.for_each(|file| drop(std::fs::remove_file(file.path())));
        // A directory that holds anything else is not removed.
        self.made.iter().for_each(|directory| drop(std::fs::remove_dir(directory)));
    }
}

/// Makes and locks the directory. Fails if another server uses it, has its own in it or around it, or serves it to
/// clients.
pub(crate) fn take(path: &Path, owner: &DirectoryLocks) -> Result<StateDir, Error> {
    let failed = |source: io::Error| Error::StateDir { path: path.into(), source };
    require_apart(path)?;
    let is_missing = |above: &&Path| !above.as_os_str().is_empty() && matches!(above.try_exists(), Ok(false));
    let made: Vec<_> = path.ancestors().take_while(is_missing).map(Path::to_owned).collect();
    if made.is_empty() {
        usable(path).map_err(failed)?;
    }
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(failed)?;
    std::fs::set_permissions(path, Permissions::from_mode(0o700)).map_err(failed)?;
    let lock =
        OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(path.join("lock"));
    let lock = lock.map_err(failed)?;
    match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(rustix::io::Errno::WOULDBLOCK) => return Err(Error::StateDirInUse(path.into())),
        Err(errno) => return Err(failed(errno.into())),
    }
    let mut taken = StateDir { _lock: lock, place: None, path: path.into(), made };
    let place = owner.keep_unserved(path).map_err(|refused| match refused {
        NotOwned::Inside(served) => Error::StateDirServed { path: path.into(), served },
        NotOwned::Unusable(error) => failed(io::Error::other(error.to_string())),
        NotOwned::Taken | NotOwned::Around => Error::StateDirInUse(path.into()),
    })?;
    taken.place = Some(place);
    Ok(taken)
}

/// Returns true for the state directory of a server, whether the server runs or not.
pub(crate) fn is_state_dir(path: &Path) -> bool {
    path.join("handle.key").is_file() && path.join("verifier").is_file()
}

/// Returns an error if a new state directory would be in that of another server, or around it. Either could remove or
/// replace files of the other. State directories of former versions may be in one another, and stay usable.
fn require_apart(path: &Path) -> Result<(), Error> {
    if is_state_dir(path) {
        return Ok(());
    }
    let inside = path.ancestors().skip(1).find(|above| is_state_dir(above)).map(Path::to_owned);
    let around = || {
        let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).find(|below| is_state_dir(below))
    };
    match inside.or_else(around) {
        Some(other) => Err(Error::StateDirNested { path: path.into(), other }),
        None => Ok(()),
    }
}

/// Checks that an existing path is a directory that may become private to the server: it has the lock of a server, or
/// nothing, or is private already. The rights of `/tmp` must not change because it was named by mistake.
fn usable(path: &Path) -> io::Result<()> {
    let metadata = path.metadata()?;
    if !metadata.is_dir() {
        return Err(io::Error::other("it is not a directory"));
    }
    let is_private = metadata.permissions().mode() & 0o077 == 0;
    if is_private || path.join("lock").try_exists()? {
        return Ok(());
    }
    // mkfs makes `lost+found`, and an administrator restores `handle.key`.
    let is_foreign = |name: &std::ffi::OsStr| name != "lost+found" && name != "handle.key";
    for entry in std::fs::read_dir(path)? {
        if is_foreign(&entry?.file_name()) {
            return Err(io::Error::other(
                "other users have access to it, and it has files of other programs; if it is for the server alone, run \
                 `chmod 700` for it",
            ));
        }
    }
    Ok(())
}
