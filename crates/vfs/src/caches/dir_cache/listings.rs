//! The memory of all listings: which listing leaves when another one needs room.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use forebay_common::lock::Mutex;

use super::{DirCache, Tier};
use crate::sys::KernelHandle;

/// All listings in memory: S3-FIFO over directories (Yang et al., SOSP 2023). A listing that was asked for once waits
/// in a short queue and leaves from there. So a walk over a large tree does not displace listings that are asked for
/// again and again.
#[derive(Debug)]
pub struct Listings {
    limit: usize,
    pub(super) entries: AtomicUsize,
    pub(super) new: AtomicUsize,
    proven: AtomicUsize,
    queues: Mutex<Queues>,
    /// The number of pages of listings that were answered from memory alone. `misses` counts the pages that were not.
    pub hits: AtomicU64,
    /// See [`Listings::hits`].
    pub misses: AtomicU64,
}

#[derive(Debug, Default)]
struct Queues {
    new: VecDeque<Weak<DirCache>>,
    proven: VecDeque<Weak<DirCache>>,
    /// Directories whose listings left the short queue last.
    ghosts: VecDeque<KernelHandle>,
    /// The length of the queues at which the entries of dropped listings are removed.
    sweep_at: usize,
}

/// When memory is full, listings asked for once leave first if they take more than one in this number of bytes.
const NEW_SHARE: usize = 10;
const GHOSTS: usize = 1024;
/// The number of listings that are examined for room before a new listing goes on without room.
const STEPS: usize = 4096;
const SWEEP: usize = 1024;

impl Listings {
    /// Creates the directory cache; the listings of all directories may take `limit` bytes.
    pub(crate) fn new(limit: usize) -> Self {
        let none = || AtomicU64::new(0);
        let [entries, new, proven] = std::array::from_fn(|_| AtomicUsize::new(0));
        Listings { limit, entries, new, proven, queues: Mutex::default(), hits: none(), misses: none() }
    }

    /// Entries of all of them.
    pub fn entries(&self) -> usize {
        self.entries.load(Ordering::Relaxed)
    }

    /// Returns the bytes that the listings take.
    pub fn bytes(&self) -> usize {
        self.new.load(Ordering::Relaxed) + self.proven.load(Ordering::Relaxed)
    }

    /// Returns the count of bytes that the listings of a tier take.
    pub(super) fn taken(&self, tier: Tier) -> &AtomicUsize {
        match tier {
            Tier::New => &self.new,
            Tier::Proven => &self.proven,
        }
    }

    /// Enters a directory that gets a listing.
    pub(super) fn enter(&self, owner: &Arc<DirCache>) -> Tier {
        let mut queues = self.queues.lock();
        if queues.new.len() + queues.proven.len() >= queues.sweep_at {
            queues.new.retain(|owner| owner.strong_count() > 0);
            queues.proven.retain(|owner| owner.strong_count() > 0);
            queues.sweep_at = SWEEP + 2 * (queues.new.len() + queues.proven.len());
        }
        match queues.ghosts.iter().position(|ghost| *ghost == owner.kernel) {
            Some(at) => {
                queues.ghosts.remove(at);
                queues.proven.push_back(Arc::downgrade(owner));
                Tier::Proven
            }
            None => {
                queues.new.push_back(Arc::downgrade(owner));
                Tier::New
            }
        }
    }

    /// Drops listings until there is room for `more` bytes. Returns false if there is none. The caller holds the lock
    /// of its own listing of `own` bytes.
    pub(super) fn make_room(&self, own: usize, more: usize) -> bool {
        if own + more > self.limit {
            return false;
        }
        let mut busy = 0;
        for _ in 0..STEPS {
            if self.bytes() + more <= self.limit {
                return true;
            }
            let crowded = self.new.load(Ordering::Relaxed) > self.limit / NEW_SHARE;
            let mut queues = self.queues.lock();
            let from = if crowded || queues.proven.is_empty() { Tier::New } else { Tier::Proven };
            let queue = if from == Tier::New { &mut queues.new } else { &mut queues.proven };
            let Some(weak) = queue.pop_front() else { return false };
            let Some(owner) = weak.upgrade() else { continue };
            // The thread that holds the lock may be making room as well.
            let Some(mut kept) = owner.try_lock() else {
                queue.push_back(weak);
                busy += 1;
                if busy > queue.len() {
                    return false;
                }
                continue;
            };
            if kept.uses > 0 {
                kept.uses = if from == Tier::New { 0 } else { kept.uses - 1 };
                if from == Tier::New {
                    kept.promote();
                }
                queues.proven.push_back(weak);
                continue;
            }
            kept.clear();
            kept.tier = None;
            if from == Tier::New {
                queues.ghosts.push_back(owner.kernel);
                if queues.ghosts.len() > GHOSTS {
                    queues.ghosts.pop_front();
                }
            }
        }
        false
    }
}
