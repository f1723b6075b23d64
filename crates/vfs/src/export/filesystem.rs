//! A backing file system: its state, its promises and its limits.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock};

use forebay_common::lock::Mutex;
use forebay_engine::CachedObject as Cached;
use forebay_metalog::Making;
use forebay_oplog::Removals;
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;

use crate::admission::mount::Mount;
use crate::admission::unlink_throttle::UnlinkThrottle;
use crate::caches::budget::Budget;
use crate::caches::inode::Inode;
use crate::caches::inode_cache::InodeCache;
use crate::caches::kept::Kept;
use crate::caches::overlay::Overlay;
use crate::caches::policies::Policies;
use crate::caches::versions::Versions;
use crate::coherence::watch::HostWatch;
use crate::durability::journal::{Deliver, Journal};
use crate::durability::journal_order::order_of;
use crate::durability::verifier::Verifier;
use crate::durability::writeback::Writeback;
use crate::error::{Error, Result};
use crate::export::cache::Linked;
use crate::export::handle_map::HandleMap;
use crate::export::inherited;
use crate::export::locate::{self, Locator};
use crate::export::private_dir::PRIVATE;
use crate::export::probe::{fine_times, has_attribute, has_handles, largest_file};
use crate::identity::fs_type::{EXT4, XFS, is_local, type_name};
use crate::oplog::rename_intents::RenameIntents;
use crate::sys::{self, KernelHandle};

/// The way in which handles lead back to files.
pub(crate) enum Scheme {
    /// open_by_handle_at: exact, needs CAP_DAC_READ_SEARCH.
    Kernel,
    /// Inode number and birth time, found through names.
    DentryCache(Locator),
}

/// A function that is told of external changes.
pub(crate) type Listener = Box<dyn Fn(Option<&KernelHandle>) + Send + Sync>;

/// One mounted backing file system.
pub(crate) struct Filesystem {
    pub(crate) device: u64,
    pub(crate) magic: i64,
    pub(crate) mount: Arc<Mount>,
    /// The directory whose [`PRIVATE`] is the server's own.
    pub(crate) root: KernelHandle,
    pub(crate) aliases: HandleMap,
    pub(crate) slots: Arc<RenameIntents>,
    pub(crate) making: Arc<Making>,
    pub(crate) removals: Mutex<Removals<Arc<Cached>>>,
    /// The removed files that clients have open, and the directory of their names once it is needed.
    pub(crate) kept: Arc<Kept>,
    pub(crate) kept_dir: OnceLock<Arc<Inode>>,
    /// True if the server may make that directory.
    pub(crate) may_keep: bool,
    /// Held by a RENAME of a directory to another parent.
    pub(crate) moving: Mutex<()>,
    /// Around the removal of names.
    pub(crate) removing: UnlinkThrottle,
    pub(crate) scheme: Scheme,
    pub(crate) inodes: Arc<InodeCache>,
    pub(crate) journal: Arc<Journal>,
    pub(crate) writeback: Writeback,
    pub(crate) budget: Budget,
    /// The largest file it can hold and this process may write, in bytes.
    pub(crate) largest_file: u64,
    /// The longest name, in bytes.
    pub(crate) name_max: u32,
    /// Bytes of a block.
    block: usize,
    pub(crate) versions: Versions,
    /// The source of news about external changes in the file system, if the kernel offers one.
    pub(crate) watch: Option<Arc<HostWatch>>,
    /// Called for each external change that the kernel reports, with the file if that is known.
    pub(crate) listener: OnceLock<Listener>,
    /// The rules about what is cached how.
    pub(crate) policies: Arc<Policies>,
    /// The cache in front of it.
    pub(crate) linked: OnceLock<Linked>,
    /// True if two changes of an inode always show different ctimes when the ctime was read in between.
    pub(crate) fine_times: bool,
    /// True if its inodes can have POSIX access control lists.
    pub(crate) has_acls: bool,
    /// True if its files and directories can have extended attributes of users.
    pub(crate) has_xattrs: bool,
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
            mount: Arc::new(Mount::new(again()?)),
            root: identity(root)?,
            aliases: HandleMap::open(again()?, kernel_handles)?,
            slots: Arc::default(),
            making: Arc::default(),
            removals: Mutex::default(),
            kept: Arc::default(),
            kept_dir: OnceLock::new(),
            may_keep: kernel_handles && Self::may_keep(root),
            moving: Mutex::default(),
            removing: UnlinkThrottle::default(),
            scheme: if kernel_handles { Scheme::Kernel } else { Scheme::DentryCache(Locator::new(again()?)) },
            inodes: Arc::new(InodeCache::new(budget.clone())),
            journal: Journal::open(again()?, order, budget.clone(), verifier, deliver)?,
            writeback: Writeback::start(budget.clone()).map_err(|_| Error::Busy)?,
            largest_file: largest_file(root, magic)?,
            name_max: rustix::fs::fstatvfs(root)?.f_namemax as u32,
            block: stat.f_bsize as usize,
            versions: Versions::new(budget.known().clone(), number),
            // Of a network file system, which other hosts change as well, the kernel reports only the changes by this
            // host.
            watch: watch.filter(|_| kernel_handles && is_local(magic) && budget.known().has_room()),
            budget,
            fine_times: fine_times(root),
            has_acls: has_attribute(root, inherited::ACL),
            has_xattrs: has_attribute(root, c"user.forebay.probe"),
            policies: Arc::default(),
            linked: OnceLock::new(),
            listener: OnceLock::new(),
        })
    }

    /// Returns the cache in front of this file system.
    pub(crate) fn linked(&self) -> Option<&Linked> {
        self.linked.get()
    }

    /// Returns the engine's corrections to a file's attributes, also if the file is not open. The caller asks for them
    /// before the backing file's attributes, like for
    /// [`Link::overlay`](crate::caches::link::Link::overlay).
    pub(crate) fn overlay(&self, kernel: &KernelHandle) -> Option<Overlay<Arc<Cached>>> {
        let linked = self.linked.get()?;
        Some(Overlay::new(linked.cache.engine.known(&linked.key(kernel))?))
    }

    /// Fails while nothing that is changed could become durable.
    pub(crate) fn can_change(&self) -> Result<()> {
        self.linked().and_then(|linked| linked.logging.refusal()).map_or(Ok(()), Err)
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

    /// Returns true if inodes of the file system have flags that FS_IOC_FSGETXATTR does not report.
    pub(crate) fn has_inode_flags(&self) -> bool {
        self.magic == EXT4
    }

    /// Returns the unit in which two files may share contents, in bytes; 0 if they never share any.
    pub(crate) fn clone_block(&self) -> u32 {
        match type_name(self.magic) {
            "xfs" | "btrfs" => u32::try_from(self.block).unwrap_or(0),
            _ => 0,
        }
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

    /// Returns the most hard links a file may have.
    pub(crate) fn max_links(&self) -> u32 {
        match self.magic {
            EXT4 => 65_000,
            XFS => i32::MAX as u32,
            _ => 65_535,
        }
    }
}

/// Fails unless `object` is a directory.
pub(crate) fn require_dir(object: &Inode) -> Result<()> {
    if object.kind() == FileType::Directory { Ok(()) } else { Err(Error::Os(Errno::NOTDIR)) }
}
