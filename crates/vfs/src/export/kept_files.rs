//! The directory of kept files, `.forebay/unlinked` (docs/decisions/047-open-and-removed.md). A kept file is a removed
//! file that a client has open. Its name there is its identity.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use forebay_oplog::Binding;
use rustix::fs::{AtFlags, CWD, FileType};
use rustix::io::Errno;

use crate::caches::inode::Inode;
use crate::error::{Error, Result};
use crate::export::filesystem::{Filesystem, Scheme};
use crate::export::locate;
use crate::export::private_dir::{PRIVATE, UNLINKED, dir_if_there, names, private_dir};
use crate::oplog::binding;
use crate::sys::{KernelHandle, proc_path};

/// A file that got a name in the directory of kept files.
pub(crate) struct KeptName {
    /// The statement for the log.
    pub(crate) binding: Binding,
    /// True if the file had no name there before.
    is_new: bool,
}

impl Filesystem {
    /// Returns the directory of kept files, and creates it if it does not exist. The first call of a run may wait for
    /// a commit of the journal.
    ///
    /// # Errors
    /// The file system cannot be written.
    pub(crate) fn kept_dir(&self) -> Result<Arc<Inode>> {
        if let Some(dir) = self.kept_dir.get() {
            return Ok(dir.clone());
        }
        let private = self.private()?;
        let dir = self.adopt_kept_dir(&private, private_dir(&private, UNLINKED)?)?;
        if self.linked().is_some() {
            // Recovery does not recreate the directory. So it must be durable before a record names it.
            self.journal.barrier()?;
        }
        Ok(self.kept_dir.get_or_init(|| dir).clone())
    }

    /// Returns the directory of kept files if it exists.
    pub(crate) fn kept_dir_if_there(&self) -> Result<Option<Arc<Inode>>> {
        let Some(private) = dir_if_there(self.aliases.root(), PRIVATE)? else { return Ok(None) };
        let Some(opened) = dir_if_there(&private, UNLINKED)? else { return Ok(None) };
        let dir = self.adopt_kept_dir(&private, opened)?;
        Ok(Some(self.kept_dir.get_or_init(|| dir).clone()))
    }

    /// Returns the directory of kept files as an inode. Without kernel handles its name has to be recorded.
    fn adopt_kept_dir(&self, private: &OwnedFd, opened: OwnedFd) -> Result<Arc<Inode>> {
        let (dir, _) = self.adopt(opened)?;
        if let Scheme::DentryCache(locator) = &self.scheme {
            let above = locate::identity(private)?;
            locator.learn(&above, &self.root, PRIVATE.as_bytes());
            locator.learn(&dir.kernel, &above, UNLINKED.as_bytes());
        }
        Ok(dir)
    }

    /// Returns the names in the directory of kept files, with the files that they lead to.
    pub(crate) fn kept_names(&self, dir: &Inode) -> Result<Vec<(String, KernelHandle)>> {
        let listed = names(&crate::sys::reopen(dir.path(), rustix::fs::OFlags::RDONLY)?)?;
        // Other names are not the server's.
        let own = listed.iter().filter(|name| KernelHandle::from_name(name.to_bytes()).is_some());
        own.map(|name| Ok((name.to_string_lossy().into_owned(), self.handle_at(dir, name)?))).collect()
    }

    /// Gives a file a name in the directory of kept files, if it is about to lose its last other name. The caller holds
    /// the lock of that directory, so that no two names of the file are the last one. Returns `None` for a file with
    /// more names, and for an inode that is no file.
    pub(crate) fn keep(&self, dir: &Inode, file: &KernelHandle) -> Result<Option<KeptName>> {
        let object = self.resolve(file, true)?;
        let links = rustix::fs::fstat(object.path())?.st_nlink;
        let was = self.kept.has(file);
        if object.kind() != FileType::RegularFile || links > 1 + u64::from(was) {
            return Ok(None);
        }
        let name = file.to_name();
        if !was {
            let mut path = [0; 32];
            let path = proc_path(&mut path, object.path());
            rustix::fs::linkat(CWD, path, dir.path(), &*name, AtFlags::SYMLINK_FOLLOW)?;
            self.kept.insert(*file);
            self.seen_as(file, dir, name.as_bytes());
        }
        let binding = binding(dir, name.as_bytes(), was.then_some(*file), Some(*file));
        Ok(Some(KeptName { binding, is_new: !was }))
    }

    /// Takes a name in the directory of kept files back, since the file has kept its other name. Returns false if the
    /// file has the name still.
    pub(crate) fn undo_keep(&self, dir: &Inode, file: &KernelHandle, kept: &KeptName) -> bool {
        let removed =
            kept.is_new && rustix::fs::unlinkat(dir.path(), &*file.to_name(), AtFlags::empty()).is_ok();
        if removed {
            self.kept.remove(file);
        }
        removed
    }

    /// Returns true if the server's own directory can be made in `root`.
    pub(crate) fn may_keep(root: impl AsFd) -> bool {
        crate::sys::may_access(root, libc::W_OK | libc::X_OK).unwrap_or(false)
    }
}

/// Returns an error if a file has no name that clients see: it gets none any more.
pub(crate) fn require_name(fs: &Filesystem, file: &Inode) -> Result<()> {
    if fs.kept.has(&file.kernel) { Err(Error::Os(Errno::NOENT)) } else { Ok(()) }
}
