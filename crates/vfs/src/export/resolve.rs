//! The way from a handle or a name to an inode of a file system.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use forebay_metalog::Makers;
use forebay_runtime::block_on;
use rustix::fs::{FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;

use crate::attr::Attr;
use crate::caches::inode::{GoodFor, Inode, Opened};
use crate::error::{Error, Result};
use crate::export::filesystem::{Filesystem, Scheme};
use crate::export::locate;
use crate::sys::{self, KernelHandle};

/// The number of attempts with a handle for which the kernel says that it has no memory.
const TRIES: u32 = 1000;

impl Filesystem {
    /// Returns the handle of an open inode, and its attributes. Makes an entry in the handle map if the inode needs a
    /// made-up identity.
    pub(crate) fn identify(&self, fd: impl AsFd) -> Result<(KernelHandle, Attr)> {
        Ok((self.handle_of(&fd)?, self.attr_of(&rustix::fs::fstat(&fd)?)))
    }

    /// Returns the handle of an open inode. Makes an entry in the handle map if the inode needs a made-up identity.
    pub(crate) fn handle_of(&self, fd: impl AsFd) -> Result<KernelHandle> {
        match &self.scheme {
            Scheme::Kernel => self.aliases.outer(sys::name_to_handle(&fd, c"")?),
            Scheme::DentryCache(_) => locate::identity(&fd),
        }
    }

    /// Returns the attributes with the file id by which clients know the inode.
    pub(crate) fn attr_of(&self, stat: &Stat) -> Attr {
        let attr = Attr::from(stat);
        Attr { ino: self.aliases.fileid(attr.ino), ..attr }
    }

    /// Brings the inode of an O_PATH descriptor into the inode cache. Returns the inode and its attributes.
    pub(crate) fn adopt(&self, fd: OwnedFd) -> Result<(Arc<Inode>, Attr)> {
        self.adopt_opened(Opened { file: fd, good_for: GoodFor::Elsewhere })
    }

    /// Brings the inode of a newly opened descriptor into the inode cache.
    fn adopt_opened(&self, opened: Opened) -> Result<(Arc<Inode>, Attr)> {
        let (kernel, attr) = self.identify(&opened.file)?;
        if let Some(object) = self.inodes.get(&kernel) {
            // Clients may have seen a later change time than the backing file's.
            let attr = object.attr()?;
            return Ok((object, attr));
        }
        let object = Inode::opened(opened, kernel, &attr, &self.budget, &self.versions, &self.kept);
        let object = self.enter_again(object, &attr);
        let attr = object.attr()?;
        Ok((object, attr))
    }

    /// Brings a file into the inode cache that was just made as `name` in `dir`, with the descriptor that made it.
    pub(crate) fn adopt_new(
        &self,
        opened: Opened,
        kernel: KernelHandle,
        attr: &Attr,
        dir: &Inode,
        name: &[u8],
    ) -> Arc<Inode> {
        let object = Inode::opened(opened, kernel, attr, &self.budget, &self.versions, &self.kept);
        self.seen_as(&kernel, dir, name);
        // Nobody has seen it before.
        self.enter(object, attr, |_| ())
    }

    /// Enters an inode that may have been in the inode cache before.
    fn enter_again(&self, object: Inode, attr: &Attr) -> Arc<Inode> {
        self.enter(object, attr, |object| self.resume_shown(object, attr))
    }

    /// Enters an opened inode into the cache, with its attributes. Calls `entering` like [`InodeCache::insert`].
    ///
    /// [`InodeCache::insert`]: crate::caches::inode_cache::InodeCache::insert
    fn enter(&self, object: Inode, attr: &Attr, entering: impl FnOnce(&Inode)) -> Arc<Inode> {
        object.made_by.set(self.making.makers());
        if let Some(linked) = self.linked.get() {
            linked.link_known(&object, attr);
        }
        self.inodes.insert(object, entering, |leaving| self.remember(leaving))
    }

    /// Returns the handle of `name` in `dir` without keeping the inode, for READDIRPLUS.
    pub(crate) fn handle_at(&self, dir: &Inode, name: &std::ffi::CStr) -> Result<KernelHandle> {
        match &self.scheme {
            Scheme::Kernel => {
                let kernel = self.aliases.outer(sys::name_to_handle(dir.path(), name)?)?;
                self.placed(&kernel, dir);
                Ok(kernel)
            }
            Scheme::DentryCache(_) => {
                let fd = self.open_child(dir, name.to_bytes(), false)?;
                let kernel = locate::identity(&fd)?;
                self.seen_as(&kernel, dir, name.to_bytes());
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
        let fd = match &self.scheme {
            Scheme::Kernel => self.open_inner(&self.aliases.resolve(kernel).ok_or(Error::Stale)?)?,
            Scheme::DentryCache(locator) => locator.find(kernel)?,
        };
        let attr = self.attr_of(&rustix::fs::fstat(&fd)?);
        let object = Inode::new(fd, *kernel, &attr, &self.budget, &self.versions, &self.kept);
        Ok(self.enter_again(object, &attr))
    }

    /// Waits until the record of an inode's creation is in the log. A request that names the inode by its handle must
    /// do nothing to it before. Waits for other threads only.
    pub(crate) fn is_recorded(&self, object: &Inode, wait: bool) -> Result<()> {
        let made_by = object.made_by.get();
        if made_by == Makers::Earlier {
            return Ok(());
        }
        if !self.making.have_ended(made_by) {
            if !wait {
                return Err(Error::WouldBlock);
            }
            block_on(self.making.wait(made_by));
        }
        object.made_by.set(Makers::Earlier);
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

    /// Opens an inode as O_PATH by the identity that the file system has for it. Fails with [`Error::Stale`] for a
    /// made-up identity, which no inode has, and with [`Error::BadHandle`] if the kernel does not understand it.
    pub(crate) fn open_inner(&self, inner: &KernelHandle) -> Result<OwnedFd> {
        if inner.is_made_up() {
            // No entry leads from it to anything, as a power cut may leave it.
            return Err(Error::Stale);
        }
        let open = || sys::open_by_handle(self.mount(), inner, libc::O_PATH | libc::O_NOFOLLOW);
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

    /// Opens a name in a directory. Never follows a link, and never crosses a mount.
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
        let (object, attr) = self.adopt_opened(Opened { file: fd, good_for: GoodFor::ToRead })?;
        self.seen_as(&object.kernel, dir, name);
        Ok((object, attr))
    }

    /// Brings the inode of an O_PATH descriptor into the inode cache. The inode was just seen as `name` in `dir`.
    pub(crate) fn adopt_named(&self, fd: OwnedFd, dir: &Inode, name: &[u8]) -> Result<(Arc<Inode>, Attr)> {
        let (object, attr) = self.adopt(fd)?;
        self.seen_as(&object.kernel, dir, name);
        Ok((object, attr))
    }

    /// Notes a name of an inode, by which its policy is found, and the inode itself where the kernel has no handles.
    pub(crate) fn seen_as(&self, kernel: &KernelHandle, dir: &Inode, name: &[u8]) {
        self.placed(kernel, dir);
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
}
