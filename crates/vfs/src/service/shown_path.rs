//! The path of an inode, for people.

use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::export::vfs::Vfs;
use crate::sys::proc_path;

impl Vfs {
    /// Returns the path of the inode with this handle, within its export; empty for the exported directory. Asks no
    /// file system: the kernel knows the paths of inodes that are open.
    ///
    /// Returns `None` if the inode is not open now, has lost its last name, or has a name outside of the export.
    pub fn shown_path(&self, handle: &[u8]) -> Option<PathBuf> {
        let (id, kernel) = self.key.open(handle).ok()?;
        let export = self.exports().find(id)?;
        let object = export.fs.inodes.get(&kernel)?;
        let (root, path) = (host_path(export.root.path())?, host_path(object.path())?);
        let within = path.strip_prefix(&root).ok()?.to_owned();
        // The kernel adds this to the last name of a file that is gone. A file whose name ends so has no path here.
        (!path.as_os_str().as_bytes().ends_with(b" (deleted)")).then_some(within)
    }
}

/// Returns the path by which this host knows an open inode.
pub(super) fn host_path(fd: impl AsFd) -> Option<PathBuf> {
    let mut buffer = [0; 32];
    let path = rustix::fs::readlink(proc_path(&mut buffer, fd), Vec::new()).ok()?;
    let path = Path::new(OsStr::from_bytes(path.to_bytes())).to_owned();
    path.is_absolute().then_some(path)
}
