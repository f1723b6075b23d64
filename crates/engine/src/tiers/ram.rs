//! The memory tier: a FIFO of blocks. A block that was used goes to the end of the queue again (S3-FIFO's main queue,
//! SOSP'23).

use forebay_common::lock::Mutex;
use forebay_common::lock::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use crate::index::object::CachedObject;

/// A place in the queue, for a block that is in memory, or was.
type Entry = (Weak<CachedObject>, u64);

/// The number of queue entries examined between two yields.
const PIECE: usize = 256;

/// The number of entries beyond twice the blocks in memory from which on the queue is swept.
const SLACK: usize = 4096;

/// The blocks in memory, oldest first, and the limit on their number.
///
/// A block that is overwritten, cut off or removed leaves its entry in the queue. A task sweeps the queue when most
/// entries are stale, so that there are never many more entries than blocks. Each entry costs one step of a sweep.
#[derive(Debug)]
pub(crate) struct Ram {
    queue: Mutex<Queue>,
    pages: AtomicUsize,
    most: usize,
    /// True if most entries are stale.
    stale: AtomicBool,
    sweeping: AtomicBool,
}

/// The queue: `front`, then `back`.
#[derive(Debug, Default)]
struct Queue {
    /// Entries that the sweep in progress has kept.
    front: VecDeque<Entry>,
    back: VecDeque<Entry>,
    /// Number of entries of `back` that are still to be swept.
    left: usize,
    /// The number of the sweep: see [`State::is_first_entry`](crate::index::object::State::is_first_entry).
    sweep: u32,
}

impl Queue {
    fn len(&self) -> usize {
        self.front.len() + self.back.len()
    }

    /// Removes the next entry of a sweep.
    fn pop(&mut self) -> Option<Entry> {
        self.front.pop_front().or_else(|| {
            self.left = self.left.saturating_sub(1);
            self.back.pop_front()
        })
    }
}

impl Ram {
    /// Returns a memory tier with room for `most` blocks.
    pub(crate) fn new(most: usize) -> Self {
        Ram {
            queue: Mutex::default(),
            pages: AtomicUsize::new(0),
            most,
            stale: AtomicBool::new(false),
            sweeping: AtomicBool::new(false),
        }
    }

    /// Adds a block of `object` that was put into memory.
    pub(crate) fn added(&self, object: &Arc<CachedObject>, block: u64) {
        let pages = self.pages.fetch_add(1, Ordering::Relaxed);
        let mut queue = self.queue.lock();
        queue.back.push_back((Arc::downgrade(object), block));
        if queue.len() > 2 * pages + SLACK {
            self.stale.store(true, Ordering::Relaxed);
        }
    }

    /// Counts blocks that were removed from memory.
    pub(crate) fn removed(&self, pages: usize) {
        self.pages.fetch_sub(pages, Ordering::Relaxed);
    }

    /// Returns the number of blocks in memory.
    pub(crate) fn pages(&self) -> usize {
        self.pages.load(Ordering::Relaxed)
    }

    /// Returns the number of entries of the queue.
    pub(crate) fn entries(&self) -> usize {
        self.queue.lock().len()
    }

    /// Takes the oldest block, if there are too many.
    pub(crate) fn next_victim(&self) -> Option<(Weak<CachedObject>, u64)> {
        (self.pages() > self.most).then(|| self.queue.lock().pop()).flatten()
    }

    /// Puts a block at the end of the queue again.
    pub(crate) fn spare(&self, object: &Arc<CachedObject>, block: u64) {
        self.queue.lock().back.push_back((Arc::downgrade(object), block));
    }

    /// Returns true if the caller must sweep the queue.
    pub(super) fn begin_sweep(&self) -> bool {
        self.stale.load(Ordering::Relaxed) && !self.sweeping.swap(true, Ordering::AcqRel)
    }

    /// Begins a sweep of all entries in the queue. Returns the sweep's number.
    pub(super) fn next_sweep(&self) -> u32 {
        let mut queue = self.queue.lock();
        let Queue { front, back, left, sweep } = &mut *queue;
        if !front.is_empty() {
            front.append(back);
            std::mem::swap(front, back);
        }
        *left = back.len();
        *sweep = sweep.wrapping_add(1);
        *sweep
    }

    /// Takes the next entries to be examined.
    pub(super) fn take_piece(&self) -> Vec<Entry> {
        let mut queue = self.queue.lock();
        let count = queue.left.min(PIECE);
        queue.left -= count;
        queue.back.drain(..count).collect()
    }

    pub(super) fn keep(&self, entries: Vec<Entry>) {
        self.queue.lock().front.extend(entries);
    }

    /// Ends a sweep of the queue, and gives memory back.
    pub(super) fn end_sweep(&self) {
        let mut queue = self.queue.lock();
        queue.front.shrink_to_fit();
        queue.back.shrink_to_fit();
        drop(queue);
        self.stale.store(false, Ordering::Relaxed);
        self.sweeping.store(false, Ordering::Release);
    }
}
