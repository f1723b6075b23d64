//! A backing file system: its promises, the inodes known on it, and the way from a handle to an inode.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};

use forebay_common::lock::Mutex;
use forebay_engine::Object as Cached;
use forebay_oplog::Removals;
use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;

use crate::admission::reserve::{self, PATIENCE, Space};
use crate::admission::unlink_throttle::UnlinkThrottle;
use crate::attr::Attr;
use crate::backing::cache::Linked;
use crate::backing::question::Question;
use crate::caches::access_cache::Classes;
use crate::caches::attr_cache::CachedAttr;
use crate::caches::dentry_cache::Child;
use crate::caches::inode::{GoodFor, Inode};
use crate::caches::inode_cache::{Budget, InodeCache};
use crate::coherence::versions::{Version, Versions};
use crate::coherence::watch::HostWatch;
use crate::durability::journal::{Deliver, Journal};
use crate::durability::journal_order::order_of;
use crate::durability::verifier::Verifier;
use crate::durability::writeback::Writeback;
use crate::error::{Error, Result};
use crate::export::Wait;
use crate::export::handle_map::{HandleMap, PRIVATE, is_made_up};
use crate::export::locate::{self, Locator};
use crate::oplog::Making;
use crate::oplog::rename_intents::RenameIntents;
use crate::ops::overlay::Overlay;
use crate::sys::{self, KernelHandle};

pub(crate) const EXT4: i64 = 0xef53;
pub(crate) const XFS: i64 = 0x5846_5342;

/// The number of attempts with a handle for which the kernel says that it has no memory.
const TRIES: u32 = 1000;

/// The way in which handles lead back to files.
pub(crate) enum Scheme {
    /// open_by_handle_at: exact, needs CAP_DAC_READ_SEARCH.
    Kernel,
    /// Inode number and birth time, found through names.
    DentryCache(Locator),
}

/// One mounted backing file system.
pub(crate) struct Filesystem {
    pub(crate) device: u64,
    pub(crate) magic: i64,
    mount: OwnedFd,
    /// The directory whose [`PRIVATE`] is the server's own.
    pub(crate) root: KernelHandle,
    pub(crate) aliases: HandleMap,
    pub(crate) slots: Arc<RenameIntents>,
    pub(crate) making: Arc<Making>,
    pub(crate) removals: Mutex<Removals<Arc<Cached>>>,
    /// Held by a RENAME of a directory to another parent.
    pub(crate) moving: Mutex<()>,
    /// Around the removal of names.
    pub(crate) removing: UnlinkThrottle,
    pub(crate) scheme: Scheme,
    pub(crate) inodes: InodeCache,
    pub(crate) journal: Arc<Journal>,
    pub(crate) writeback: Writeback,
    pub(crate) budget: Budget,
    /// The largest file it can hold and this process may write, in bytes.
    pub(crate) largest_file: u64,
    /// The longest name, in bytes.
    pub(crate) name_max: u32,
    /// Bytes of a block.
    block: usize,
    /// Its free space, for the reserve of the cache.
    space: Arc<Question<Option<Space>>>,
    pub(crate) versions: Versions,
    /// The source of news about external changes in the file system, if the kernel offers one.
    pub(crate) watch: Option<Arc<HostWatch>>,
    /// The cache in front of it.
    pub(crate) linked: OnceLock<Linked>,
    /// True if two changes of an inode always show different ctimes when the ctime was read in between.
    pub(crate) fine_times: bool,
}

impl Filesystem {
    /// Takes a file system into service; `root` is an exported directory on it, opened for reading.
    pub(crate) fn open(
        root: &OwnedFd,
        budget: Budget,
        verifier: Arc<Verifier>,
        deliver: Deliver,
        number: u16,
        watch: Option<Arc<HostWatch>>,
    ) -> Result<Self> {
        let device = rustix::fs::fstat(root)?.st_dev;
        let stat = rustix::fs::fstatfs(root)?;
        let magic = stat.f_type;
        let order = order_of(root, device, magic);
        let again = || {
            rustix::fs::openat(
                root,
                c".",
                OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
                Mode::empty(),
            )
        };
        let opened = sys::name_to_handle(root, c"")
            .and_then(|handle| sys::open_by_handle(root, &handle, libc::O_PATH));
        let kernel_handles = has_handles(opened.map(drop))?;
        let identity = |root: &OwnedFd| match kernel_handles {
            true => Ok(sys::name_to_handle(root, c"")?),
            false => locate::identity(root),
        };
        Ok(Filesystem {
            device,
            magic,
            mount: again()?,
            root: identity(root)?,
            aliases: HandleMap::open(again()?, kernel_handles)?,
            slots: Arc::default(),
            making: Arc::default(),
            removals: Mutex::default(),
            moving: Mutex::default(),
            removing: UnlinkThrottle::default(),
            scheme: if kernel_handles { Scheme::Kernel } else { Scheme::DentryCache(Locator::new(again()?)) },
            inodes: InodeCache::new(budget.clone()),
            journal: Journal::open(again()?, order, budget.clone(), verifier, deliver)?,
            writeback: Writeback::start(budget.clone()).map_err(|_| Error::Busy)?,
            largest_file: largest_file(root, magic)?,
            name_max: rustix::fs::fstatvfs(root)?.f_namemax as u32,
            block: stat.f_bsize as usize,
            space: Arc::default(),
            versions: Versions::new(budget.known().clone(), number),
            // Of a network file system, which other hosts change as well, the kernel reports only the changes by this
            // host.
            watch: watch.filter(|_| kernel_handles && is_local(magic) && budget.known().has_room()),
            budget,
            fine_times: fine_times(root),
            linked: OnceLock::new(),
        })
    }

    /// Returns true if fstat of an open inode needs only memory. That is so for local file systems, not for those that
    /// ask a server or another process.
    pub(crate) fn attributes_in_memory(&self) -> bool {
        is_local(self.magic)
    }

    /// Returns true if the file system's only access control lists are POSIX ones.
    pub(crate) fn has_posix_acls(&self) -> bool {
        matches!(type_name(self.magic), "ext4" | "xfs" | "btrfs" | "tmpfs" | "f2fs")
    }

    pub(crate) fn mount(&self) -> BorrowedFd<'_> {
        self.mount.as_fd()
    }

    /// Returns the handle of an open inode, and its attributes.
    pub(crate) fn identify(&self, fd: impl AsFd) -> Result<(KernelHandle, Attr)> {
        let kernel = match &self.scheme {
            Scheme::Kernel => self.aliases.outer(sys::name_to_handle(&fd, c"")?)?,
            Scheme::DentryCache(_) => locate::identity(&fd)?,
        };
        Ok((kernel, self.attr_of(&rustix::fs::fstat(&fd)?)))
    }

    /// Returns the attributes with the file id by which clients know the inode.
    pub(crate) fn attr_of(&self, stat: &Stat) -> Attr {
        let attr = Attr::from(stat);
        Attr { ino: self.aliases.fileid(attr.ino), ..attr }
    }

    /// Returns the server's own directory, and creates it if it does not exist.
    pub(crate) fn private(&self) -> Result<OwnedFd> {
        self.aliases.private()
    }

    /// Returns the server's private directory in the file system, if it exists.
    pub(crate) fn private_if_there(&self) -> Result<Option<OwnedFd>> {
        self.aliases.private_if_there()
    }

    /// Returns true if a name leads to the server's private directory.
    pub(crate) fn is_private(&self, dir: &KernelHandle, name: &[u8]) -> bool {
        name == PRIVATE.as_bytes() && *dir == self.root
    }

    /// Brings the inode of an O_PATH descriptor into the inode cache. Returns the inode and its attributes.
    pub(crate) fn adopt(&self, fd: OwnedFd) -> Result<(Arc<Inode>, Attr)> {
        self.adopt_opened((fd, GoodFor::Elsewhere))
    }

    /// Brings the inode of a newly opened descriptor into the inode cache.
    fn adopt_opened(&self, opened: (OwnedFd, GoodFor)) -> Result<(Arc<Inode>, Attr)> {
        let (kernel, attr) = self.identify(&opened.0)?;
        let object = match self.inodes.get(&kernel) {
            Some(object) => object,
            None => self.enter(Inode::opened(opened, kernel, &attr, &self.budget, &self.versions), &attr),
        };
        // Asked for after the backing file's: taken again if the engine knows more.
        let attr = if object.link.get().is_some() { object.attr()? } else { attr };
        Ok((object, attr))
    }

    /// Takes a file into the table that was just made as `name` in `dir`, with the descriptor that made it.
    pub(crate) fn adopt_new(
        &self,
        file: (OwnedFd, GoodFor),
        (kernel, attr): (KernelHandle, Attr),
        dir: &Inode,
        name: &[u8],
    ) -> (Arc<Inode>, Attr) {
        let object = Inode::opened(file, kernel, &attr, &self.budget, &self.versions);
        self.seen_as(&kernel, dir, name);
        (self.enter(object, &attr), attr)
    }

    fn enter(&self, object: Inode, attr: &Attr) -> Arc<Inode> {
        object.made_by.store(self.making.latest(), Ordering::Relaxed);
        if let Some(linked) = self.linked.get() {
            linked.meet(&object, attr);
        }
        self.inodes.insert(object, |leaving| self.remember(leaving))
    }

    /// Keeps the cached facts about an inode that has left the inode cache.
    fn remember(&self, object: &Inode) {
        if self.watch.is_none() || object.is_dir() {
            return;
        }
        let kernel = &object.kernel;
        let version = self.versions.of(kernel);
        // The link of the inode is not used here. The inode may have entered the inode cache again, and the cache,
        // since it left.
        let overlay = self.overlay(kernel);
        let recorded = self.making.is_through(object.made_by.load(Ordering::Relaxed));
        let settled = overlay.as_ref().is_none_or(Overlay::is_settled);
        match (version.filter(|_| recorded && settled), object.raw_attr()) {
            (Some(version), Ok(attr)) => {
                let verdicts = object.verdicts(&attr);
                let attr = overlay.map_or(attr, |overlay| overlay.over(attr));
                self.versions.learn(kernel, CachedAttr { attr, verdicts }, version);
            }
            // Facts kept from before the inode entered the inode cache are older.
            _ => self.versions.forget(kernel),
        }
    }

    /// Caches attributes that were just read, under `version`, of an inode that is not in the inode cache. The backing
    /// store knew all its changes.
    pub(crate) fn saw(&self, kernel: &KernelHandle, attr: &Attr, version: Version) {
        // Nobody may see an inode before the record that made it is in the log.
        let recorded = self.linked.get().is_none() || self.making.latest() == 0;
        if self.watch.is_some() && recorded && attr.kind != FileType::Directory {
            self.versions.learn(kernel, CachedAttr { attr: *attr, verdicts: Classes::default() }, version);
        }
    }

    /// Answers about an inode that is not in the table, without asking the file system; `None`: not enough is known.
    /// A request that may not wait comes again if this fails: it counts then.
    pub(crate) fn known<T>(
        &self,
        kernel: &KernelHandle,
        wait: Wait,
        answer: impl FnOnce(&CachedAttr) -> Option<T>,
    ) -> Option<T> {
        let known = if self.catch_up() { self.versions.known(kernel) } else { None };
        let answered = known.and_then(|known| answer(&known));
        let counters = self.budget.known();
        if answered.is_some() {
            counters.hits.fetch_add(1, Ordering::Relaxed);
        } else if !wait.allowed() {
            counters.misses.fetch_add(1, Ordering::Relaxed);
        }
        answered
    }

    /// Acts on all external changes up to now. Returns false if the kernel does not report them, or if there are too
    /// many.
    pub(crate) fn catch_up(&self) -> bool {
        self.watch.as_ref().is_some_and(|watch| watch.catch_up(self))
    }

    /// Returns the number of external changes that the server has noticed.
    pub(crate) fn notices(&self) -> u64 {
        self.watch.as_ref().map_or(0, |watch| watch.notices())
    }

    /// Returns the child that a name leads to, with its version. The name was looked up after `notices` had been the
    /// value of [`Filesystem::notices`]. The version counts only if no external change was noticed since: it is older
    /// than every such change of the child.
    pub(crate) fn child_since(&self, kernel: KernelHandle, notices: u64) -> Child {
        let version = self.watch.as_ref().and_then(|_| self.versions.of(&kernel));
        Child { kernel, version: version.filter(|_| self.notices() == notices) }
    }

    /// Drops the cached facts about an inode after an external change.
    pub(crate) fn changed_behind(&self, inner: &KernelHandle, contents: bool) {
        if let Some(kernel) = self.aliases.outer_if_met(inner) {
            drop(self.versions.change(&kernel));
            if contents {
                self.contents_changed(&kernel);
            }
        }
    }

    /// Forgets the cached facts about an inode, so that they are read again.
    pub(crate) fn forget_known(&self, kernel: &KernelHandle) {
        drop(self.versions.change(kernel));
        if let Some(object) = self.inodes.get(kernel) {
            object.forget_known();
        }
    }

    /// Drops all cached facts, since any of them may be outdated by an external change.
    pub(crate) fn anything_changed(&self) {
        self.versions.change_all();
    }

    /// Returns the handle of `name` in `dir` without keeping the inode, for READDIRPLUS.
    pub(crate) fn handle_at(&self, dir: &Inode, name: &std::ffi::CStr) -> Result<KernelHandle> {
        match &self.scheme {
            Scheme::Kernel => self.aliases.outer(sys::name_to_handle(dir.path(), name)?),
            Scheme::DentryCache(locator) => {
                let fd = self.open_child(dir, name.to_bytes(), false)?;
                let kernel = locate::identity(&fd)?;
                locator.learn(&kernel, &dir.kernel, name.to_bytes());
                Ok(kernel)
            }
        }
    }

    /// Returns the inode that a kernel handle names.
    pub(crate) fn resolve(&self, kernel: &KernelHandle, wait: bool) -> Result<Arc<Inode>> {
        if let Some(object) = self.inodes.get(kernel) {
            return Ok(object);
        }
        if !wait {
            return Err(Error::WouldBlock);
        }
        let (fd, kernel) = match &self.scheme {
            Scheme::Kernel => {
                let inner = self.aliases.inner(kernel);
                (self.open_inner(&inner)?, self.aliases.outer(inner)?)
            }
            Scheme::DentryCache(locator) => (locator.find(kernel)?, *kernel),
        };
        let attr = self.attr_of(&rustix::fs::fstat(&fd)?);
        Ok(self.enter(Inode::new(fd, kernel, &attr, &self.budget, &self.versions), &attr))
    }

    /// Waits until the record of an inode's creation is in the log. A request that names the inode by its handle must
    /// do nothing to it before. Waits for other threads only.
    pub(crate) fn is_recorded(&self, object: &Inode, wait: bool) -> Result<()> {
        let made_by = object.made_by.load(Ordering::Relaxed);
        if made_by == 0 {
            return Ok(());
        }
        if !self.making.is_through(made_by) {
            if !wait {
                return Err(Error::WouldBlock);
            }
            forebay_disk::block_on(self.making.wait(made_by));
        }
        object.made_by.store(0, Ordering::Relaxed);
        Ok(())
    }

    /// Returns true if the inode is known, without a system call, not to be a directory.
    pub(crate) fn is_known_file(&self, kernel: &KernelHandle) -> bool {
        match self.inodes.get(kernel) {
            Some(object) => !object.is_dir(),
            None => self.versions.known(kernel).is_some_and(|known| known.attr.kind != FileType::Directory),
        }
    }

    /// Returns true if an inode has no name any more.
    pub(crate) fn is_gone(&self, kernel: &KernelHandle) -> bool {
        let found = self.resolve(kernel, true).and_then(|object| object.raw_attr());
        found == Err(Error::Stale)
    }

    /// Opens an inode as O_PATH by the identity that the file system has for it.
    pub(crate) fn open_inner(&self, inner: &KernelHandle) -> Result<OwnedFd> {
        if is_made_up(inner) {
            // No alias leads from it to anything, as a power cut may leave it.
            return Err(Error::Stale);
        }
        let open = || sys::open_by_handle(&self.mount, inner, libc::O_PATH | libc::O_NOFOLLOW);
        let mut opened = open();
        // Linux 6.18 says so for a moment of an inode on its way out, which is stale then.
        for _ in 0..TRIES {
            if !opened.as_ref().is_err_and(|errno| *errno == Errno::NOMEM) {
                break;
            }
            std::thread::yield_now();
            opened = open();
        }
        opened.map_err(|errno| if errno == Errno::INVAL { Error::BadHandle } else { errno.into() })
    }

    /// Opens `name` in `dir` as O_PATH, never through a symlink, never onto another mount. With
    /// `cached`, only if the kernel needs no disk for it (else `WouldBlock`).
    pub(crate) fn open_child(&self, dir: &Inode, name: &[u8], cached: bool) -> Result<OwnedFd> {
        let cached = if cached { ResolveFlags::CACHED } else { ResolveFlags::empty() };
        self.open_named(dir, name, OFlags::PATH, cached)
    }

    fn open_named(&self, dir: &Inode, name: &[u8], how: OFlags, resolve: ResolveFlags) -> Result<OwnedFd> {
        let (flags, resolve) = (how | OFlags::NOFOLLOW | OFlags::CLOEXEC, resolve | ResolveFlags::NO_XDEV);
        match rustix::fs::openat2(dir.path(), name, flags, Mode::empty(), resolve) {
            // A mount point below the export is not part of it.
            Err(Errno::XDEV) => Err(Error::ACCESS),
            result => Ok(result?),
        }
    }

    /// Looks `name` up in `dir` and brings the inode into the inode cache.
    pub(crate) fn child(&self, dir: &Inode, name: &[u8], cached: bool) -> Result<(Arc<Inode>, Attr)> {
        self.adopt_named(self.open_child(dir, name, cached)?, dir, name)
    }

    /// Brings a new directory into the inode cache. Its inherited attributes can then be read without opening it again.
    pub(crate) fn new_directory(&self, dir: &Inode, name: &[u8]) -> Result<(Arc<Inode>, Attr)> {
        let how = OFlags::RDONLY | OFlags::DIRECTORY;
        let Ok(fd) = self.open_named(dir, name, how, ResolveFlags::empty()) else {
            // A server without privileges may create a directory that it cannot read.
            return self.child(dir, name, false);
        };
        let (object, attr) = self.adopt_opened((fd, GoodFor::ToRead))?;
        self.seen_as(&object.kernel, dir, name);
        Ok((object, attr))
    }

    /// Takes the inode an O_PATH descriptor refers to into the table; it was just seen as `name` in `dir`.
    pub(crate) fn adopt_named(&self, fd: OwnedFd, dir: &Inode, name: &[u8]) -> Result<(Arc<Inode>, Attr)> {
        let (object, attr) = self.adopt(fd)?;
        self.seen_as(&object.kernel, dir, name);
        Ok((object, attr))
    }

    fn seen_as(&self, kernel: &KernelHandle, dir: &Inode, name: &[u8]) {
        if let Scheme::DentryCache(locator) = &self.scheme {
            locator.learn(kernel, &dir.kernel, name);
        }
    }

    /// Returns true if `dir` lies in the tree below `root`. Climbs by "..", so the answer is right even after an
    /// external change moved a directory.
    pub(crate) fn is_below(&self, dir: &Inode, root: &Inode) -> Result<bool> {
        let mut at = rustix::fs::openat(dir.path(), c".", OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
        loop {
            let here = rustix::fs::fstat(&at)?;
            if self.identify(&at)?.0 == root.kernel {
                return Ok(true);
            }
            let up = rustix::fs::openat(&at, c"..", OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
            let above = rustix::fs::fstat(&up)?;
            if above.st_dev != self.device || (above.st_ino == here.st_ino) {
                return Ok(false);
            }
            at = up;
        }
    }

    /// Returns true if inodes of the file system have flags that FS_IOC_FSGETXATTR does not report.
    pub(crate) fn has_inode_flags(&self) -> bool {
        self.magic == EXT4
    }

    /// Returns the longest text that a symbolic link may have, in bytes.
    pub(crate) fn longest_link(&self) -> usize {
        /// The longest path, without its NUL.
        const PATH: usize = 4095;
        match self.magic {
            XFS => 1023,
            // A block, with a NUL.
            EXT4 => PATH.min(self.block.saturating_sub(1)),
            _ => PATH,
        }
    }

    /// Asks for the free space for users without privilege; `None` if there is no answer soon.
    pub(crate) fn free_space(self: &Arc<Self>) -> Option<Space> {
        let fs = self.clone();
        self.space.anew(PATIENCE, move || reserve::space(fs.mount())).flatten()
    }

    /// Returns the most hard links a file may have.
    pub(crate) fn max_links(&self) -> u32 {
        match self.magic {
            EXT4 => 65_000,
            XFS => i32::MAX as u32,
            _ => 65_535,
        }
    }
}

/// Returns the largest size in bytes that a file may have in the file system and that this process may write. Finds it
/// by lengthening an unnamed file. The cache could never destage an accepted write beyond it.
fn largest_file(root: &OwnedFd, magic: i64) -> Result<u64> {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Fsize).current;
    let most = (i64::MAX as u64).min(limit.unwrap_or(u64::MAX));
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let Ok(probe) = rustix::fs::openat(root, c".", flags, Mode::RUSR | Mode::WUSR) else {
        let holds = match magic {
            EXT4 => rustix::fs::fstatvfs(root)?.f_bsize.saturating_mul(u64::from(u32::MAX)),
            _ => i64::MAX as u64,
        };
        return Ok(holds.min(most));
    };
    let holds = |size| rustix::fs::ftruncate(&probe, size) != Err(Errno::FBIG);
    if holds(most) {
        return Ok(most);
    }
    // It holds `least` bytes and not `beyond`.
    let (mut least, mut beyond) = (0, most);
    while beyond - least > 1 {
        let middle = least + (beyond - least) / 2;
        if holds(middle) { least = middle } else { beyond = middle }
    }
    Ok(least)
}

/// Returns the name of a file system type for people.
pub(crate) fn type_name(magic: i64) -> &'static str {
    match magic {
        EXT4 => "ext4",
        XFS => "xfs",
        0x9123_683e => "btrfs",
        0x0102_1994 => "tmpfs",
        0x6573_5546 => "fuse",
        0x2fc1_2fc1 => "zfs",
        0xf2f5_2010 => "f2fs",
        0x794c_7630 => "overlayfs",
        0x6969 => "nfs",
        _ => "other",
    }
}

/// Returns true if only this host's kernel changes a file system of this type.
pub(crate) fn is_local(magic: i64) -> bool {
    matches!(type_name(magic), "ext4" | "xfs" | "btrfs" | "tmpfs" | "zfs" | "f2fs")
}

/// Returns true if the kernel gives this file system fine-grained change times (Linux 6.13 and most local file
/// systems). Tries it with an unnamed file: if times are as coarse as a tick, some of eight consecutive changes share
/// one.
fn fine_times(root: &OwnedFd) -> bool {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let Ok(probe) = rustix::fs::openat(root, c".", flags, Mode::RUSR) else { return false };
    let mut last = None;
    [Mode::RUSR | Mode::WUSR, Mode::RUSR].iter().cycle().take(8).all(|mode| {
        let ctime = rustix::fs::fchmod(&probe, *mode).and_then(|()| rustix::fs::fstat(&probe));
        let ctime = ctime.map(|stat| (stat.st_ctime, stat.st_ctime_nsec)).ok();
        ctime.is_some() && std::mem::replace(&mut last, ctime) != ctime
    })
}

/// Returns true if the file system has handles that this process may open, judged by the result of opening one.
/// Clients' handles depend on the answer, so an error that decides neither ends the start.
fn has_handles(opened: rustix::io::Result<()>) -> Result<bool> {
    match opened {
        Ok(()) => Ok(true),
        // Without CAP_DAC_READ_SEARCH; a file system without handles, or with such as lead nowhere or are too long.
        Err(
            Errno::PERM
            | Errno::ACCESS
            | Errno::NOSYS
            | Errno::OPNOTSUPP
            | Errno::STALE
            | Errno::OVERFLOW
            | Errno::INVAL,
        ) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

/// Opens a directory to be exported.
pub(crate) fn open_root(path: &std::path::Path) -> Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(CWD, path, flags, Mode::empty())?)
}

/// Fails unless `object` is a directory.
pub(crate) fn require_dir(object: &Inode) -> Result<()> {
    if object.kind() == FileType::Directory { Ok(()) } else { Err(Error::Os(Errno::NOTDIR)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_that_says_nothing_of_handles_is_not_taken_for_none() {
        assert!(has_handles(Ok(())).unwrap());
        for errno in [Errno::PERM, Errno::OPNOTSUPP, Errno::STALE] {
            assert!(!has_handles(Err(errno)).unwrap(), "{errno}");
        }
        for errno in [Errno::IO, Errno::NOMEM, Errno::MFILE] {
            assert!(has_handles(Err(errno)).is_err(), "{errno}");
        }
    }
}
