//! Shares: the objects of one rule together keep at least, and at most a number of blocks on the cache devices.

use std::sync::Arc;

use forebay_common::lock::atomic::{AtomicU64, Ordering};
use forebay_common::lock::{Mutex, RwLock};

/// The share of some objects. An object is in at most one share.
#[derive(Debug)]
pub(crate) struct Share {
    /// Blocks that eviction spares.
    min: AtomicU64,
    /// Blocks beyond which clean blocks are dropped.
    max: AtomicU64,
    /// Blocks of the share's objects that the index has on the devices.
    held: AtomicU64,
    /// The object, by number, and the leaf behind which the next sweep begins.
    pub(crate) hand: Mutex<(u64, u64)>,
}

impl Default for Share {
    fn default() -> Self {
        let [min, held] = [AtomicU64::new(0), AtomicU64::new(0)];
        Share { min, max: AtomicU64::new(u64::MAX), held, hand: Mutex::default() }
    }
}

impl Share {
    /// Sets the limits in blocks.
    pub(crate) fn set(&self, min: u64, max: u64) {
        self.min.store(min, Ordering::Relaxed);
        self.max.store(max, Ordering::Relaxed);
    }

    /// Counts blocks that the index has on the devices now.
    pub(crate) fn count(&self, blocks: u64) {
        self.held.fetch_add(blocks, Ordering::Relaxed);
    }

    /// Uncounts blocks that the index does not have on the devices any more.
    pub(crate) fn uncount(&self, blocks: u64) {
        self.held.fetch_sub(blocks, Ordering::Relaxed);
    }

    /// Returns the number of blocks on the devices.
    pub(crate) fn held(&self) -> u64 {
        self.held.load(Ordering::Relaxed)
    }

    pub(crate) fn max(&self) -> u64 {
        self.max.load(Ordering::Relaxed)
    }

    /// Returns true if there are more blocks than the share may have.
    pub(crate) fn is_over(&self) -> bool {
        self.held() > self.max()
    }

    /// Returns true if there are no more blocks than the share keeps against others.
    pub(crate) fn is_protected(&self) -> bool {
        self.held() <= self.min.load(Ordering::Relaxed)
    }

    /// Returns the number of blocks that the share keeps against others.
    fn protected(&self) -> u64 {
        self.held().min(self.min.load(Ordering::Relaxed))
    }
}

/// All shares. The share of number 1 is the first; an object with number 0 is in none.
#[derive(Debug, Default)]
pub(crate) struct Shares {
    all: RwLock<Vec<Arc<Share>>>,
}

impl Shares {
    /// Returns the share of a number. A share without limits is made if the number is new.
    pub(crate) fn get(&self, number: u16) -> Option<Arc<Share>> {
        let at = usize::from(number).checked_sub(1)?;
        if let Some(share) = self.all.read().get(at) {
            return Some(share.clone());
        }
        let mut all = self.all.write();
        while all.len() <= at {
            all.push(Arc::default());
        }
        Some(all[at].clone())
    }

    /// Returns the shares with their numbers.
    pub(crate) fn all(&self) -> Vec<(u16, Arc<Share>)> {
        (1..).zip(self.all.read().iter().cloned()).collect()
    }

    /// Returns true if some share has a limit on its blocks.
    pub(crate) fn any_limited(&self) -> bool {
        self.all.read().iter().any(|share| share.max() < u64::MAX)
    }

    /// Returns the number of blocks that all shares keep against others.
    pub(crate) fn protected(&self) -> u64 {
        self.all.read().iter().map(|share| share.protected()).sum()
    }
}
