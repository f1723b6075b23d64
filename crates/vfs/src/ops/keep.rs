//! The step of REMOVE and RENAME that keeps a file which loses its last name while a client has it open.

use std::sync::Arc;

use forebay_oplog::Bindings;

use crate::caches::inode::Inode;
use crate::export::filesystem::Filesystem;
use crate::export::kept_files::KeptName;
use crate::oplog::commit::CommitRequest;
use crate::oplog::{self, Access, LoggedObject};
use crate::ops::kept::Losing;
use crate::sys::KernelHandle;

/// The directory of kept files for a removal, once the removal turns out to need it.
#[derive(Clone, Default)]
pub(crate) enum KeptDir {
    /// Not needed so far.
    #[default]
    Unasked,
    /// The file system cannot have one, so the file goes with its name.
    Missing,
    There(Arc<Inode>),
}

impl KeptDir {
    /// Asks the file system, which may wait for a disk. The caller holds no locks.
    pub(crate) fn ask(fs: &Filesystem) -> Self {
        fs.kept_dir().map_or(KeptDir::Missing, KeptDir::There)
    }

    pub(crate) fn is_unasked(&self) -> bool {
        matches!(self, KeptDir::Unasked)
    }

    /// Returns the directory of kept files if it exists.
    pub(crate) fn there(&self) -> Option<&Arc<Inode>> {
        match self {
            KeptDir::There(dir) => Some(dir),
            _ => None,
        }
    }
}

/// The means to keep a file: the directory for its name, which is locked, and the way to tell the layer above.
#[derive(Clone, Copy)]
pub(crate) struct Keep<'a> {
    pub(crate) dir: &'a Arc<Inode>,
    pub(crate) losing: &'a Losing<'a>,
}

impl<'a> Keep<'a> {
    /// Returns `None` for a file that no client has open: an open may have ended since the directory was asked for.
    pub(crate) fn of(dir: &'a KeptDir, losing: &'a Losing<'a>) -> Option<Self> {
        let dir = dir.there().filter(|_| losing.is_open())?;
        Some(Keep { dir, losing })
    }
}

/// A file that has got its name in the directory of kept files, and is about to lose its last other name.
#[derive(Default)]
pub(crate) struct Keeping<'a>(Option<(Keep<'a>, KernelHandle, KeptName)>);

impl<'a> Keeping<'a> {
    /// Gives the file its name. If it loses none, or can have none, there is nothing to keep.
    pub(crate) fn begin(fs: &Filesystem, keep: Option<Keep<'a>>, file: Option<KernelHandle>) -> Self {
        let named = keep.zip(file).and_then(|(keep, file)| {
            let name = fs.keep(keep.dir, &file).ok()??;
            Some((keep, file, name))
        });
        Keeping(named)
    }

    /// Ends the removal of the other name. If that is `done`, adds the kept name to the change's statements and returns
    /// the directory that has changed. Otherwise takes the kept name back.
    pub(crate) fn end(self, fs: &Filesystem, done: bool, bindings: &mut Bindings) -> Option<&'a Arc<Inode>> {
        let (keep, file, name) = self.0?;
        if !done && fs.undo_keep(keep.dir, &file, &name) {
            return None;
        }
        keep.losing.keep();
        if !done {
            return None;
        }
        bindings.push(name.binding);
        Some(keep.dir)
    }
}

/// Returns the log's description of the directory of kept files after a change.
pub(crate) fn logged_dir(dir: &Arc<Inode>) -> Option<LoggedObject> {
    oplog::object(dir, &dir.attr().ok()?, None, Access::Kept)
}

/// Adds the directory of kept files to a commit request that has changed it.
pub(crate) fn with_dir(mut request: CommitRequest, dir: Option<&Arc<Inode>>) -> CommitRequest {
    request.sync.metadata.extend(dir.cloned());
    request
}
