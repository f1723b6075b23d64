//! An inode of a backing file system to which clients hold handles: a file, directory, link or device.
//!
//! Invariants:
//! - `path` keeps the inode in memory, so attributes never need a disk. It is an O_PATH descriptor. For a file created
//!   here it is the descriptor that created the file, and for a directory created here a descriptor to read it.
//! - Namespace changes of a directory and SETATTR hold `changing` exclusively, WRITE holds it shared. So guards are
//!   atomic, and writers run side by side.
//! - An access verdict or a name is believed only under the ctime of the inode with which it was cached.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};

use forebay_common::lock::{Mutex, RwLock};
use forebay_metalog::MadeBy;
use rustix::fs::{FileType, OFlags};

use crate::attr::Attr;
use crate::caches::access_cache::{AccessCache, AccessVerdict, Classes, is_past_tick};
use crate::caches::budget::{Budget, CountedFd};
use crate::caches::change::Changes;
use crate::caches::dentry_cache::{Child, DentryCache};
use crate::caches::dir_cache::DirCache;
use crate::caches::kept::Kept;
use crate::caches::link::Link;
use crate::caches::stamp::Stamp;
use crate::caches::streams::WriteStream;
use crate::caches::uncommitted::Uncommitted;
use crate::caches::versions::Versions;
use crate::cred::Cred;
use crate::error::{Error, Result};
use crate::sys::{self, KernelHandle};

/// A known inode of a backing file system.
#[derive(Debug)]
pub struct Inode {
    pub(crate) kernel: KernelHandle,
    pub(crate) kind: FileType,
    /// The file id: the inode number, unless the inode has an alias.
    fileid: u64,
    path: CountedFd,
    /// The other uses of `path`.
    made: GoodFor,
    reader: OnceLock<CountedFd>,
    /// The descriptor for writing. It is open while a request writes or unstable data remains: a file that is open for
    /// writing cannot be executed.
    writer: Mutex<Option<Arc<CountedFd>>>,
    pub(crate) changing: RwLock<()>,
    pub(super) changes: Changes,
    pub(super) versions: Versions,
    kept_files: Arc<Kept>,
    verdicts: Mutex<AccessCache>,
    /// Names below a directory; boxed because most inodes are files.
    pub(crate) names: Option<Box<Mutex<DentryCache>>>,
    /// The listing of a directory.
    pub(crate) kept: Option<Arc<DirCache>>,
    /// A directory opened for listing, with its current position.
    pub(crate) listing: Mutex<Option<(CountedFd, u64)>>,
    pub(crate) uncommitted: Uncommitted,
    pub(crate) link: Link,
    pub(crate) stream: WriteStream,
    /// The creations in [`Making`](forebay_metalog::Making) that may have made it and may have no record yet.
    pub(crate) made_by: MadeBy,
    /// Set on use, cleared by the eviction hand.
    pub(crate) used: AtomicBool,
}

/// The uses of an inode's descriptor, besides standing for the inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GoodFor {
    /// For nothing: the descriptor may be O_PATH.
    Elsewhere,
    /// Reading: it made the file, or was the first of a new directory.
    ToRead,
    /// Reading and writing. Of a server without privileges, which could not open every file that it has made once more.
    ToWrite,
}

/// A descriptor that an inode is opened with.
pub(crate) struct Opened {
    pub(crate) file: OwnedFd,
    pub(crate) good_for: GoodFor,
}

/// A descriptor to change a file with, while it is in use.
pub(crate) enum Writer<'a> {
    Path(BorrowedFd<'a>),
    Opened(Arc<CountedFd>),
}

impl AsFd for Writer<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Writer::Path(fd) => *fd,
            Writer::Opened(fd) => fd.as_fd(),
        }
    }
}

impl Inode {
    /// Returns an inode that is not in the inode cache yet. `path` is its O_PATH descriptor, `attr` its attributes.
    pub(crate) fn new(
        path: OwnedFd,
        kernel: KernelHandle,
        attr: &Attr,
        budget: &Budget,
        versions: &Versions,
        kept: &Arc<Kept>,
    ) -> Self {
        let kind = attr.kind;
        Inode {
            kernel,
            kind,
            fileid: attr.ino,
            path: budget.count(path),
            made: GoodFor::Elsewhere,
            reader: OnceLock::new(),
            writer: Mutex::new(None),
            changing: RwLock::new(()),
            changes: Changes::default(),
            versions: versions.clone(),
            kept_files: kept.clone(),
            verdicts: Mutex::default(),
            names: (kind == FileType::Directory)
                .then(|| Box::new(Mutex::new(DentryCache::new(budget.clone())))),
            kept: (kind == FileType::Directory)
                .then(|| Arc::new(DirCache::new(kernel, budget.listings().clone()))),
            listing: Mutex::new(None),
            uncommitted: Uncommitted::new(budget.clone()),
            link: Link::default(),
            stream: WriteStream::default(),
            made_by: MadeBy::default(),
            used: AtomicBool::new(true),
        }
    }

    /// Creates an inode from a descriptor that has more uses than to stand for the inode.
    pub(crate) fn opened(
        Opened { file, good_for }: Opened,
        kernel: KernelHandle,
        attr: &Attr,
        budget: &Budget,
        versions: &Versions,
        kept: &Arc<Kept>,
    ) -> Self {
        Inode { made: good_for, ..Self::new(file, kernel, attr, budget, versions, kept) }
    }

    /// Asserts the invariants that show in the inode alone: its descriptor stands for an inode of its type, with the
    /// uses that are recorded, and only a directory has names and a listing.
    #[cfg(test)]
    pub(crate) fn check(&self) {
        let found = rustix::fs::fstat(&self.path).unwrap();
        assert_eq!(FileType::from_raw_mode(found.st_mode), self.kind);
        let is_path = rustix::fs::fcntl_getfl(&self.path).unwrap().contains(OFlags::PATH);
        assert!(!is_path || self.made == GoodFor::Elsewhere);
        assert_eq!((self.names.is_some(), self.kept.is_some()), (self.is_dir(), self.is_dir()));
    }

    /// Returns the type of the inode, which never changes.
    pub fn kind(&self) -> FileType {
        self.kind
    }

    pub(crate) fn is_dir(&self) -> bool {
        self.kind == FileType::Directory
    }

    /// Returns the descriptor that stands for the inode itself.
    pub(crate) fn path(&self) -> BorrowedFd<'_> {
        self.path.as_fd()
    }

    /// Returns the attributes now. Does not wait for a disk. Fails with `Stale` once the last link was removed.
    pub fn attr(&self) -> Result<Attr> {
        let look = self.look();
        Ok(self.show(look, self.unmoved_attr()?))
    }

    /// Returns the attributes as the file system and the cache state them. Two changes may have one change time.
    pub(super) fn unmoved_attr(&self) -> Result<Attr> {
        let overlay = self.link.overlay();
        let attr = self.link.access.over(self.raw_attr()?);
        Ok(overlay.map_or(attr, |overlay| overlay.over(attr)))
    }

    /// Returns the attributes of the backing file. A file that is kept without a name has no links.
    pub(crate) fn raw_attr(&self) -> Result<Attr> {
        let attr = Attr::from(&rustix::fs::fstat(&self.path)?);
        if attr.nlink == 0 {
            return Err(Error::Stale);
        }
        // Clients do not see the name by which a removed file is kept.
        let nlink = attr.nlink - u64::from(self.kept_files.has(&self.kernel));
        Ok(Attr { ino: self.fileid, nlink, ..attr })
    }

    /// Returns the descriptor of a file or directory that was created here, which allows more than O_PATH.
    pub(crate) fn made_with(&self) -> Option<BorrowedFd<'_>> {
        (self.made != GoodFor::Elsewhere).then(|| self.path())
    }

    /// Opens the inode again with `flags`, as the server itself.
    pub(crate) fn reopen(&self, flags: OFlags) -> Result<OwnedFd> {
        Ok(sys::reopen(&self.path, flags | OFlags::NONBLOCK | OFlags::NOCTTY)?)
    }

    fn require_file(&self) -> Result<()> {
        match self.kind {
            FileType::RegularFile => Ok(()),
            FileType::Directory => Err(Error::Os(rustix::io::Errno::ISDIR)),
            _ => Err(Error::INVALID),
        }
    }

    /// Returns a descriptor to read the contents with, which is opened once. An open one is returned without waiting.
    pub(crate) fn reader(&self, budget: &Budget, may_open: bool) -> Result<BorrowedFd<'_>> {
        self.require_file()?;
        if let Some(fd) = self.made_with().or_else(|| Some(self.reader.get()?.as_fd())) {
            return Ok(fd);
        }
        let fd = self.open_data(OFlags::RDONLY, may_open)?;
        Ok(self.reader.get_or_init(|| budget.count(fd)).as_fd())
    }

    /// Returns a descriptor to change the contents with, which is opened once, until [`Inode::rest`].
    pub(crate) fn writer(&self, budget: &Budget, may_open: bool) -> Result<Writer<'_>> {
        if self.made == GoodFor::ToWrite {
            return Ok(Writer::Path(self.path()));
        }
        if let Some(fd) = &*self.writer.lock() {
            return Ok(Writer::Opened(fd.clone()));
        }
        let fd = self.open_data(OFlags::RDWR, may_open)?;
        // Another thread may have been faster.
        let opened = self.writer.lock().get_or_insert_with(|| Arc::new(budget.count(fd))).clone();
        Ok(Writer::Opened(opened))
    }

    /// Returns a writable descriptor that stays open. Returns `None` if the file cannot be opened, or is open anyway.
    pub(crate) fn opened_writer(&self, budget: &Budget) -> Option<Arc<CountedFd>> {
        match self.writer(budget, true) {
            Ok(Writer::Opened(fd)) => Some(fd),
            Ok(Writer::Path(_)) | Err(_) => None,
        }
    }

    fn open_data(&self, flags: OFlags, may_open: bool) -> Result<OwnedFd> {
        self.require_file()?;
        if may_open { self.reopen(flags) } else { Err(Error::WouldBlock) }
    }

    /// Closes the descriptor for changes after a change of the contents ended or became stable. It stays open if
    /// another request uses it, or if data is unstable, since it would report the errors of that data. Blocks that only
    /// the cache has are written with another descriptor.
    pub(crate) fn rest(&self) {
        if self.uncommitted.writes() != 0 {
            return;
        }
        let unused = self.writer.lock().take_if(|fd| Arc::strong_count(fd) == 1);
        // Closed without the lock.
        drop(unused);
    }

    /// Returns true if `cred` may do all of `want`, by a cached verdict or, if `may_ask`, by asking the kernel.
    pub(crate) fn permits(
        &self,
        cred: &Cred,
        attr: &Attr,
        want: u8,
        may_ask: bool,
        ask: impl FnOnce(u8) -> Result<AccessVerdict>,
    ) -> Result<u8> {
        {
            let mut verdicts = self.verdicts.lock();
            if verdicts.ctime == attr.backing_ctime {
                if let Some(granted) = verdicts.find(cred, attr, want) {
                    return Ok(granted);
                }
            } else {
                *verdicts = AccessCache::under(attr.backing_ctime);
            }
        }
        if !may_ask {
            return Err(Error::WouldBlock);
        }
        let verdict = ask(want)?;
        if is_past_tick(attr.backing_ctime) {
            let mut verdicts = self.verdicts.lock();
            if verdicts.ctime == attr.backing_ctime {
                verdicts.learn(cred, attr, want, verdict);
            }
        }
        Ok(verdict.granted)
    }

    /// Returns the kernel's verdicts for classes of callers. They still hold if these attributes were just read.
    pub(crate) fn verdicts(&self, attr: &Attr) -> Classes {
        let verdicts = self.verdicts.lock();
        if verdicts.ctime == attr.backing_ctime { verdicts.classes } else { Classes::default() }
    }

    /// Remembers the inode that a name of this directory leads to.
    pub(crate) fn learn_name(&self, stamp: Stamp, name: &[u8], child: Option<Child>) {
        if let Some(names) = &self.names {
            names.lock().learn(stamp, name, child);
        }
    }

    /// Forgets the attributes that are cached for the time when the inode is not in memory.
    pub(crate) fn forget_attributes(&self) {
        self.versions.forget(&self.kernel);
    }

    /// Forgets names, listing and permission verdicts.
    pub(crate) fn forget_known(&self) {
        *self.verdicts.lock() = AccessCache::default();
        if let Some(kept) = &self.kept {
            kept.lock().clear();
        }
        if let Some(names) = &self.names {
            names.lock().forget();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::caches::access_cache::want;

    fn object(dir: &tempfile::TempDir) -> Inode {
        let fd = rustix::fs::open(dir.path(), OFlags::PATH, rustix::fs::Mode::empty()).unwrap();
        let kernel = sys::name_to_handle(&fd, c"").unwrap();
        let attr = Attr::from(&rustix::fs::fstat(&fd).unwrap());
        let budget = Budget::new(10, 1 << 20);
        Inode::new(fd, kernel, &attr, &budget, &Versions::new(budget.known().clone(), 0), &Arc::default())
    }

    #[test]
    fn overlapping_changes_report_no_before() {
        let dir = tempfile::tempdir().unwrap();
        let object = object(&dir);
        let first = object.begin_change();
        assert_eq!(object.quiet(), None);
        let second = object.begin_change();
        assert!(second.end().before.is_none());
        assert!(first.end().before.is_none());
        assert_eq!(object.quiet(), Some(2));
        let alone = object.begin_change().end();
        assert!(alone.before.is_some() && alone.after.is_some());
    }

    #[test]
    fn a_verdict_dies_with_the_ctime_it_was_learnt_under() {
        let dir = tempfile::tempdir().unwrap();
        let object = object(&dir);
        let cred = crate::cred::Creds::default().intern(&crate::cred::Identity {
            uid: 1,
            gid: 1,
            groups: Default::default(),
        });
        let mut attr = object.attr().unwrap();
        attr.backing_ctime.sec -= 3600;
        let ask = |granted| move |_| Ok(AccessVerdict { granted, by_class: false });
        assert_eq!(object.permits(&cred, &attr, want::READ, true, ask(want::READ)), Ok(want::READ));
        assert_eq!(object.permits(&cred, &attr, want::READ, false, ask(0)), Ok(want::READ));
        assert_eq!(object.permits(&cred, &attr, want::WRITE, false, ask(0)), Err(Error::WouldBlock));
        attr.backing_ctime.nsec ^= 1;
        assert_eq!(object.permits(&cred, &attr, want::READ, true, ask(0)), Ok(0));
    }

    #[test]
    fn a_verdict_under_a_young_ctime_is_not_kept() {
        let dir = tempfile::tempdir().unwrap();
        let object = object(&dir);
        let cred = crate::cred::Creds::default().intern(&crate::cred::Identity {
            uid: 1,
            gid: 1,
            groups: Default::default(),
        });
        std::fs::write(dir.path().join("new"), b"").unwrap();
        let attr = object.attr().unwrap();
        let ask = |granted| move |_| Ok(AccessVerdict { granted, by_class: true });
        assert_eq!(object.permits(&cred, &attr, want::READ, true, ask(want::READ)), Ok(want::READ));
        assert_eq!(object.permits(&cred, &attr, want::READ, false, ask(0)), Err(Error::WouldBlock));
        assert_eq!(object.verdicts(&attr), Classes::default());
    }
}
