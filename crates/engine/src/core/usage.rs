//! Counters since the start, and the current size of the cache.

use forebay_common::lock::atomic::{AtomicU64, Ordering};

use std::ops::Range;

use forebay_mrc::{Geometry, Kind, Present};

use super::Core;
use crate::buffer::BLOCK;
use crate::core::clean_loader::CleanLoading;
use crate::counters::{Counters, Usage};
use crate::format::key_hash;
use crate::index::object::{CachedObject, blocks};
use crate::io::Key;
use crate::segments::LogUse;

impl Core {
    /// Takes note of a request for the miss-ratio curve. A request counts once, when it is carried out.
    pub(crate) fn saw(&self, object: &CachedObject, blocks: Range<u64>, kind: Kind) {
        if let Some(sampler) = self.sampler.get() {
            sampler.record(object.key_hash, object.volume.id, blocks, kind, || self.env.clock.now());
        }
    }

    /// Takes note of a read past the cache, of an object that the index need not have.
    pub(crate) fn saw_past(&self, key: &Key, offset: u64, len: u64) {
        if let Some(sampler) = self.sampler.get() {
            let (object, volume) = (key_hash(key), self.env.backing.volume(key));
            sampler.record(object, volume, blocks(offset, len), Kind::Past, || self.env.clock.now());
        }
    }

    /// Returns the state of the cache that the estimator of the miss-ratio curve needs.
    pub(crate) fn present(&self) -> Present {
        let (devices, segments) = self.segments.sizes();
        let (slots, memory) = (self.slots() as u64, self.settings.ram / BLOCK as u64);
        let LogUse { share, dirty, .. } = self.segments.log_use();
        let written = self.totals.written.get().max(1) as f64;
        Present {
            geometry: Geometry { devices, segments, slots, memory },
            destage_age: self.settings.destage_after,
            dirty_part: dirty as f64 / (share.max(1) * self.slots()) as f64,
            record_pages: (self.totals.frames.get() as f64 / written).min(1.0),
        }
    }

    /// Returns the counters since the engine was opened.
    pub(crate) fn counters(&self) -> Counters {
        let totals = &self.totals;
        Counters {
            read_ram: totals.read_ram.get(),
            read_ssd: totals.read_ssd.get(),
            read_backing: totals.read_backing.get(),
            written: totals.written.get(),
            direct: totals.direct.get(),
            destaged: totals.destaged.get(),
            destage_writes: totals.destage_writes.get(),
            compacted: totals.compacted.get(),
            admitted: totals.admitted.get(),
            evicted: totals.evicted.get(),
            reinserted: totals.reinserted.get(),
            kept_by_priority: totals.kept_by_priority.get(),
            ssd_written: totals.ssd_written.get(),
            frames: totals.frames.get(),
            log_waits: totals.log_waits.get(),
            room_waits: totals.room_waits.get(),
            repaired: totals.repaired.get(),
            backing_errors: totals.backing_errors.get(),
            scrubbed: totals.scrubbed.get(),
            changed_outside: totals.changed_outside.get(),
            rewritten: totals.rewritten.get(),
        }
    }

    /// Returns the usage from running counts, which costs little. The index's size is left out.
    pub(crate) fn usage(&self) -> Usage {
        let mut usage = Usage { ram_blocks: self.ram.pages() as u64, ..Usage::default() };
        let (ssd_blocks, dirty_blocks) = self.segments.blocks();
        (usage.ssd_blocks, usage.dirty_blocks) = (ssd_blocks, dirty_blocks);
        usage.pinned_blocks = self.segments.pinned();
        usage.high_blocks = self.segments.high();
        usage.objects = self.objects.len() as u64;
        usage
    }

    /// Returns the number of entries in the memory tier's queue. It stays near or below twice the number of blocks.
    pub(crate) fn queued_in_memory(&self) -> usize {
        self.ram.entries()
    }

    /// Returns the progress of loading the clean segments; `None` when it is over.
    pub(crate) fn warming(&self) -> Option<CleanLoading> {
        let get = |number: &AtomicU64| number.load(Ordering::Relaxed);
        let warming = CleanLoading { done: get(&self.warmer.done), segments: get(&self.warmer.segments) };
        self.segments.is_warming().then_some(warming)
    }

    /// Checks the invariants of the segment table and of every object in the index.
    pub(crate) fn check(&self) -> Result<(), String> {
        self.segments.check()?;
        self.objects.all().iter().try_for_each(|object| object.check())?;
        let scan = self.scan();
        let counts = [
            ("pinned", scan.pinned_blocks, self.segments.pinned()),
            ("of high priority", scan.high_blocks, self.segments.high()),
        ];
        for (kind, counted, said) in counts {
            if counted != said {
                return Err(format!("{counted} blocks are {kind}, and {said} are counted"));
            }
        }
        self.check_shares()
    }

    /// Checks the counted blocks of each cache share against the objects of the share.
    fn check_shares(&self) -> Result<(), String> {
        for (number, share) in self.shares.all() {
            let mut objects = self.objects.all();
            objects.retain(|object| object.policy().share == number);
            let (counted, said) =
                (objects.iter().map(|object| object.usage().ssd_blocks).sum::<u64>(), share.held());
            if counted != said {
                return Err(format!("{counted} blocks are in share {number}, and {said} are counted"));
            }
        }
        Ok(())
    }

    /// Returns the usage, counted from every object in the index.
    pub(crate) fn scan(&self) -> Usage {
        let mut usage = Usage::default();
        for object in self.objects.all() {
            usage.objects += 1;
            usage.add(&object.lock());
        }
        usage
    }
}
