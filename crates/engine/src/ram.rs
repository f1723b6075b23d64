//! The memory tier: a FIFO of blocks; what was used meanwhile goes round again (S3-FIFO's main queue, SOSP'23).

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use crate::engine::Engine;
use crate::object::{Object, Source};
use forebay_lock::Mutex;

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

impl Engine {
    /// Whether a block that leaves memory and is on no SSD is written to one: if there is room, or if it is used again
    /// and again.
    fn is_worth_a_place(&self, object: &Object, block: u64) -> bool {
        let known = self.ghosts.knows(object.key_hash, block);
        self.ghosts.note(object.key_hash, block);
        known || self.has_room()
    }

    /// Lets the oldest blocks leave memory until the rest fits.
    pub(crate) fn trim_ram(&self) {
        while let Some((object, block)) = self.ram.next_victim() {
            let Some(object) = object.upgrade() else { continue };
            let mut state = object.lock();
            let Some(page) = state.page(block).cloned() else { continue };
            if state.take_hit(block) {
                drop(state);
                self.ghosts.note(object.key_hash, block);
                self.ram.spare(&object, block);
                continue;
            }
            let elsewhere = state.entry(block).is_some();
            state.remove_page(block);
            self.ram.removed(1);
            let durable = !state.volatile.contains(block);
            let wanted = !elsewhere && durable && self.is_worth_a_place(&object, block);
            let fetch = wanted.then(|| state.begin_fetch(block..block + 1, Source::Cache));
            drop(state);
            if let Some(fetch) = fetch {
                self.clean.offer(self, &object, block, page, fetch);
            }
        }
    }
}
