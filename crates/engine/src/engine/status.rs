//! Counters and sizes, for an administrator.

use std::sync::Arc;
use std::time::Duration;

use forebay_mrc::{Present, Sampler};

use crate::counters::{Counters, Usage};
use crate::destage::flush;
use crate::engine::Engine;
use crate::index::object::{CachedObject, blocks};
use crate::io::Key;
use crate::volume::status;
use crate::volume::status::VolumeStatus;

impl Engine {
    /// Has `sampler` take note of every request from now on. A second sampler has no effect.
    pub fn set_sampler(&self, sampler: Arc<Sampler>) {
        let _ = self.core.sampler.set(sampler);
    }

    /// Returns true if a sampler takes note of requests.
    pub fn is_sampled(&self) -> bool {
        self.core.sampler.get().is_some()
    }

    /// Takes note of a read that the user of the engine has carried out past the cache.
    pub fn saw_past(&self, object: &CachedObject, offset: u64, len: u64) {
        self.core.saw(object, blocks(offset, len), forebay_mrc::Kind::Past);
    }

    /// Takes note of a read past the cache, of an object that the index need not have.
    pub fn saw_past_key(&self, key: &Key, offset: u64, len: u64) {
        self.core.saw_past(key, offset, len);
    }

    /// Returns the state of the cache that the estimator of the miss-ratio curve needs.
    pub fn present(&self) -> Present {
        let (core, destage_age) = (&self.core, flush::dirty_age(&self.core));
        let present = core.present();
        Present { destage_age: present.destage_age.max(destage_age), ..present }
    }

    /// Returns the time after which dirty data is destaged, unless a policy says otherwise.
    pub fn dirty_time(&self) -> Duration {
        self.core.settings.destage_after
    }

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

    /// Returns the name of the volume with this number.
    pub fn volume_name(&self, volume: u32) -> String {
        self.core.env.backing.name(volume)
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
