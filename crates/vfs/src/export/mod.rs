//! Exports: the served directories, their file systems, and the engine in front of them.

pub(crate) mod cache;
pub(crate) mod external_change;
pub(crate) mod file_key;
pub(crate) mod filesystem;
pub(crate) mod glance;
pub(crate) mod handle_map;
pub(crate) mod inherited;
pub(crate) mod kept_files;
pub(crate) mod known;
pub(crate) mod locate;
pub(crate) mod owner;
pub(crate) mod policy;
pub(crate) mod private_dir;
pub(crate) mod probe;
pub(crate) mod resolve;
pub(crate) mod table;
pub(crate) mod vfs;

use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use crate::attr::Attr;
use crate::caches::inode::Inode;
use crate::coherence::watch::HostWatch;
use crate::durability::journal::Order;
use crate::error::{Error, Result};
use crate::export::filesystem::{Filesystem, Scheme};
use crate::handle::HandleKey;
use crate::identity::export_identity::ExportIdentity;
use crate::identity::fs_type::type_name;
use crate::identity::stamp::{self, Stamp};
use crate::question::Question;

use rustix::fs::{Mode, OFlags};

/// A directory to export.
#[derive(Clone, Debug)]
pub struct ExportSpec {
    /// Its number within handles: unique, and unchanged by a restart.
    pub id: u32,
    /// The path clients mount, such as "/" or "/data".
    pub name: String,
    /// The directory served.
    pub path: PathBuf,
    /// The source of news about external changes in its file system, if it has one.
    pub watch: Option<Arc<HostWatch>>,
}

/// A directory in service.
pub struct Export {
    /// Its number within handles.
    pub id: u32,
    /// The path clients mount.
    pub name: String,
    /// The directory served.
    pub path: PathBuf,
    /// RFC 1813 fattr3 fsid.
    pub fsid: u64,
    /// The identity of the directory and its file system.
    pub identity: ExportIdentity,
    pub(crate) root: Arc<Inode>,
    pub(crate) fs: Arc<Filesystem>,
    /// The answer of statvfs(2) for the directory.
    pub(crate) space: Arc<Question<Result<Space>>>,
    /// False once the export was removed in service.
    pub(crate) in_service: AtomicBool,
}

impl Export {
    /// Opens the export whose directory is `root` on the file system `fs`.
    pub(crate) fn open(
        spec: &ExportSpec,
        root: &OwnedFd,
        fs: Arc<Filesystem>,
        key: &HandleKey,
    ) -> Result<Self> {
        let identity = ExportIdentity::of(root)?;
        let path = rustix::fs::openat(root, c".", OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
        let (root, _) = fs.adopt(path)?;
        Ok(Export {
            id: spec.id,
            fsid: key.derive(&spec.id.to_le_bytes()),
            name: spec.name.clone(),
            path: spec.path.clone(),
            identity,
            root,
            fs,
            space: Arc::default(),
            in_service: AtomicBool::new(true),
        })
    }

    /// Asks the file system for its free space. Waits for nothing.
    pub(crate) fn ask_for_space(&self) {
        let root = self.root.clone();
        self.space.begin(Duration::ZERO, move || Space::of(root.path()));
    }

    /// Returns the type of the backing file system, for people.
    pub fn fs_type(&self) -> &'static str {
        type_name(self.fs.magic)
    }

    /// Returns true if handles work through the kernel (exact), false if they work through names (see the crate's
    /// `locate`).
    pub fn kernel_handles(&self) -> bool {
        matches!(self.fs.scheme, Scheme::Kernel)
    }

    /// Returns the exported directory as a target.
    pub fn root(self: &Arc<Self>) -> Target {
        Target { export: self.clone(), object: self.root.clone() }
    }

    /// Returns the count of starts that its directory has.
    pub fn stamp(&self) -> Result<Option<Stamp>> {
        stamp::read(self.root.path())
    }

    /// Writes the count of starts durably. Returns false if the directory cannot have one.
    pub fn set_stamp(&self, stamp: Stamp) -> Result<bool> {
        stamp::write(self.root.path(), stamp)
    }

    /// Returns true if one journal orders all changes of the backing file system and the server relies on that order.
    pub fn ordered(&self) -> bool {
        self.fs.journal.order() == Order::Journal
    }
}

/// An inode reached through an export.
#[derive(Clone)]
pub struct Target {
    /// The export, whose rules apply.
    pub export: Arc<Export>,
    /// The inode.
    pub object: Arc<Inode>,
}

impl Target {
    /// Returns the attributes. If an external change removed the last link, the inode is forgotten, so that its space
    /// is freed.
    pub(crate) fn attr(&self) -> Result<Attr> {
        self.object.attr().inspect_err(|error| {
            if *error == Error::Stale {
                self.export.fs.inodes.forget(&self.object);
            }
        })
    }
}

/// Free space as FSSTAT reports it (RFC 1813 section 3.3.18).
#[derive(Clone, Copy, Debug)]
pub struct Space {
    /// Bytes in all, free, and free to ordinary users.
    pub bytes: (u64, u64, u64),
    /// Files in all, free, and free to ordinary users.
    pub files: (u64, u64, u64),
}

impl Space {
    /// Asks statvfs(2).
    fn of(fd: impl AsFd) -> Result<Self> {
        let stat = rustix::fs::fstatvfs(fd)?;
        let block = stat.f_frsize;
        Ok(Space {
            bytes: (stat.f_blocks * block, stat.f_bfree * block, stat.f_bavail * block),
            files: (stat.f_files, stat.f_ffree, stat.f_favail),
        })
    }
}

/// The limits of a file system, as FSINFO and PATHCONF report them (RFC 1813 sections 3.3.19 and 3.3.20).
#[derive(Clone, Copy, Debug)]
pub struct Most {
    /// The longest name, in bytes.
    pub name_max: u32,
    /// The largest possible file, in bytes.
    pub max_file_size: u64,
    /// The most hard links a file may have.
    pub max_links: u32,
    /// The unit of clones, in bytes; 0 if the file system cannot clone.
    pub clone_block: u32,
}
