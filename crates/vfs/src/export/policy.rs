//! The policy of an inode: the rules about the inode itself and about all directories above it, the nearest first.
//!
//! A directory finds the directories above it by "..", which needs no disk. A file does not know its directory. A walk
//! below each rule, and later every name that leads to a file, record where the file is. A file without a record has
//! the policy of the exported directory.
//!
//! Each inode keeps the policy that was found, with the generation of the rules. A rename of a directory between two
//! policies, and a change of the rules, begin a new generation.

use std::os::fd::OwnedFd;

use forebay_engine::Policy;
use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags};

use crate::caches::inode::Inode;
use crate::error::Result;
use crate::export::Export;
use crate::export::filesystem::Filesystem;
use crate::sys::KernelHandle;
use crate::wait::Wait;

impl Export {
    /// Returns the policy of an inode that is reached through this export. Returns `None` if it has to be found and the
    /// caller may not wait. The engine knows the policy then.
    pub(crate) fn policy(&self, inode: &Inode, wait: Wait) -> Option<Policy> {
        let generation = self.fs.policies.generation();
        if let Some(policy) = inode.link.policy(generation) {
            return Some(policy);
        }
        wait.allowed().then(|| {
            let policy = self.fs.find_policy(inode, &self.root);
            inode.link.set_policy(generation, policy);
            if let (Some(cached), Some(linked)) = (inode.link.get(), self.fs.linked()) {
                linked.cache.engine.set_policy(cached, policy);
            }
            policy
        })
    }
}

impl Filesystem {
    /// Returns the policy of an inode from the rules. A file without a known directory gets that of `root`.
    fn find_policy(&self, inode: &Inode, root: &Inode) -> Policy {
        if inode.is_dir() {
            return self.dir_policy(inode);
        }
        let dir = self.policies.dir_of(&inode.kernel).and_then(|dir| self.resolve(&dir, true).ok());
        let above = self.dir_policy(dir.as_deref().unwrap_or(root));
        self.policies.rule(&inode.kernel).map_or(above, |rule| rule.over(above))
    }

    /// Returns the policy of a directory.
    pub(crate) fn dir_policy(&self, dir: &Inode) -> Policy {
        let generation = self.policies.generation();
        if let Some(policy) = dir.link.policy(generation) {
            return policy;
        }
        let mut rules = Vec::new();
        // A directory that cannot be opened ends the way up: the rules below it hold.
        let _ = self.above(dir, |kernel| rules.extend(self.policies.rule(&kernel)));
        let policy = rules.into_iter().rev().fold(Policy::default(), |above, rule| rule.over(above));
        dir.link.set_policy(generation, policy);
        policy
    }

    /// Calls `each` with a directory and every directory above it in the file system. With the kernel's handles it asks
    /// no file system that may not answer.
    pub(crate) fn above(&self, dir: &Inode, mut each: impl FnMut(KernelHandle)) -> Result<()> {
        let mut at = rustix::fs::openat(dir.path(), c".", OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
        loop {
            let (_, here) = place(&at)?;
            each(self.handle_of(&at)?);
            let up = rustix::fs::openat(&at, c"..", OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
            let (device, above) = place(&up)?;
            if device != self.device || above == here {
                return Ok(());
            }
            at = up;
        }
    }

    /// Notes that a file was seen in a directory, for its policy.
    pub(crate) fn placed(&self, file: &KernelHandle, dir: &Inode) {
        if self.policies.generation() > 0 {
            self.policies.placed(file, &dir.kernel, self.dir_policy(dir));
        }
    }

    /// Finds the policies again after `moved` was renamed from one directory to another. Those of files below a
    /// directory follow in the background.
    pub(crate) fn moved(&self, moved: &KernelHandle, from: &Inode, to: &Inode) {
        if self.policies.generation() == 0 || from.kernel == to.kernel {
            return;
        }
        let (before, after) = (self.dir_policy(from), self.dir_policy(to));
        if self.is_known_file(moved) {
            self.policies.placed(moved, &to.kernel, after);
            let policy = self.policies.rule(moved).map_or(after, |rule| rule.over(after));
            if let Some(inode) = self.inodes.get(moved) {
                inode.link.set_policy(self.policies.generation(), policy);
            }
            self.tell_policy(moved, policy);
        } else if before != after {
            self.policies.outdate();
            if let Some(queue) = &*self.policies.moved.lock() {
                // Without its thread the server is about to stop.
                let _ = queue.send(*moved);
            }
        }
    }

    /// Tells the engine the policy of a file, if the engine has an object of it.
    pub(crate) fn tell_policy(&self, file: &KernelHandle, policy: Policy) {
        let Some(linked) = self.linked() else { return };
        if let Some(cached) = linked.cache.engine.known(&linked.key(file)) {
            linked.cache.engine.set_policy(&cached, policy);
        }
    }
}

/// Returns the device and the number of an open inode. They never change, so the kernel's copy will do.
fn place(fd: &OwnedFd) -> Result<(u64, u64)> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let stat = rustix::fs::statx(fd, c"", flags, StatxFlags::INO)?;
    Ok((rustix::fs::makedev(stat.stx_dev_major, stat.stx_dev_minor), stat.stx_ino))
}
