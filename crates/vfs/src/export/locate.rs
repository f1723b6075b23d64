//! Handles without privilege: an inode is known by inode number and birth time, and found by its name.
//!
//! Three limits are printed at the start:
//!
//! - The server must have seen the inode's name since it started, or the first use of an old handle walks the tree.
//! - At most `MAX_KNOWN` names are remembered.
//! - An external change of a file's name costs another walk.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use forebay_common::lock::Mutex;
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, StatxFlags};
use rustix::io::Errno;

use crate::error::{Error, Result};
use crate::sys::{KERNEL_HANDLE_MAX, KernelHandle};

/// Marks handles of this kind; the kernel's own types are positive.
const KIND: i32 = -1;
const MAX_KNOWN: usize = 4_000_000;
/// A path cannot be deeper than this. Guards against a loop in the remembered names.
const MAX_DEPTH: usize = 2048;

/// Returns the handle of an open inode: inode number and birth time in nanoseconds, 16 bytes.
pub(crate) fn identity(fd: impl AsFd) -> Result<KernelHandle> {
    let stat = rustix::fs::statx(fd, c"", AtFlags::EMPTY_PATH, StatxFlags::INO | StatxFlags::BTIME)?;
    let birth = (stat.stx_btime.tv_sec as u64)
        .wrapping_mul(1_000_000_000)
        .wrapping_add(stat.stx_btime.tv_nsec.into());
    let mut bytes = [0; KERNEL_HANDLE_MAX];
    bytes[..8].copy_from_slice(&stat.stx_ino.to_le_bytes());
    bytes[8..16].copy_from_slice(&birth.to_le_bytes());
    Ok(KernelHandle { kind: KIND, len: 16, bytes })
}

/// Returns the number of an inode, which a handle without the kernel's help begins with.
fn inode(kernel: &KernelHandle) -> u64 {
    let mut ino = [0; 8];
    ino.copy_from_slice(&kernel.bytes[..8]);
    u64::from_le_bytes(ino)
}

/// The place where an inode was seen: its parent's inode number and its name there.
type Seen = (u64, Box<[u8]>);

/// Finds inodes by the names under which they were seen.
pub(crate) struct Locator {
    root: OwnedFd,
    known: Mutex<HashMap<u64, Seen, foldhash::fast::RandomState>>,
    /// Allows one walk at a time. A thread that waits here may then find its inode without a walk of its own.
    walking: Mutex<()>,
}

impl Locator {
    pub(crate) fn new(root: OwnedFd) -> Self {
        Locator { root, known: Mutex::default(), walking: Mutex::new(()) }
    }

    /// Remembers where an inode was seen.
    pub(crate) fn learn(&self, object: &KernelHandle, parent: &KernelHandle, name: &[u8]) {
        if !matches!(name, b"." | b"..") {
            self.learn_inode(inode(object), inode(parent), name);
        }
    }

    /// Records a name of an inode. A full table takes no further inode.
    fn learn_inode(&self, object: u64, parent: u64, name: &[u8]) {
        let mut known = self.known.lock();
        let full = known.len() >= MAX_KNOWN;
        match known.entry(object) {
            Entry::Occupied(mut seen) if *seen.get().1 != *name || seen.get().0 != parent => {
                seen.insert((parent, name.into()));
            }
            Entry::Vacant(slot) if !full => {
                slot.insert((parent, name.into()));
            }
            _ => {}
        }
    }

    /// Opens the inode that `kernel` names.
    pub(crate) fn find(&self, kernel: &KernelHandle) -> Result<OwnedFd> {
        if kernel.kind != KIND || kernel.len != 16 {
            return Err(Error::BadHandle);
        }
        if let Some(fd) = self.follow(kernel) {
            return Ok(fd);
        }
        let _one = self.walking.lock();
        if let Some(fd) = self.follow(kernel) {
            return Ok(fd);
        }
        self.walk()?;
        self.follow(kernel).ok_or(Error::Stale)
    }

    /// Follows remembered names from the root. Returns `None` if they do not lead to this inode.
    fn follow(&self, kernel: &KernelHandle) -> Option<OwnedFd> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut fd = rustix::fs::openat(&self.root, c".", flags, Mode::empty()).ok()?;
        let root = inode(&identity(&fd).ok()?);
        let mut path = Vec::new();
        let mut at = inode(kernel);
        {
            let known = self.known.lock();
            while at != root {
                let (parent, name) = known.get(&at)?;
                path.push(name.clone());
                at = *parent;
                if path.len() > MAX_DEPTH {
                    return None;
                }
            }
        }
        for name in path.iter().rev() {
            fd = rustix::fs::openat(&fd, &name[..], flags, Mode::empty()).ok()?;
        }
        (identity(&fd).ok()? == *kernel).then_some(fd)
    }

    /// Learns every name below the root.
    fn walk(&self) -> Result<()> {
        let device = rustix::fs::fstat(&self.root)?.st_dev;
        // Paths, not descriptors: a wide tree must not use them all up.
        let mut pending = vec![PathBuf::from(".")];
        while let Some(path) = pending.pop() {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::BENEATH;
            let dir = match rustix::fs::openat2(&self.root, &path, flags, Mode::empty(), resolve) {
                Ok(dir) => dir,
                // A directory that may not be read, or that no longer exists, hides nothing that could be opened.
                Err(Errno::ACCESS | Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => continue,
                Err(errno) => return Err(errno.into()),
            };
            let here = rustix::fs::fstat(&dir)?;
            if here.st_dev != device {
                continue;
            }
            for entry in Dir::read_from(&dir)? {
                let entry = entry?;
                let name = entry.file_name();
                if name == c"." || name == c".." {
                    continue;
                }
                self.learn_inode(entry.ino(), here.st_ino, name.to_bytes());
                if matches!(entry.file_type(), FileType::Directory | FileType::Unknown) {
                    pending.push(path.join(OsStr::from_bytes(name.to_bytes())));
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(dir: &std::path::Path) -> OwnedFd {
        rustix::fs::open(dir, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).unwrap()
    }

    #[test]
    fn finds_by_walking_after_a_restart_and_follows_renames() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("a/b")).unwrap();
        std::fs::write(dir.path().join("a/b/file"), b"x").unwrap();
        let kernel = identity(open(&dir.path().join("a/b/file"))).unwrap();
        let locator = Locator::new(open(dir.path()));
        assert_eq!(identity(locator.find(&kernel).unwrap()).unwrap(), kernel);
        std::fs::rename(dir.path().join("a/b"), dir.path().join("c")).unwrap();
        assert_eq!(identity(locator.find(&kernel).unwrap()).unwrap(), kernel);
        std::fs::remove_file(dir.path().join("c/file")).unwrap();
        assert_eq!(locator.find(&kernel).err(), Some(Error::Stale));
    }
}
