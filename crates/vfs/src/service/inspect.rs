//! Reports the cache's contents of the files below a path, and drops them together with all cached names and
//! attributes.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};

use forebay_common::lock::Mutex;
use forebay_engine::CachedObject as Cached;
use forebay_runtime::block_on;
use rustix::fs::{FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use crate::caches::link::parse_key;
use crate::error::{Error, Result, from_cache};
use crate::export::Export;
use crate::export::cache::Linked;
use crate::export::filesystem::Filesystem;
use crate::export::vfs::Vfs;
use crate::sys::KernelHandle;

/// The cache's contents of some files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Holdings {
    /// Files looked at; one with several names counts once.
    pub files: u64,
    /// The number of files with any cached contents.
    pub cached_files: u64,
    /// The number of files with contents that only the cache has.
    pub dirty_files: u64,
    /// Bytes on the cache devices, each copy of dirty data counted once.
    pub ssd_bytes: u64,
    /// Bytes of them that only the cache has.
    pub dirty_bytes: u64,
    /// Bytes in memory.
    pub ram_bytes: u64,
    /// Files of which something was kept since clients wrote to them meanwhile; only where dropping was asked for.
    pub kept_files: u64,
}

/// The reason why a path cannot be inspected: one sentence, with the remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InspectError {
    /// No export contains it.
    #[error("{0} is not in a directory that this server serves; `forebay status` lists those")]
    NotServed(String),
    /// There is no cache.
    #[error("this server has no cache: it was started in mode pass-through")]
    NoCache,
    /// The system refused.
    #[error("cannot look at {0}: {1}")]
    System(String, Error),
    /// Dirty data could not be destaged.
    #[error(
        "{0} has data that only the cache has, which cannot be destaged now ({1}); nothing of it was dropped"
    )]
    Dirty(String, Error),
}

/// How far a walk over files has come, as a thread that waits for the walk sees it. That thread can end the walk: a
/// file system may not answer.
#[derive(Debug, Default)]
pub struct WalkProgress {
    steps: AtomicU64,
    is_given_up: AtomicBool,
    /// The file that is being destaged.
    destaged: Mutex<Option<Arc<Cached>>>,
}

impl WalkProgress {
    /// Returns a value that changes as long as the walk goes on.
    pub fn mark(&self) -> (u64, u64) {
        let dirty = self.destaged.lock().as_ref().map_or(0, |file| file.usage().dirty_blocks);
        (self.steps.load(Relaxed), dirty)
    }

    /// Has the walk end at its next step.
    pub fn give_up(&self) {
        self.is_given_up.store(true, Relaxed);
    }

    /// Counts a step. Returns false if the walk is to end.
    pub fn step(&self) -> bool {
        self.steps.fetch_add(1, Relaxed);
        !self.is_given_up.load(Relaxed)
    }
}

/// The number of attempts with a file that clients write to.
const TRIES: usize = 8;

/// A walk over the files below a path.
struct Walk<'a> {
    fs: &'a Filesystem,
    /// The cache, if there is one.
    linked: Option<&'a Linked>,
    seen: HashSet<u64>,
    found: Holdings,
    /// Files of which something is cached, if that is to be dropped.
    cached: Option<Vec<(String, Arc<Cached>)>>,
    progress: &'a WalkProgress,
}

impl Vfs {
    /// Returns the cache's contents of the file at `path`, or of all files below the directory. `path` is absolute,
    /// without symbolic links.
    pub fn holdings(
        &self,
        path: &Path,
        progress: &WalkProgress,
    ) -> std::result::Result<Holdings, InspectError> {
        if self.cache.get().is_none() {
            return Err(InspectError::NoCache);
        }
        self.walk(path, false, progress).map(|walk| walk.found)
    }

    /// Forgets names and attributes of the inode at `path`, and of all inodes below a directory. Destages the dirty
    /// blocks of these files, then drops all their cached blocks, durably when this returns. Returns the cache's
    /// contents from before.
    pub fn drop_cached(
        &self,
        path: &Path,
        progress: &WalkProgress,
    ) -> std::result::Result<Holdings, InspectError> {
        let Walk { fs, linked, mut found, cached, .. } = self.walk(path, true, progress)?;
        let Some(linked) = linked else { return Ok(found) };
        for (name, cached) in cached.unwrap_or_default() {
            if !progress.step() {
                return Err(InspectError::System(name, Error::Os(Errno::CANCELED)));
            }
            *progress.destaged.lock() = Some(cached.clone());
            match drop_file(fs, linked, &cached) {
                // A file that is gone has nothing to drop.
                Ok(true) | Err(Error::Stale) => {}
                Ok(false) => found.kept_files += 1,
                Err(error) => return Err(InspectError::Dirty(name, error)),
            }
        }
        Ok(found)
    }

    /// Walks the files at and below a path. With `list`, lists the cached ones and forgets their attributes.
    fn walk<'a>(
        &'a self,
        path: &Path,
        list: bool,
        progress: &'a WalkProgress,
    ) -> std::result::Result<Walk<'a>, InspectError> {
        let shown = || path.display().to_string();
        let (export, rest) = self.export_of(path).ok_or_else(|| InspectError::NotServed(shown()))?;
        let fs = &*export.fs;
        let cached = list.then(Vec::new);
        let (linked, seen, found) = (fs.linked(), HashSet::new(), Holdings::default());
        let mut walk = Walk { fs, linked, seen, found, cached, progress };
        let root = export.root.path();
        let looked = open(root, &rest).and_then(|fd| {
            if let Some(parent) = rest.parent().filter(|_| list) {
                fs.forget_known(&fs.identify(open(root, parent)?)?.0);
            }
            walk.visit(&fd, path)
        });
        looked.map_err(|error| InspectError::System(shown(), error))?;
        Ok(walk)
    }

    /// Returns the export that contains `path`, and the way from its root. No file system is asked: that of another
    /// export may not answer. The settings have the paths of exports without symbolic links.
    pub(super) fn export_of(&self, path: &Path) -> Option<(&Arc<Export>, std::path::PathBuf)> {
        let below = |export: &Arc<Export>| path.strip_prefix(&export.path).ok().map(Path::to_owned);
        let found = self.exports().iter().filter_map(|export| Some((export, below(export)?)));
        found.min_by_key(|(_, rest)| rest.components().count())
    }
}

impl Walk<'_> {
    /// Counts a file, or the files of a directory.
    fn visit(&mut self, fd: &OwnedFd, path: &Path) -> Result<()> {
        if !self.progress.step() {
            return Err(Error::Os(Errno::CANCELED));
        }
        let (kernel, attr) = self.fs.identify(fd)?;
        if self.cached.is_some() {
            self.fs.forget_known(&kernel);
        }
        match attr.kind {
            FileType::Directory => self.visit_all(fd, &kernel, path)?,
            FileType::RegularFile if attr.nlink == 1 || self.seen.insert(attr.ino) => {
                self.found.files += 1;
                let known = self.linked.and_then(|linked| linked.cache.engine.known(&linked.key(&kernel)));
                if let Some(cached) = known {
                    self.count(cached, path);
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Visits each entry of a directory, except private ones.
    fn visit_all(&mut self, dir: &OwnedFd, kernel: &KernelHandle, path: &Path) -> Result<()> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let entries = rustix::fs::Dir::new(rustix::fs::openat(dir, c".", flags, Mode::empty())?)?;
        for entry in entries {
            let entry = entry?;
            let name = entry.file_name();
            let private = self.fs.is_private(kernel, name.to_bytes());
            if private || name == c"." || name == c".." {
                continue;
            }
            let name = Path::new(OsStr::from_bytes(name.to_bytes()));
            match open(dir.as_fd(), name).and_then(|fd| self.visit(&fd, &path.join(name))) {
                // Removed meanwhile, or another file system is mounted there.
                Err(Error::Os(Errno::NOENT | Errno::XDEV) | Error::Stale) => {}
                visited => visited?,
            }
        }
        Ok(())
    }

    /// Adds the cached data of a file to the result.
    fn count(&mut self, cached: Arc<Cached>, path: &Path) {
        const BLOCK: u64 = forebay_engine::buffer::BLOCK as u64;
        let usage = cached.usage();
        let dirty = cached.undestaged_attributes().is_some();
        self.found.cached_files += u64::from(dirty || usage.ssd_blocks + usage.ram_blocks > 0);
        self.found.dirty_files += u64::from(dirty);
        self.found.ssd_bytes += usage.ssd_blocks * BLOCK;
        self.found.dirty_bytes += usage.dirty_blocks * BLOCK;
        self.found.ram_bytes += usage.ram_blocks * BLOCK;
        if let Some(list) = &mut self.cached {
            list.push((path.display().to_string(), cached));
        }
    }
}

/// Destages a file and drops its cached blocks. Returns false if clients wrote to the file all the time.
fn drop_file(fs: &Filesystem, linked: &Linked, cached: &Arc<Cached>) -> Result<bool> {
    let engine = &linked.cache.engine;
    let Some((_, kernel)) = parse_key(cached.key()) else { return Ok(true) };
    let object = fs.resolve(&kernel, true)?;
    for _ in 0..TRIES {
        block_on(engine.destage_object(cached)).map_err(from_cache)?;
        let _alone = object.changing.write();
        if linked.forget(&object, cached)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Opens the inode at `path` below `dir` as O_PATH, never through a symbolic link and never onto another mount.
pub(super) fn open(dir: BorrowedFd<'_>, path: &Path) -> Result<OwnedFd> {
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::NO_XDEV | ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    Ok(rustix::fs::openat2(dir, path, flags, Mode::empty(), resolve)?)
}
