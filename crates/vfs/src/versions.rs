//! Whether an object changed through this server since something about it was remembered, also for objects that are
//! not in the table: counters of changes begun and ended, shared by the objects whose handles hash alike.

use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::sys::KernelHandle;

/// Objects that share counters: a change of one makes what is remembered of the others look changed too.
const SLOTS: usize = 16_384;

#[derive(Debug, Default)]
struct Slot {
    begun: AtomicU64,
    ended: AtomicU64,
}

/// The counters of one file system.
#[derive(Clone, Debug)]
pub(crate) struct Versions {
    slots: Arc<[Slot]>,
    hasher: foldhash::fast::RandomState,
}

impl Versions {
    pub(crate) fn new() -> Self {
        Versions { slots: (0..SLOTS).map(|_| Slot::default()).collect(), hasher: Default::default() }
    }

    fn slot(&self, kernel: &KernelHandle) -> &Slot {
        let mut hasher = self.hasher.build_hasher();
        hasher.write(kernel.as_slice());
        &self.slots[hasher.finish() as usize % SLOTS]
    }

    /// A number that is another after every change; `None` while one is under way.
    pub(crate) fn of(&self, kernel: &KernelHandle) -> Option<u64> {
        let slot = self.slot(kernel);
        let ended = slot.ended.load(Ordering::Acquire);
        (slot.begun.load(Ordering::Acquire) == ended).then_some(ended)
    }

    /// A change begins; it ends when the result is dropped.
    pub(crate) fn change(&self, kernel: &KernelHandle) -> Changing<'_> {
        let slot = self.slot(kernel);
        slot.begun.fetch_add(1, Ordering::AcqRel);
        Changing(slot)
    }
}

/// A change under way.
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
        let versions = Versions::new();
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
    }
}
