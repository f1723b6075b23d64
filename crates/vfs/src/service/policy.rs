//! The rules about what is cached how, for an administrator: the inode that a rule is about, and the rules that hold
//! for a path. A walk tells the engine what changed for the files below a rule.

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Weak};

use forebay_engine::Policy;
use forebay_engine::io::Key;
use forebay_runtime::block_on;
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;

use crate::caches::inode::Inode;
use crate::caches::link::{key, parse_key};
use crate::caches::policies::PolicySettings;
use crate::error::{Error, Result};
use crate::export::Export;
use crate::export::filesystem::Filesystem;
use crate::export::vfs::Vfs;
use crate::service::inspect::{InspectError, WalkProgress, open};
use crate::service::shown_path::host_path;
use crate::sys::KernelHandle;

/// A file or directory that a rule is about. It stays the one that it is over renames and restarts.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PolicyRoot(Key);

impl std::fmt::Display for PolicyRoot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", self.0)
    }
}

impl FromStr for PolicyRoot {
    type Err = ();

    fn from_str(text: &str) -> std::result::Result<Self, ()> {
        let digits = text.as_bytes().chunks(2).map(std::str::from_utf8);
        let bytes: Option<Vec<u8>> = digits.map(|digits| u8::from_str_radix(digits.ok()?, 16).ok()).collect();
        let key = bytes.and_then(|bytes| Key::new(&bytes)).ok_or(())?;
        parse_key(&key).map(|_| PolicyRoot(key)).ok_or(())
    }
}

impl Vfs {
    /// Returns the file or directory at `path`, and those above it in the file system, the nearest first. `path` is
    /// absolute, without symbolic links.
    ///
    /// # Errors
    /// The path is not served, leads to no file or directory, or there is no cache.
    pub fn policy_roots(&self, path: &Path) -> std::result::Result<Vec<PolicyRoot>, InspectError> {
        let shown = || path.display().to_string();
        let (export, rest) = self.export_of(path).ok_or_else(|| InspectError::NotServed(shown()))?;
        let number = export.fs.linked().ok_or(InspectError::NoCache)?.number();
        let roots = || -> Result<Vec<PolicyRoot>> {
            let fs = &export.fs;
            let (object, attr) = fs.adopt(open(export.root.path(), &rest)?)?;
            let mut found = Vec::new();
            let dir = match attr.kind {
                FileType::Directory => object,
                FileType::RegularFile => {
                    found.push(PolicyRoot(key(number, &object.kernel)));
                    fs.adopt(open(export.root.path(), rest.parent().unwrap_or(Path::new("")))?)?.0
                }
                _ => return Err(Error::INVALID),
            };
            fs.above(&dir, |kernel| found.push(PolicyRoot(key(number, &kernel))))?;
            Ok(found)
        };
        roots().map_err(|error| InspectError::System(shown(), error))
    }

    /// Returns the exported directory as the root of a rule; `None` without a cache.
    pub fn export_policy_root(&self, export: &Export) -> Option<PolicyRoot> {
        Some(PolicyRoot(key(export.fs.linked()?.number(), &export.root.kernel)))
    }

    /// Returns the path by which this host knows the root of a rule. `known` is its last known path.
    ///
    /// # Errors
    /// [`Error::Stale`]: it does not exist any more, or its file system is not served.
    pub fn policy_path(&self, root: &PolicyRoot, known: &Path) -> Result<PathBuf> {
        let (fs, kernel) = self.policy_place(root).ok_or(Error::Stale)?;
        let object = fs.resolve(&kernel, true)?;
        object.raw_attr()?;
        // The kernel does not know the path of each file that was opened by its handle.
        match object.is_dir() {
            true => host_path(object.path()).ok_or(Error::Stale),
            false => Ok(known.to_owned()),
        }
    }

    /// Returns the file system and the handle of the root of a rule; `None` if the file system is not served.
    fn policy_place(&self, root: &PolicyRoot) -> Option<(&Arc<Filesystem>, KernelHandle)> {
        let (number, kernel) = parse_key(&root.0)?;
        let is_it = |fs: &Filesystem| fs.linked().is_some_and(|linked| linked.number() == number);
        self.filesystems().iter().find(|fs| is_it(fs)).map(|fs| (fs, kernel))
    }

    /// Replaces all rules. The engine learns what that means for files that nobody uses by [`Vfs::apply_policies`].
    pub fn set_policies(&self, rules: &[(PolicyRoot, PolicySettings)]) {
        for fs in self.filesystems() {
            let mine = rules.iter().filter_map(|(root, rule)| {
                let (other, kernel) = self.policy_place(root)?;
                Arc::ptr_eq(other, fs).then_some((kernel, *rule))
            });
            fs.policies.replace(mine);
            let mut policies = self
                .exports()
                .iter()
                .filter(|export| Arc::ptr_eq(&export.fs, fs))
                .map(|export| fs.dir_policy(&export.root));
            let first = policies.next();
            fs.policies.set_common(first.filter(|first| policies.all(|policy| policy == *first)));
        }
    }

    /// Has a thread tell the engine the policies of all files at and below `root`.
    pub fn queue_policies(&self, root: &PolicyRoot) {
        if let Some((fs, kernel)) = self.policy_place(root)
            && let Some(queue) = &*fs.policies.moved.lock()
        {
            // Without its thread the server is about to stop.
            let _ = queue.send(kernel);
        }
    }

    /// Tells the engine the policies of all files at and below `root`. Takes as long as a walk over them. Until the
    /// clean segments are loaded, a thread does so later.
    ///
    /// # Errors
    /// A directory cannot be read. The files that were not met get their policies when clients use them.
    pub fn apply_policies(&self, root: &PolicyRoot, progress: &WalkProgress) -> Result<()> {
        if self.engine().is_some_and(|engine| engine.warming().is_some()) {
            self.queue_policies(root);
            return Ok(());
        }
        self.policy_place(root).map_or(Ok(()), |(fs, kernel)| apply_below(fs, &kernel, progress))
    }

    /// Starts the threads that tell the engine the policies of files below the rules, now and after renames. Called
    /// once, after [`Vfs::set_policies`].
    ///
    /// # Errors
    /// A thread cannot be started.
    pub fn start_policies(&self) -> std::io::Result<()> {
        for fs in self.filesystems().iter().filter(|fs| fs.linked().is_some()) {
            let (send, receive) = channel();
            for root in fs.policies.roots() {
                // The receiver is still here.
                let _ = send.send(root);
            }
            *fs.policies.moved.lock() = Some(send);
            let fs = Arc::downgrade(fs);
            std::thread::Builder::new().name("forebay-policy".into()).spawn(move || follow(&fs, &receive))?;
        }
        Ok(())
    }
}

/// Tells the engine the policies below each directory that arrives.
fn follow(fs: &Weak<Filesystem>, moved: &Receiver<KernelHandle>) {
    for root in moved {
        let Some(fs) = fs.upgrade() else { return };
        if let Some(linked) = fs.linked() {
            // Before that, objects of clean blocks are not all in the index.
            block_on(linked.cache.engine.warmed());
        }
        if let Err(error) = apply_below(&fs, &root, &WalkProgress::default())
            && error != Error::Stale
        {
            tracing::warn!("policies are not in force yet for all files that nobody uses: {error}");
        }
    }
}

/// Tells the engine the policy of a file, or of each file below a directory.
fn apply_below(fs: &Arc<Filesystem>, root: &KernelHandle, progress: &WalkProgress) -> Result<()> {
    let object = fs.resolve(root, true)?;
    if object.is_dir() {
        return visit(fs, &object, progress);
    }
    // The directory of a file is known from the walk that found the rule, or else the rule counts alone.
    let dir = fs.policies.dir_of(root).and_then(|dir| fs.resolve(&dir, true).ok());
    let above = dir.map_or_else(Policy::default, |dir| fs.dir_policy(&dir));
    fs.tell_policy(root, fs.policies.rule(root).map_or(above, |rule| rule.over(above)));
    Ok(())
}

/// Records the place of each file below a directory, and tells the engine its policy.
fn visit(fs: &Arc<Filesystem>, dir: &Inode, progress: &WalkProgress) -> Result<()> {
    let policy = fs.dir_policy(dir);
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let entries = rustix::fs::Dir::new(rustix::fs::openat(dir.path(), c".", flags, Mode::empty())?)?;
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name();
        if !progress.step() {
            return Err(Error::Os(Errno::CANCELED));
        }
        if name == c"." || name == c".." || fs.is_private(&dir.kernel, name.to_bytes()) {
            continue;
        }
        let visited = match entry.file_type() {
            FileType::RegularFile => fs.handle_at(dir, name).map(|file| {
                fs.tell_policy(&file, fs.policies.rule(&file).map_or(policy, |rule| rule.over(policy)));
            }),
            FileType::Directory | FileType::Unknown => match fs.child(dir, name.to_bytes(), false) {
                Ok((child, _)) if child.is_dir() => visit(fs, &child, progress),
                Ok((child, _)) => {
                    fs.tell_policy(&child.kernel, policy);
                    Ok(())
                }
                Err(error) => Err(error),
            },
            _ => Ok(()),
        };
        match visited {
            // Removed meanwhile, or another file system is mounted there.
            Err(Error::Os(Errno::NOENT | Errno::XDEV | Errno::ACCESS) | Error::Stale) => {}
            visited => visited?,
        }
    }
    Ok(())
}
