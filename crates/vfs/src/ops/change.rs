//! The parts that all changes of names have in common. REMOVE and RMDIR are in `remove.rs`, RENAME in `rename.rs`, LINK
//! in `link.rs`.

use forebay_common::lock::RwLockWriteGuard;
use smallvec::{SmallVec, smallvec};

use crate::attr::{Attr, Wcc};
use crate::caches::change::Change;
use crate::caches::stamp::Stamp;
use crate::cred::Cred;
use crate::durability::journal::SyncRequest;
use crate::durability::request_journal::LoggedReply;
use crate::error::{Error, Result};
use crate::export::Target;
use crate::export::filesystem::require_dir;
use crate::export::vfs::Vfs;
use crate::name::check_name;
use crate::oplog::commit::CommitRequest;
use crate::oplog::{self, Access, Pending};
use crate::sys::KernelHandle;

/// The outcome of a change: the result, the attributes around it, and the commit request.
pub struct Changed<T> {
    /// The result of the operation.
    pub result: Result<T>,
    /// Attributes of the changed inode or directory around the change.
    pub wcc: Wcc,
    /// The commit request, to be durable before the reply; `None` if nothing changed.
    pub intent: Option<CommitRequest>,
}

/// The caller of a change.
pub(crate) struct Caller<'a> {
    pub(crate) cred: &'a Cred,
    /// The request, if it may not be carried out twice.
    pub(crate) asked: Option<&'a LoggedReply>,
}

/// A directory locked for a change of its names.
pub(crate) struct Renaming<'a> {
    pub(crate) dir: &'a Target,
    _alone: Option<RwLockWriteGuard<'a, ()>>,
    stamp: Option<Stamp>,
    /// [`Filesystem::notices`](crate::export::filesystem::Filesystem::notices) from before it.
    notices: u64,
    change: Change<'a>,
}

impl<'a> Renaming<'a> {
    /// Locks a directory, and begins a change of its names.
    pub(crate) fn begin(dir: &'a Target) -> Self {
        let alone = dir.object.changing.write();
        Renaming { _alone: Some(alone), ..Self::locked(dir) }
    }

    /// Begins a change of a directory that the caller has locked, together with other directories.
    pub(crate) fn locked(dir: &'a Target) -> Self {
        let object = &dir.object;
        let notices = dir.export.fs.notices();
        let quiet = object.quiet();
        let change = object.begin_change();
        let stamp =
            change.before.ok().zip(quiet).map(|(attr, changes)| Stamp { ctime: attr.backing_ctime, changes });
        Renaming { dir, _alone: None, stamp, notices, change }
    }

    /// Returns the directory's attributes before the change.
    pub(crate) fn before(&self) -> Result<Attr> {
        self.change.before.or_else(|_| self.dir.attr())
    }

    /// Notes that the change was carried out, which moves the directory's change time. Returns the log's description of
    /// the directory after the change, or `None` if its attributes cannot be read.
    pub(crate) fn logged(&self) -> Option<oplog::LoggedObject> {
        self.change.made();
        oplog::object(&self.dir.object, &self.change.after()?, None, Access::Kept)
    }

    /// Ends the change; if it was `done`, the names in `changed` now lead elsewhere.
    pub(crate) fn end(self, done: bool, changed: &[(&[u8], Option<KernelHandle>)]) -> Wcc {
        let changed = if done { changed } else { &[] };
        if done {
            self.change.made();
        }
        let wcc = self.change.end();
        let after = wcc.after.as_ref().and_then(|attr| self.dir.object.stamp(attr));
        // Under a coarse ctime a later external change could go unnoticed. Then no name is carried over.
        if let (Some(from), Some(to), Some(names)) = (self.stamp, after, &self.dir.object.names)
            && self.dir.export.fs.fine_times
        {
            let fs = &self.dir.export.fs;
            let child =
                |kernel: &Option<KernelHandle>| kernel.map(|kernel| fs.child_since(kernel, self.notices));
            let changed: SmallVec<[_; 2]> =
                changed.iter().map(|(name, kernel)| (*name, child(kernel))).collect();
            names.lock().carry(from, to, &changed);
        }
        wcc
    }
}

impl Vfs {
    /// Attributes around an operation that did not happen.
    pub(crate) fn wcc_of(&self, target: &Target) -> Wcc {
        let attr = target.object.attr().ok();
        Wcc { before: attr, after: attr }
    }
}

/// Fails unless this server lets clients change the inode that a name leads to.
pub(crate) fn changeable(dir: &Target, name: &[u8]) -> Result<()> {
    require_dir(&dir.object)?;
    check_name(name)?;
    dir.export.fs.can_change()?;
    if dir.export.fs.is_private(&dir.object.kernel, name) { Err(Error::ACCESS) } else { Ok(()) }
}

/// Returns the commit request of a change to names or attributes of these inodes.
pub(crate) fn metadata(targets: &[&Target], pending: Option<Box<Pending>>) -> CommitRequest {
    let mut metadata: SmallVec<[_; 3]> = smallvec![];
    metadata.extend(targets.iter().map(|target| target.object.clone()));
    let sync = SyncRequest { metadata, ..SyncRequest::default() };
    CommitRequest { sync, pending, ..CommitRequest::default() }
}
