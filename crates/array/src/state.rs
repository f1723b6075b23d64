//! The recorded state of an array. With it any later command finds and removes all parts of the array.
//!
//! `STATE-DIR/NAME/` has `state.json`, the control socket, the FUSE mount, the daemon's log, and by default the mount
//! point of the file system. `STATE-DIR/NAME.lock` keeps two commands from working on one array at once. The daemon
//! holds `daemon.lock` as long as it lives.

use crate::error::{ArrayError, Doing};
use crate::model::Model;
use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// The file system on an array.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum FileSystem {
    /// XFS, aligned to the stripes.
    Xfs,
    /// ext4, aligned to the stripes.
    Ext4,
    /// No file system, only the block device.
    None,
}

/// The phase of an array's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// The array is being made. Each recorded part may or may not exist.
    Starting,
    /// The array is in service.
    Up,
    /// The power was cut. The image holds the surviving data.
    Cut,
}

/// The recorded state of one array.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct State {
    /// Name of the array.
    pub name: String,
    /// Model of the array, with overrides applied.
    pub model: Model,
    /// Size of the block device in bytes.
    pub size: u64,
    /// The sparse file with the data.
    pub image: PathBuf,
    /// File system on the block device.
    pub fs: FileSystem,
    /// Mount point of the file system.
    pub mount: PathBuf,
    /// True if `up` made the mount point.
    pub made_mount: bool,
    /// Path of the loop device, once it is attached.
    pub device: Option<String>,
    /// Process id of the daemon, once it runs.
    pub pid: Option<i32>,
    /// Phase of the array's life.
    pub phase: Phase,
}

/// The directory of one array, locked against other commands.
#[derive(Debug)]
pub(crate) struct Home {
    pub(crate) directory: PathBuf,
    lock_path: PathBuf,
    _lock: File,
}

impl Home {
    /// Locks the array `name` below `base`. Waits while another command holds the lock.
    pub(crate) fn lock(base: &Path, name: &str) -> Result<Self, ArrayError> {
        check_name(name)?;
        make_directory(base)?;
        let lock_path = base.join(format!("{name}.lock"));
        loop {
            let lock = open_lock(&lock_path)?;
            rustix::fs::flock(&lock, FlockOperation::LockExclusive)
                .doing(|| format!("lock {}", lock_path.display()))?;
            // The previous holder may have removed the lock file. A lock on a removed file excludes no other command,
            // so the file is opened again.
            if same_file(&lock, &lock_path) {
                return Ok(Self { directory: base.join(name), lock_path, _lock: lock });
            }
        }
    }

    /// Returns the recorded state, if any.
    pub(crate) fn load(&self) -> Result<Option<State>, ArrayError> {
        load(&self.directory)
    }

    /// Makes the directory and records the state atomically.
    pub(crate) fn save(&self, state: &State) -> Result<(), ArrayError> {
        make_directory(&self.directory)?;
        make_directory(&fuse(&self.directory))?;
        let (path, fresh) = (self.directory.join("state.json"), self.directory.join("state.json.new"));
        let doing = || format!("write {}", path.display());
        let text = serde_json::to_vec_pretty(state).map_err(io::Error::other).doing(doing)?;
        fs::write(&fresh, text).doing(doing)?;
        fs::rename(&fresh, &path).doing(doing)
    }

    /// Removes the remaining files of an array that is down, including the lock file.
    pub(crate) fn remove(self) -> Result<(), ArrayError> {
        // Only known files are removed one by one, so that a file system mounted below is never emptied.
        for name in ["state.json", "state.json.new", "control.sock", "daemon.lock", "log"] {
            gone(fs::remove_file(self.directory.join(name)), &self.directory)?;
        }
        for directory in [fuse(&self.directory), self.directory.join("mnt"), self.directory.clone()] {
            gone(fs::remove_dir(&directory), &directory)?;
        }
        gone(fs::remove_file(&self.lock_path), &self.lock_path)
    }
}

/// Returns the FUSE mount point of the array in `directory`.
pub(crate) fn fuse(directory: &Path) -> PathBuf {
    directory.join("fuse")
}

/// Reads the recorded state in a directory, if any.
pub(crate) fn load(directory: &Path) -> Result<Option<State>, ArrayError> {
    let path = directory.join("state.json");
    let doing = || format!("read {}", path.display());
    match fs::read(&path) {
        Ok(bytes) => Ok(Some(serde_json::from_slice(&bytes).map_err(io::Error::other).doing(doing)?)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e).doing(doing),
    }
}

/// Returns the names of all arrays below `base`, sorted.
pub(crate) fn names(base: &Path) -> Result<Vec<String>, ArrayError> {
    let entries = match fs::read_dir(base) {
        Ok(entries) => entries,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(e).doing(|| format!("list {}", base.display())),
    };
    let has_state = |e: &fs::DirEntry| e.path().join("state.json").exists();
    let mut names: Vec<String> =
        entries.flatten().filter(has_state).filter_map(|e| e.file_name().into_string().ok()).collect();
    names.sort();
    Ok(names)
}

/// Takes the lock that marks a living daemon. Returns `None` if a daemon holds it.
pub(crate) fn daemon_lock(directory: &Path) -> Result<Option<File>, ArrayError> {
    let path = directory.join("daemon.lock");
    let file = open_lock(&path)?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(file)),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
        Err(e) => Err(e).doing(|| format!("lock {}", path.display())),
    }
}

/// Returns true if the daemon of the array in `directory` lives.
pub(crate) fn alive(directory: &Path) -> bool {
    directory.join("daemon.lock").exists() && matches!(daemon_lock(directory), Ok(None))
}

/// Checks that an array's name can be part of a path: 1 to 32 letters, digits, `-` or `_`.
fn check_name(name: &str) -> Result<(), ArrayError> {
    let fits = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    if name.is_empty() || name.len() > 32 || !name.chars().all(fits) {
        let why = format!("the name {name:?} is not permitted; use 1 to 32 letters, digits, - or _");
        return Err(ArrayError::Argument(why));
    }
    Ok(())
}

/// Makes a directory and its parents, with access for the owner only.
pub(crate) fn make_directory(path: &Path) -> Result<(), ArrayError> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .doing(|| format!("make {}", path.display()))
}

/// Opens a lock file, and makes the file if it does not exist. Takes no lock.
fn open_lock(path: &Path) -> Result<File, ArrayError> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    options.open(path).doing(|| format!("open {}", path.display()))
}

/// Returns true if the path still leads to the open file. Another command may have removed the lock file meanwhile.
fn same_file(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    match (file.metadata(), fs::metadata(path)) {
        (Ok(a), Ok(b)) => a.ino() == b.ino() && a.dev() == b.dev(),
        _ => false,
    }
}

/// Turns the result of a removal into success if the file did not exist.
fn gone(result: io::Result<()>, path: &Path) -> Result<(), ArrayError> {
    match result {
        Err(e) if e.kind() != io::ErrorKind::NotFound => {
            Err(e).doing(|| format!("remove {}", path.display()))
        }
        _ => Ok(()),
    }
}
