//! Counters, and sizes of the cache.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::index::object::{CachedObject, State};
use crate::index::policy::Standing;

/// A number that only grows.
#[derive(Debug, Default)]
pub(crate) struct Total(AtomicU64);

impl Total {
    /// Adds to the counter.
    pub(crate) fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

#[derive(Debug, Default)]
pub(crate) struct Totals {
    pub(crate) read_ram: Total,
    pub(crate) read_ssd: Total,
    pub(crate) read_backing: Total,
    pub(crate) written: Total,
    pub(crate) direct: Total,
    pub(crate) destaged: Total,
    pub(crate) destage_writes: Total,
    pub(crate) compacted: Total,
    pub(crate) admitted: Total,
    pub(crate) evicted: Total,
    pub(crate) reinserted: Total,
    pub(crate) kept_by_priority: Total,
    pub(crate) ssd_written: Total,
    pub(crate) frames: Total,
    pub(crate) log_waits: Total,
    pub(crate) room_waits: Total,
    pub(crate) repaired: Total,
    pub(crate) backing_errors: Total,
    pub(crate) scrubbed: Total,
    pub(crate) changed_outside: Total,
    pub(crate) rewritten: Total,
}

/// Counters since the engine was opened. Blocks are of 4 KiB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Blocks read from memory.
    pub read_ram: u64,
    /// Blocks read from the cache devices.
    pub read_ssd: u64,
    /// Blocks read from the backing store.
    pub read_backing: u64,
    /// Blocks written to the log by clients.
    pub written: u64,
    /// Bytes of bypass writes: written to the backing store past the log.
    pub direct: u64,
    /// Blocks destaged.
    pub destaged: u64,
    /// Writes that destaging made to the backing store.
    pub destage_writes: u64,
    /// Dirty blocks that compaction appended at the log's head, to free segments at its tail.
    pub compacted: u64,
    /// Clean blocks written to the cache devices.
    pub admitted: u64,
    /// Blocks that left the cache devices to make room.
    pub evicted: u64,
    /// Blocks that were written again when their segment was evicted.
    pub reinserted: u64,
    /// Reinserted blocks that had not been read, and stayed for their high priority alone.
    pub kept_by_priority: u64,
    /// Bytes written to the cache devices: all legs, headers and records.
    pub ssd_written: u64,
    /// Frames of the log.
    pub frames: u64,
    /// Times the log waited for a free segment.
    pub log_waits: u64,
    /// Writes that waited for room in the log.
    pub room_waits: u64,
    /// Bad copies rewritten from the other leg.
    pub repaired: u64,
    /// Errors of the backing store during destaging.
    pub backing_errors: u64,
    /// Blocks scrubbed.
    pub scrubbed: u64,
    /// Times that an object's cached blocks were dropped because of an external change.
    pub changed_outside: u64,
    /// Dirty blocks that were remirrored because one of their copies was lost.
    pub rewritten: u64,
}

/// The current contents of the cache, in numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Objects in the index.
    pub objects: u64,
    /// Blocks on the cache devices.
    pub ssd_blocks: u64,
    /// Blocks on the cache devices that the backing store does not have yet.
    pub dirty_blocks: u64,
    /// Blocks of pinned objects on the cache devices.
    pub pinned_blocks: u64,
    /// Blocks of objects of high priority on the cache devices that are not pinned.
    pub high_blocks: u64,
    /// Blocks in memory.
    pub ram_blocks: u64,
    /// Bytes of memory that the index of the cache devices takes.
    pub index_bytes: u64,
}

impl Usage {
    /// Counts the blocks and the index memory of an object.
    pub(crate) fn add(&mut self, state: &State) {
        for leaf in state.leaves.values() {
            let entries = leaf.on_ssd().filter_map(|index| leaf.entry(index));
            let (blocks, dirty) = entries.fold((0, 0), |(n, d), entry| (n + 1, d + u64::from(entry.dirty)));
            self.ssd_blocks += blocks;
            self.dirty_blocks += dirty;
            match state.standing {
                Standing::Usual => {}
                Standing::Pinned => self.pinned_blocks += blocks,
                Standing::High => self.high_blocks += blocks,
            }
            self.ram_blocks += leaf.in_ram().count() as u64;
            self.index_bytes += leaf.index_bytes() as u64;
        }
    }
}

impl CachedObject {
    /// Returns the usage of this object.
    pub fn usage(&self) -> Usage {
        let mut usage = Usage { objects: 1, ..Usage::default() };
        usage.add(&self.lock());
        usage
    }
}
