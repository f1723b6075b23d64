//! Counters and sizes, for an administrator.

use std::time::Duration;

use crate::counters::{Counters, Usage};
use crate::destage::flush;
use crate::engine::Engine;
use crate::index::object::CachedObject;
use crate::volume::status;
use crate::volume::status::VolumeStatus;

impl Engine {
    /// Returns the counters since the engine was opened.
    pub fn counters(&self) -> Counters {
        self.core.counters()
    }

    /// Returns the usage from running counts, which costs little. The index's size is left out.
    pub fn usage(&self) -> Usage {
        self.core.usage()
    }

    /// Returns the number of entries in the memory tier's queue. It stays near or below twice the number of blocks.
    pub fn queued_in_memory(&self) -> usize {
        self.core.queued_in_memory()
    }

    /// Returns the usage, counted from every object in the index.
    pub fn scan(&self) -> Usage {
        self.core.scan()
    }

    /// Checks the invariants of the segment table and of every object in the index. The time is proportional to the
    /// number of cached blocks, so tests and the simulator call it.
    ///
    /// # Errors
    /// One sentence about the first invariant that does not hold.
    pub fn check(&self) -> std::result::Result<(), String> {
        self.core.check()
    }

    /// Returns the state of every served volume, and of other volumes of which the log has data.
    pub fn volumes(&self) -> Vec<VolumeStatus> {
        status::volumes(&self.core)
    }

    /// Returns how close the dirtiest volume is to the level at which the throttle slows writers to the rate of
    /// destaging. 1 is that level.
    pub fn dirty_part(&self) -> f64 {
        flush::dirty_part(&self.core)
    }

    /// Returns the time since the oldest dirty data was written.
    pub fn dirty_age(&self) -> Duration {
        flush::dirty_age(&self.core)
    }

    /// Returns the bytes that only the cache has.
    pub fn dirty_bytes(&self) -> u64 {
        flush::dirty_bytes(&self.core)
    }

    /// Returns the bytes of the object's volume that only the cache has.
    pub fn dirty_bytes_beside(&self, object: &CachedObject) -> u64 {
        flush::dirty_bytes_beside(object)
    }

    /// Returns true if clean blocks can be written without evicting others, as of the last segment that was opened or
    /// freed.
    pub fn has_room(&self) -> bool {
        self.core.has_room()
    }
}
