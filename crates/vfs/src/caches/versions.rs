//! Versions of inodes: they show if an inode changed through this server since a fact about it was cached, also for
//! inodes that are not open. A version is a pair of counters, of changes begun and of changes ended. Inodes whose
//! handles hash alike share it.

use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::caches::attr_cache::AttrCache;
use crate::caches::attr_cache::record::CachedAttr;
use crate::sys::KernelHandle;

/// The number of counters per file system. Inodes that share a counter affect each other: a change of one makes cached
/// facts about the rest look outdated.
const SLOTS: usize = 16_384;
const _: () = assert!(SLOTS <= 1 << u16::BITS);

#[derive(Debug, Default)]
struct Slot {
    begun: AtomicU64,
    ended: AtomicU64,
}

/// A state of the inodes that share counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Version {
    place: u16,
    ended: u64,
}

/// The counters of one file system, and the cached facts about its inodes that hold while the counters stand still.
#[derive(Clone, Debug)]
pub(crate) struct Versions {
    slots: Arc<[Slot]>,
    hasher: foldhash::fast::RandomState,
    known: Arc<AttrCache>,
    /// Number of the file system among those served.
    filesystem: u16,
}

impl Versions {
    /// Creates the counters. A change of an inode removes its entry of file system number `filesystem` from `known`.
    pub(crate) fn new(known: Arc<AttrCache>, filesystem: u16) -> Self {
        let slots = (0..SLOTS).map(|_| Slot::default()).collect();
        Versions { slots, hasher: Default::default(), known, filesystem }
    }

    /// Returns the slot of an inode. Several inodes may share a slot.
    fn place(&self, kernel: &KernelHandle) -> u16 {
        let mut hasher = self.hasher.build_hasher();
        hasher.write(kernel.as_slice());
        (hasher.finish() % SLOTS as u64) as u16
    }

    /// Returns the version now, which differs after every change. Returns `None` while a change is in progress.
    pub(crate) fn of(&self, kernel: &KernelHandle) -> Option<Version> {
        let place = self.place(kernel);
        let slot = &self.slots[usize::from(place)];
        let ended = slot.ended.load(Ordering::Acquire);
        (slot.begun.load(Ordering::Acquire) == ended).then_some(Version { place, ended })
    }

    /// Returns true if nothing has changed since this version, and no change is in progress.
    pub(crate) fn holds(&self, version: Version) -> bool {
        self.slots[usize::from(version.place)].begun.load(Ordering::Acquire) == version.ended
    }

    /// Begins a change, which ends when the result is dropped.
    pub(crate) fn change(&self, kernel: &KernelHandle) -> Changing<'_> {
        let slot = &self.slots[usize::from(self.place(kernel))];
        slot.begun.fetch_add(1, Ordering::AcqRel);
        // After the counter: a thread that caches the inode asks for the version under the lock that this takes.
        self.known.forget(self.filesystem, kernel);
        Changing(slot)
    }

    /// Makes all inodes look changed, since any of them may be.
    pub(crate) fn change_all(&self) {
        for slot in self.slots.iter() {
            slot.begun.fetch_add(1, Ordering::AcqRel);
        }
        self.known.clear();
        for slot in self.slots.iter() {
            slot.ended.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Returns the cached facts about an inode that is not open.
    pub(crate) fn known(&self, kernel: &KernelHandle) -> Option<CachedAttr> {
        self.known.get(self.filesystem, kernel)
    }

    /// Forgets the cached facts about an inode.
    pub(crate) fn forget(&self, kernel: &KernelHandle) {
        self.known.forget(self.filesystem, kernel);
    }

    /// Caches facts that were read under `version`.
    pub(crate) fn learn(&self, kernel: &KernelHandle, known: CachedAttr, version: Version) {
        self.known.learn(self.filesystem, kernel, known, || self.holds(version));
    }
}

/// A change in progress.
pub(crate) struct Changing<'a>(&'a Slot);

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        self.0.ended.fetch_add(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_shows_while_it_lasts_and_ever_after() {
        let versions = Versions::new(Arc::new(AttrCache::new(1 << 20)), 0);
        let kernel = KernelHandle { kind: 1, len: 1, bytes: [7; crate::sys::KERNEL_HANDLE_MAX] };
        let before = versions.of(&kernel);
        assert!(before.is_some());
        let first = versions.change(&kernel);
        let second = versions.change(&kernel);
        assert_eq!(versions.of(&kernel), None);
        drop(first);
        assert_eq!(versions.of(&kernel), None, "the other is still under way");
        drop(second);
        assert!(versions.of(&kernel).is_some_and(|after| Some(after) != before));
        assert!(!versions.holds(before.unwrap()) && versions.holds(versions.of(&kernel).unwrap()));
    }
}
