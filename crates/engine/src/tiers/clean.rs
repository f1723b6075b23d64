//! The blocks that wait to be written to clean segments (`fill.rs`).

use forebay_common::lock::Mutex;
use forebay_common::lock::atomic::{AtomicBool, Ordering};
use std::collections::VecDeque;
use std::sync::Arc;

use crate::index::leaf::Hit;
use crate::index::object::CachedObject;
use crate::index::page::Page;
use crate::wait::Gate;

/// The highest number of blocks that may wait to be written.
const WAITING: usize = 1024;

/// A block offered to the cache devices.
pub(crate) struct Offer {
    pub(crate) object: Arc<CachedObject>,
    pub(crate) block: u64,
    pub(crate) page: Page,
    /// The use of the new copy.
    pub(crate) hit: Hit,
    /// The fetch that tells if the block was changed meanwhile.
    pub(crate) fetch: u64,
    /// True if a policy keeps the block against others: it waits for a segment as long as few such blocks do.
    pub(crate) stays: bool,
}

/// The blocks that wait to be written to clean segments.
#[derive(Default)]
pub(crate) struct Clean {
    pub(super) queue: Mutex<VecDeque<Offer>>,
    pub(crate) work: Gate,
    pub(super) room: Gate,
    /// True if the segment being filled is the next to be evicted, and must be sealed.
    pub(super) seal: AtomicBool,
    /// True while blocks that stay wait for a segment. The log leaves the next free one to them.
    pub(super) waits: AtomicBool,
}

impl Clean {
    /// Returns true if no more blocks may be offered now.
    pub(super) fn is_full(&self) -> bool {
        self.queue.lock().len() >= WAITING
    }

    /// Queues a block.
    pub(super) fn push(&self, offer: Offer) {
        self.queue.lock().push_back(offer);
        self.work.wake();
    }

    /// Returns true while blocks that stay wait for a segment.
    pub(crate) fn waits(&self) -> bool {
        self.waits.load(Ordering::Relaxed)
    }

    /// Waits until an offer would be accepted.
    pub(crate) async fn room(&self) {
        self.room.until(|| (!self.is_full()).then_some(())).await;
    }

    /// Waits until no offered block waits. The room on the devices is known exactly then.
    pub(crate) async fn drained(&self) {
        self.room.until(|| self.queue.lock().is_empty().then_some(())).await;
    }

    /// Requests that the segment being filled is sealed as it is.
    pub(crate) fn seal(&self) {
        self.seal.store(true, Ordering::Relaxed);
        self.work.wake();
    }
}
