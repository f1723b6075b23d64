//! The backing file systems, also those whose last export was removed in service: data may still be on its way there.

use std::path::PathBuf;
use std::sync::Arc;

use super::shown_path::host_path;
use crate::durability::journal::Journal;
use crate::error::Result;
use crate::export::filesystem::Filesystem;
use crate::export::vfs::Vfs;

/// A backing file system.
pub struct ServedFilesystem<'a> {
    vfs: &'a Vfs,
    fs: &'a Arc<Filesystem>,
}

impl Vfs {
    /// Returns the backing file systems of all exports that were in service since the start, each once.
    pub fn served_filesystems(&self) -> impl ExactSizeIterator<Item = ServedFilesystem<'_>> {
        self.filesystems().iter().map(|fs| ServedFilesystem { vfs: self, fs })
    }
}

impl<'a> ServedFilesystem<'a> {
    /// Returns the file system's journal.
    pub fn journal(&self) -> &'a Journal {
        &self.fs.journal
    }

    /// Fails if nothing in the file system can be changed, because its journal cannot make anything durable. `Busy`
    /// says that this is temporary.
    pub fn can_change(&self) -> Result<()> {
        self.fs.can_change()
    }

    /// Makes everything written to the file system durable (syncfs(2)).
    ///
    /// # Errors
    /// The file system reports that a write failed.
    pub fn flush(&self) -> Result<()> {
        Ok(rustix::fs::syncfs(self.fs.mount())?)
    }

    /// Returns the directories of the exports in service, for people. Without any, it is the directory of a former one.
    pub fn directories(&self) -> Vec<PathBuf> {
        let exports = self.vfs.exports().iter().filter(|export| Arc::ptr_eq(&export.fs, self.fs));
        let in_service: Vec<_> = exports.map(|export| export.path.clone()).collect();
        if in_service.is_empty() { host_path(self.fs.mount()).into_iter().collect() } else { in_service }
    }
}
