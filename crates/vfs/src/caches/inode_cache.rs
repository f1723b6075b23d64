//! The inode cache: the inodes in use, found by kernel handle.
//!
//! Eviction is CLOCK per shard: a use sets a mark, and the hand clears marks. It evicts the first inode that has no
//! mark, that no request is using, and that has no uncommitted data. Closing the descriptor of uncommitted data would
//! lose a write error that the kernel has yet to report.

use std::collections::HashMap;
use std::hash::BuildHasher;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use forebay_common::lock::Mutex;

use crate::caches::budget::Budget;
use crate::caches::inode::Inode;
use crate::sys::KernelHandle;

pub(crate) const SHARDS: usize = 64;
/// The number of inodes that one insertion may look at, so that it stays short.
const HAND_STEPS: usize = 32;

/// The key of an inode within its file system.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Key(KernelHandle);

impl std::hash::Hash for Key {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        state.write(self.0.as_slice());
    }
}

#[derive(Default)]
struct Shard {
    by_key: HashMap<Key, usize, foldhash::fast::FixedState>,
    slots: Vec<Arc<Inode>>,
    hand: usize,
}

/// All known inodes of one file system.
pub(crate) struct InodeCache {
    shards: Box<[Mutex<Shard>]>,
    hasher: foldhash::fast::RandomState,
    budget: Budget,
}

impl InodeCache {
    /// Returns an empty cache. Inodes count against `budget` for their descriptors.
    pub(crate) fn new(budget: Budget) -> Self {
        InodeCache {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            hasher: foldhash::fast::RandomState::default(),
            budget,
        }
    }

    fn shard(&self, key: &Key) -> &Mutex<Shard> {
        &self.shards[self.hasher.hash_one(key) as usize % SHARDS]
    }

    /// Returns the inode with this handle, if it is known.
    pub(crate) fn get(&self, kernel: &KernelHandle) -> Option<Arc<Inode>> {
        let key = Key(*kernel);
        let shard = self.shard(&key).lock();
        let object = shard.slots[*shard.by_key.get(&key)?].clone();
        object.used.store(true, Ordering::Relaxed);
        Some(object)
    }

    /// Adds an inode, or returns the inode that is already known under its handle. Calls `entering` before the inode
    /// can be found, under the lock: no inode with its handle changes through the server meanwhile. Calls `leaving`
    /// with each inode that is evicted for it.
    pub(crate) fn insert(
        &self,
        object: Inode,
        entering: impl FnOnce(&Inode),
        leaving: impl Fn(&Inode),
    ) -> Arc<Inode> {
        let key = Key(object.kernel);
        let mut evicted = smallvec::SmallVec::<[Arc<Inode>; 4]>::new();
        let mut shard = self.shard(&key).lock();
        if let Some(&slot) = shard.by_key.get(&key) {
            return shard.slots[slot].clone();
        }
        while self.budget.exceeded() && evicted.len() < 4 {
            match shard.evict() {
                Some(object) => evicted.push(object),
                None => break,
            }
        }
        entering(&object);
        let object = Arc::new(object);
        let slot = shard.slots.len();
        shard.slots.push(object.clone());
        shard.by_key.insert(key, slot);
        drop(shard);
        evicted.iter().for_each(|object| leaving(object));
        // Descriptors are closed here, outside the lock: the last close of a file can be slow.
        drop(evicted);
        object
    }

    /// Forgets an inode whose last link is gone, so that its space is freed.
    pub(crate) fn forget(&self, object: &Inode) {
        let key = Key(object.kernel);
        let mut shard = self.shard(&key).lock();
        let removed = shard.by_key.get(&key).copied().map(|slot| shard.remove(slot));
        drop(shard);
        drop(removed);
    }

    /// Asserts the invariants of the cache.
    #[cfg(test)]
    pub(crate) fn check(&self) {
        self.shards.iter().for_each(|shard| shard.lock().check());
    }

    /// Returns every known inode.
    pub(crate) fn all(&self) -> Vec<Arc<Inode>> {
        (0..SHARDS).flat_map(|shard| self.in_shard(shard)).collect()
    }

    /// Returns the known inodes of one of the [`SHARDS`] parts.
    pub(crate) fn in_shard(&self, shard: usize) -> Vec<Arc<Inode>> {
        self.shards[shard].lock().slots.clone()
    }
}

impl Shard {
    /// Asserts that the index and the slots name each other.
    #[cfg(test)]
    fn check(&self) {
        assert_eq!(self.by_key.len(), self.slots.len());
        for (slot, object) in self.slots.iter().enumerate() {
            assert_eq!(self.by_key.get(&Key(object.kernel)), Some(&slot));
            object.check();
        }
    }

    fn remove(&mut self, slot: usize) -> Arc<Inode> {
        let object = self.slots.swap_remove(slot);
        self.by_key.remove(&Key(object.kernel));
        if let Some(moved) = self.slots.get(slot) {
            self.by_key.insert(Key(moved.kernel), slot);
        }
        object
    }

    fn evict(&mut self) -> Option<Arc<Inode>> {
        for _ in 0..HAND_STEPS.min(self.slots.len() * 2) {
            self.hand = if self.hand + 1 < self.slots.len() { self.hand + 1 } else { 0 };
            let object = &self.slots[self.hand];
            let spared = object.used.swap(false, Ordering::Relaxed);
            if !spared && Arc::strong_count(object) == 1 && object.uncommitted.writes() == 0 {
                return Some(self.remove(self.hand));
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use super::*;
    use crate::caches::versions::Versions;
    use crate::sys::KERNEL_HANDLE_MAX;
    use rustix::fs::{Mode, OFlags};

    static VERSIONS: LazyLock<Versions> =
        LazyLock::new(|| Versions::new(Budget::new(1, 0).known().clone(), 0));

    fn object(n: u32, budget: &Budget) -> Inode {
        let fd = rustix::fs::open("/", OFlags::PATH, Mode::empty()).unwrap();
        let mut kernel = KernelHandle { kind: 1, len: 4, bytes: [0; KERNEL_HANDLE_MAX] };
        kernel.bytes[..4].copy_from_slice(&n.to_le_bytes());
        let attr = crate::attr::Attr::from(&rustix::fs::fstat(&fd).unwrap());
        Inode::new(fd, kernel, &attr, budget, &VERSIONS, &Arc::default())
    }

    #[test]
    fn one_object_per_handle() {
        let budget = Budget::new(100, 1 << 20);
        let table = InodeCache::new(budget.clone());
        let first = table.insert(object(1, &budget), |_| (), |_| ());
        assert!(Arc::ptr_eq(&first, &table.insert(object(1, &budget), |_| (), |_| ())));
        assert!(Arc::ptr_eq(&first, &table.get(&first.kernel).unwrap()));
        table.forget(&first);
        table.check();
        assert!(table.get(&first.kernel).is_none());
    }

    #[test]
    fn descriptors_stay_near_the_budget_and_unstable_objects_stay() {
        let budget = Budget::new(200, 1 << 20);
        let table = InodeCache::new(budget.clone());
        let unstable = table.insert(object(0, &budget), |_| (), |_| ());
        unstable.uncommitted.wrote();
        let kernel = unstable.kernel;
        drop(unstable);
        for n in 1..10_000 {
            table.insert(object(n, &budget), |_| (), |_| ());
        }
        table.check();
        assert!(budget.open() <= 200 + 2 * SHARDS, "{} descriptors open", budget.open());
        assert!(table.get(&kernel).is_some());
    }

    #[test]
    fn every_remaining_key_finds_its_own_object() {
        let budget = Budget::new(10_000, 1 << 20);
        let table = InodeCache::new(budget.clone());
        let objects: Vec<_> = (0..2000).map(|n| table.insert(object(n, &budget), |_| (), |_| ())).collect();
        for object in objects.iter().step_by(3) {
            table.forget(object);
        }
        table.check();
        for (n, object) in objects.iter().enumerate() {
            let found = table.get(&object.kernel);
            assert_eq!(found.is_some(), n % 3 != 0);
            assert!(found.is_none_or(|found| Arc::ptr_eq(&found, object)));
        }
    }
}
