//! The path of an inode, for people.

use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use forebay_engine::io::Key;

use crate::caches::link::parse_key;
use crate::export::Export;
use crate::export::filesystem::Filesystem;
use crate::export::vfs::Vfs;
use crate::sys::{KernelHandle, proc_path};

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

    /// Returns a description of the file with this key of the cache, by which an administrator finds the file: its
    /// path, or else its inode number in `filesystem`. Asks no file system.
    pub fn described(&self, key: &Key, filesystem: &str) -> String {
        let found = parse_key(key);
        if let Some((number, kernel)) = found
            && let Some(path) = self.path_of(number, &kernel)
        {
            return format!("file {}", path.display());
        }
        match found.and_then(|(_, kernel)| inode_number(&kernel)) {
            Some(inode) => format!("inode {inode} of {filesystem}"),
            None => format!("a file of {filesystem} with the key {key:?}"),
        }
    }

    /// Returns the path of an inode that is open. The kernel does not know the path of each inode that was opened by
    /// its handle: only a path in an export is one.
    fn path_of(&self, number: u32, kernel: &KernelHandle) -> Option<PathBuf> {
        let is_it = |fs: &Filesystem| fs.linked().is_some_and(|linked| linked.number() == number);
        let exports: Vec<_> = self.exports().iter().filter(|export| is_it(&export.fs)).collect();
        let path = host_path(exports.first()?.fs.inodes.get(kernel)?.path())?;
        let is_in =
            |export: &Export| host_path(export.root.path()).is_some_and(|root| path.starts_with(root));
        exports.iter().any(|export| is_in(export)).then_some(path)
    }
}

/// Returns the inode number in a handle, for file systems whose handles begin with it; `None` for others.
fn inode_number(kernel: &KernelHandle) -> Option<u64> {
    // FILEID_INO32_GEN, and XFS's handles with 64 bits.
    let bytes = kernel.as_slice();
    match kernel.kind {
        1 | 2 => bytes.first_chunk().map(|number| u32::from_ne_bytes(*number).into()),
        0x81 | 0x82 => bytes.first_chunk().map(|number| u64::from_ne_bytes(*number)),
        _ => None,
    }
}

/// Returns the path by which this host knows an open inode.
pub(super) fn host_path(fd: impl AsFd) -> Option<PathBuf> {
    let mut buffer = [0; 32];
    let path = rustix::fs::readlink(proc_path(&mut buffer, fd), Vec::new()).ok()?;
    let path = Path::new(OsStr::from_bytes(path.to_bytes())).to_owned();
    path.is_absolute().then_some(path)
}
