//! The memory tier: a FIFO of blocks; what was used meanwhile goes round again (S3-FIFO's main queue, SOSP'23).

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use crate::object::Object;

/// Which blocks are in memory, oldest first, and how many may be.
#[derive(Debug)]
pub(crate) struct Ram {
    queue: Mutex<VecDeque<(Weak<Object>, u64)>>,
    pages: AtomicUsize,
    most: usize,
}

impl Ram {
    /// Room for `most` blocks.
    pub(crate) fn new(most: usize) -> Self {
        Ram { queue: Mutex::default(), pages: AtomicUsize::new(0), most }
    }

    /// A block of `object` was put into memory.
    pub(crate) fn added(&self, object: &Arc<Object>, block: u64) {
        self.pages.fetch_add(1, Ordering::Relaxed);
        self.queue.lock().push_back((Arc::downgrade(object), block));
    }

    /// Blocks were taken out of memory.
    pub(crate) fn removed(&self, pages: usize) {
        self.pages.fetch_sub(pages, Ordering::Relaxed);
    }

    /// Blocks in memory.
    pub(crate) fn pages(&self) -> usize {
        self.pages.load(Ordering::Relaxed)
    }

    /// The oldest block, if there are too many.
    pub(crate) fn next_victim(&self) -> Option<(Weak<Object>, u64)> {
        (self.pages() > self.most).then(|| self.queue.lock().pop_front()).flatten()
    }

    /// Sends a block round again.
    pub(crate) fn spare(&self, object: &Arc<Object>, block: u64) {
        self.queue.lock().push_back((Arc::downgrade(object), block));
    }
}
