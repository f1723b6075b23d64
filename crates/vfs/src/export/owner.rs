//! One server for each tree of directories: locks with flock(2), which a crash releases.
//!
//! The owner of a directory has locked it exclusively, and each directory above it in the mount as a shared lock. So no
//! second server owns that directory, one above it or one below it, in either order of the starts. Another mount on the
//! way is a border: a server never crosses it, so each side may have its own owner.
//!
//! | lock | who takes it |
//! |---|---|
//! | exclusive, on the directory | the server that owns it |
//! | shared, on the directories above it | that server |
//! | shared, on a directory and those above it | the server that keeps its state or cache files there |

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay_common::lock::Mutex;
use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags, StatxFlags, flock, openat, statx};
use rustix::io::Errno;

use crate::error::Error;
use crate::identity::export_identity::open_root;

/// The locks that a server has on directories. A clone is for the locks of one server as well.
#[derive(Clone, Debug, Default)]
pub struct DirectoryLocks(Arc<Mutex<BTreeMap<Inode, Held>>>);

/// Held while a directory belongs to the server. The kernel drops the locks with the process.
#[derive(Debug)]
pub struct Ownership {
    owner: DirectoryLocks,
    own: Option<Inode>,
    above: Vec<Inode>,
}

/// The reason why a directory does not become the server's.
#[derive(Debug)]
pub enum NotOwned {
    /// Another process owns the directory.
    Taken,
    /// Another process owns this directory above it.
    Inside(PathBuf),
    /// Another process owns a directory in it, or keeps its state there.
    Around,
    /// The directory cannot be opened or locked.
    Unusable(Error),
}

/// The device and the number of an inode.
type Inode = (u64, u64);

/// A lock, and the number of its users.
#[derive(Debug)]
struct Held {
    fd: OwnedFd,
    exclusive: usize,
    shared: usize,
}

/// A directory that can be locked.
struct Directory {
    fd: OwnedFd,
    inode: Inode,
    path: PathBuf,
}

impl DirectoryLocks {
    /// Takes the directory at `path`, which has no symbolic links.
    ///
    /// # Errors
    /// [`NotOwned`]; no further lock is held.
    pub fn take(&self, path: &Path) -> Result<Ownership, NotOwned> {
        let (directory, above) = with_above(path)?;
        let mut taken = self.share_all(above)?;
        let inode = directory.inode;
        self.lock_alone(directory)?;
        taken.own = Some(inode);
        Ok(taken)
    }

    /// Keeps other servers from serving the directory at `path`, one above it or one below it. `path` has no symbolic
    /// links.
    ///
    /// # Errors
    /// [`NotOwned`]; no further lock is held.
    pub fn keep_unserved(&self, path: &Path) -> Result<Ownership, NotOwned> {
        let (directory, above) = with_above(path)?;
        self.share_all(std::iter::once(directory).chain(above))
    }

    fn share_all(&self, directories: impl IntoIterator<Item = Directory>) -> Result<Ownership, NotOwned> {
        let mut taken = Ownership { owner: self.clone(), own: None, above: Vec::new() };
        for directory in directories {
            let (inode, path) = (directory.inode, directory.path.clone());
            match self.share(directory) {
                Ok(()) => taken.above.push(inode),
                Err(Errno::WOULDBLOCK) => return Err(NotOwned::Inside(path)),
                // Some file systems lock no directories. A server cannot own such a directory either.
                Err(_) => {}
            }
        }
        Ok(taken)
    }

    fn share(&self, directory: Directory) -> Result<(), Errno> {
        let mut locks = self.0.lock();
        if let Some(held) = locks.get_mut(&directory.inode) {
            held.shared += 1;
            return Ok(());
        }
        flock(&directory.fd, FlockOperation::NonBlockingLockShared)?;
        locks.insert(directory.inode, Held { fd: directory.fd, exclusive: 0, shared: 1 });
        Ok(())
    }

    fn lock_alone(&self, directory: Directory) -> Result<(), NotOwned> {
        let failed = |errno| NotOwned::Unusable(Error::Os(errno));
        let mut locks = self.0.lock();
        if let Some(held) = locks.get_mut(&directory.inode) {
            if held.exclusive == 0 {
                flock(&held.fd, FlockOperation::NonBlockingLockExclusive).map_err(|errno| {
                    // A change of the lock that fails has given up the shared one.
                    let _ = flock(&held.fd, FlockOperation::NonBlockingLockShared);
                    if errno == Errno::WOULDBLOCK { NotOwned::Around } else { failed(errno) }
                })?;
            }
            held.exclusive += 1;
            return Ok(());
        }
        match flock(&directory.fd, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => {
                let shared = flock(&directory.fd, FlockOperation::NonBlockingLockShared);
                return Err(if shared.is_ok() { NotOwned::Around } else { NotOwned::Taken });
            }
            Err(errno) => return Err(failed(errno)),
        }
        locks.insert(directory.inode, Held { fd: directory.fd, exclusive: 1, shared: 0 });
        Ok(())
    }

    /// Gives up one use of a lock.
    fn release(&self, inode: &Inode, is_own: bool) {
        let mut locks = self.0.lock();
        let Some(held) = locks.get_mut(inode) else { return };
        let count = if is_own { &mut held.exclusive } else { &mut held.shared };
        *count = count.saturating_sub(1);
        match (held.exclusive, held.shared) {
            (0, 0) => drop(locks.remove(inode)),
            // A lock that this process has alone can always be shared.
            (0, _) if is_own => drop(flock(&held.fd, FlockOperation::NonBlockingLockShared)),
            _ => {}
        }
    }
}

impl Drop for Ownership {
    fn drop(&mut self) {
        self.own.iter().for_each(|inode| self.owner.release(inode, true));
        self.above.iter().for_each(|inode| self.owner.release(inode, false));
    }
}

/// Opens a directory, and those above it in its mount that this user may read. Another user's server that serves one of
/// the others is not noticed.
fn with_above(path: &Path) -> Result<(Directory, Vec<Directory>), NotOwned> {
    let fd = open_root(path).map_err(NotOwned::Unusable)?;
    let failed = |errno| NotOwned::Unusable(Error::Os(errno));
    let (inode, mount) = identify(&fd).map_err(failed)?;
    let mut above = Vec::new();
    let (mut below, mut last) = (None, inode);
    for path in path.ancestors().skip(1) {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let here = below.as_ref().unwrap_or(&fd);
        let Ok(next) = openat(here, c"..", flags, Mode::empty()) else { break };
        let Ok((inode, there)) = identify(&next) else { break };
        if there != mount || inode == last {
            break;
        }
        let readable = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        if let Ok(fd) = openat(&next, c".", readable, Mode::empty()) {
            above.push(Directory { fd, inode, path: path.to_owned() });
        }
        (below, last) = (Some(next), inode);
    }
    Ok((Directory { fd, inode, path: path.to_owned() }, above))
}

/// Returns the inode behind a descriptor, and the number of its mount. A kernel that does not tell the mount tells the
/// file system.
fn identify(fd: impl AsFd) -> Result<(Inode, u64), Errno> {
    let wanted = StatxFlags::INO | StatxFlags::MNT_ID;
    let found = statx(fd, c"", AtFlags::EMPTY_PATH, wanted)?;
    let device = u64::from(found.stx_dev_major) << 32 | u64::from(found.stx_dev_minor);
    let has_mount = StatxFlags::from_bits_retain(found.stx_mask).contains(StatxFlags::MNT_ID);
    Ok(((device, found.stx_ino), if has_mount { found.stx_mnt_id } else { device }))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a directory `a` with a directory `b` in it, and a place beside them.
    fn nested() -> (tempfile::TempDir, [PathBuf; 3]) {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().canonicalize().unwrap();
        let paths = ["a", "a/b", "c"].map(|name| at.join(name));
        paths.iter().for_each(|path| std::fs::create_dir(path).unwrap());
        (dir, paths)
    }

    #[test]
    fn a_second_owner_is_refused_until_the_first_is_gone() {
        let (_dir, [a, ..]) = nested();
        let (one, two) = (DirectoryLocks::default(), DirectoryLocks::default());
        let first = one.take(&a).unwrap();
        assert!(matches!(two.take(&a), Err(NotOwned::Taken)));
        drop(first);
        assert!(two.take(&a).is_ok());
    }

    #[test]
    fn a_tree_has_one_owner_in_either_order() {
        let (_dir, [a, b, c]) = nested();
        let (one, two) = (DirectoryLocks::default(), DirectoryLocks::default());
        let outer = one.take(&a).unwrap();
        assert!(matches!(two.take(&b), Err(NotOwned::Inside(above)) if above == a));
        assert!(matches!(two.keep_unserved(&b), Err(NotOwned::Inside(above)) if above == a));
        let beside = two.take(&c).unwrap();
        drop(outer);
        let inner = two.take(&b).unwrap();
        assert!(matches!(one.take(&a), Err(NotOwned::Around)));
        drop((inner, beside));
        let state = two.keep_unserved(&b).unwrap();
        assert!(matches!(one.take(&a), Err(NotOwned::Around)));
        assert!(matches!(one.take(&b), Err(NotOwned::Around)));
        assert!(one.keep_unserved(&b).is_ok(), "states may be side by side");
        drop(state);
        assert!(one.take(&a).is_ok());
    }

    #[test]
    fn a_server_owns_directories_in_one_another_in_either_order() {
        let (_dir, [a, b, _]) = nested();
        let (one, two) = (DirectoryLocks::default(), DirectoryLocks::default());
        for order in [[&a, &b], [&b, &a]] {
            let both = order.map(|path| one.take(path).unwrap());
            assert!(matches!(two.take(&b), Err(NotOwned::Inside(_))));
            assert!(matches!(two.take(&a), Err(NotOwned::Taken)));
            drop(both);
        }
        let (outer, inner) = (one.take(&a).unwrap(), one.take(&b).unwrap());
        drop(outer);
        assert!(matches!(two.take(&a), Err(NotOwned::Around)), "what is in it still belongs to the first");
        drop(inner);
        let _inner = two.take(&b).unwrap();
        assert!(matches!(one.take(&a), Err(NotOwned::Around)), "all locks are given up");
    }
}
