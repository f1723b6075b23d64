//! The rules about what is cached how, by the inodes that they were made for, and the places of files below them.
//!
//! The table asks no file system. `export/policy.rs` finds the rules that hold for an inode.

use std::collections::HashMap;
use std::hash::BuildHasher;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Sender;

use foldhash::fast::FixedState;
use forebay_common::lock::{Mutex, RwLock};
use forebay_engine::{CachedObject, Engine, Keep, Mode, Policy, Priority, Streams};

use crate::caches::inode::Inode;
use crate::sys::KernelHandle;

/// The highest number of files whose places are remembered. Further files have the policy of the exported directory
/// until a client looks them up again.
const MOST_FILES: usize = 4_000_000;

/// A rule about a file, or a directory and everything below it. A part that is absent is inherited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PolicySettings {
    /// The rule for keeping clean blocks.
    pub keep: Option<Keep>,
    /// The rank of clean blocks.
    pub priority: Option<Priority>,
    /// The way of streams.
    pub streams: Option<Streams>,
    /// The mode, unless one above uses the cache less.
    pub mode: Option<Mode>,
    /// The time in seconds after which dirty data is destaged.
    pub dirty_seconds: Option<u32>,
    /// The number of the share that files are in.
    pub share: Option<u16>,
}

impl PolicySettings {
    /// Returns the policy of an inode with this rule in a directory with policy `above`.
    pub fn over(self, above: Policy) -> Policy {
        Policy {
            keep: self.keep.unwrap_or(above.keep),
            priority: self.priority.unwrap_or(above.priority),
            streams: self.streams.unwrap_or(above.streams),
            mode: self.mode.unwrap_or_default().max(above.mode),
            dirty_seconds: self.dirty_seconds.unwrap_or(above.dirty_seconds),
            share: self.share.unwrap_or(above.share),
        }
    }
}

/// The directories of files, by the hashes of the files' handles.
#[derive(Debug, Default)]
struct Places {
    files: HashMap<u64, u32, FixedState>,
    dirs: Vec<KernelHandle>,
    numbers: HashMap<u64, u32, FixedState>,
}

/// The rules of one file system.
#[derive(Debug, Default)]
pub(crate) struct Policies {
    /// The number of changes that may have changed the policies of inodes. 0: there was no rule yet.
    generation: AtomicU64,
    rules: RwLock<HashMap<u64, (KernelHandle, PolicySettings), FixedState>>,
    /// The policy that all exported directories have, as its number. Files with it need no place.
    common: AtomicU64,
    places: Mutex<Places>,
    /// Directories whose files got other policies, for the thread that tells the engine.
    pub(crate) moved: Mutex<Option<Sender<KernelHandle>>>,
}

fn hash(kernel: &KernelHandle) -> u64 {
    FixedState::with_seed(kernel.kind as u64).hash_one(kernel.as_slice())
}

impl Policies {
    /// Returns the number of the state in which policies are now; 0 if there was no rule yet.
    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Marks every policy found so far as outdated.
    pub(crate) fn outdate(&self) {
        self.generation.fetch_add(1, Ordering::AcqRel);
    }

    /// Replaces all rules.
    pub(crate) fn replace(&self, rules: impl IntoIterator<Item = (KernelHandle, PolicySettings)>) {
        let new = rules.into_iter().map(|(kernel, rule)| (hash(&kernel), (kernel, rule))).collect();
        let mut rules = self.rules.write();
        if *rules != new {
            *rules = new;
            self.outdate();
        }
    }

    /// Sets the policy that all exported directories have; `None` if they differ.
    pub(crate) fn set_common(&self, policy: Option<Policy>) {
        self.common.store(policy.map_or(u64::MAX, Policy::to_bits), Ordering::Relaxed);
    }

    /// Returns the rule about an inode itself.
    pub(crate) fn rule(&self, kernel: &KernelHandle) -> Option<PolicySettings> {
        let rules = self.rules.read();
        rules.get(&hash(kernel)).filter(|(about, _)| about == kernel).map(|(_, rule)| *rule)
    }

    /// Returns the inodes that rules were made for.
    pub(crate) fn roots(&self) -> Vec<KernelHandle> {
        self.rules.read().values().map(|(kernel, _)| *kernel).collect()
    }

    /// Remembers the directory of a file. `policy` is that of the directory.
    pub(crate) fn placed(&self, file: &KernelHandle, dir: &KernelHandle, policy: Policy) {
        let mut places = self.places.lock();
        let Places { files, dirs, numbers } = &mut *places;
        let file = hash(file);
        if policy.to_bits() == self.common.load(Ordering::Relaxed) {
            files.remove(&file);
        } else if files.len() < MOST_FILES || files.contains_key(&file) {
            let number = *numbers.entry(hash(dir)).or_insert_with(|| {
                dirs.push(*dir);
                dirs.len() as u32 - 1
            });
            files.insert(file, number);
        }
    }

    /// Returns the directory of a file, if its policy may be another one than that of the exported directory.
    pub(crate) fn dir_of(&self, file: &KernelHandle) -> Option<KernelHandle> {
        let places = self.places.lock();
        let number = *places.files.get(&hash(file))?;
        places.dirs.get(number as usize).copied()
    }

    /// Gives the engine's object of an inode the policy that was found for the inode. The policy may be found again
    /// meanwhile; the later one counts.
    pub(crate) fn apply(&self, engine: &Engine, inode: &Inode, cached: &Arc<CachedObject>) {
        let generation = self.generation();
        while let Some(policy) = inode.link.policy(generation) {
            engine.set_policy(cached, policy);
            if inode.link.policy(generation) == Some(policy) {
                return;
            }
        }
    }

    /// Forgets the place of a file that was removed.
    pub(crate) fn forget(&self, file: &KernelHandle) {
        if self.generation() > 0 {
            self.places.lock().files.remove(&hash(file));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn handle(number: u8) -> KernelHandle {
        KernelHandle::new(1, &[number; 8]).unwrap()
    }

    #[test]
    fn files_with_the_common_policy_need_no_place() {
        let policies = Policies::default();
        let pinned = Policy { keep: Keep::Pin, ..Policy::default() };
        policies.set_common(Some(Policy::default()));
        policies.placed(&handle(1), &handle(9), Policy::default());
        assert_eq!(policies.dir_of(&handle(1)), None);
        policies.placed(&handle(1), &handle(9), pinned);
        policies.placed(&handle(2), &handle(9), pinned);
        policies.placed(&handle(2), &handle(8), pinned);
        assert_eq!([1, 2].map(|file| policies.dir_of(&handle(file))), [Some(handle(9)), Some(handle(8))]);
        policies.placed(&handle(1), &handle(7), Policy::default());
        assert_eq!(policies.dir_of(&handle(1)), None, "it has moved to where it needs none");
    }

    #[test]
    fn a_rule_counts_for_its_own_inode_and_leaves_the_rest_as_it_is() {
        let policies = Policies::default();
        assert_eq!(policies.generation(), 0);
        let never = PolicySettings { keep: Some(Keep::Never), ..PolicySettings::default() };
        policies.replace([(handle(1), never)]);
        assert_eq!((policies.rule(&handle(1)), policies.rule(&handle(2))), (Some(never), None));
        let generation = policies.generation();
        policies.replace([(handle(1), never)]);
        assert_eq!(policies.generation(), generation, "nothing changed");
        let above = Policy { streams: Streams::Cache, mode: Mode::WriteAround, ..Policy::default() };
        assert_eq!(never.over(above), Policy { keep: Keep::Never, ..above });
        let through = PolicySettings { mode: Some(Mode::WriteThrough), ..never };
        assert_eq!(through.over(above).mode, Mode::WriteAround, "the mode above uses the cache less");
        assert_eq!(through.over(Policy::default()).mode, Mode::WriteThrough);
        let high = Policy { priority: Priority::High, ..above };
        assert_eq!(never.over(high).priority, Priority::High, "inherited");
        let low = PolicySettings { priority: Some(Priority::Low), ..never };
        assert_eq!(low.over(high).priority, Priority::Low, "the nearest rule counts");
    }
}
