//! The estimator: takes the references of a sampler, simulates them, and returns the curve.

use std::sync::Arc;
use std::time::Duration;

use crate::counts::{Groups, part};
use crate::curve::{Curve, GroupCurve, MINIMUM, MemoryPoint, Point};
use crate::geometry::{BLOCK, Geometry, MEMORY_MULTIPLES, MULTIPLES};
use crate::sampler::{Reference, Sampler, Seen};
use crate::simulation::{Limits, Simulation};

/// The part of all blocks that is sampled at first: a sixteenth.
const FIRST: u64 = 1 << 60;
/// The number of references in a second above which fewer blocks are sampled. Simulating a reference takes about a
/// microsecond, so this is 0.4 % of a processor.
const LOAD: f64 = 4000.0;
/// The lowest number of places of the present size, in miniature, down to which the load lowers the sample.
const FLOOR: f64 = 1024.0;
/// The time after which a request counts half, in seconds.
const HALF_LIFE: f64 = 3600.0;

/// The present state of the cache.
#[derive(Clone, Copy, Debug, Default)]
pub struct Present {
    /// The sizes of the pool and of memory.
    pub geometry: Geometry,
    /// The age at which dirty blocks are destaged: the configured one, or the age of the oldest dirty block if the
    /// backing store falls behind.
    pub destage_age: Duration,
    /// The part of the log's share that is dirty.
    pub dirty_part: f64,
    /// Pages of records in the log for each block that is written.
    pub record_pages: f64,
}

/// Simulates the references of a sampler.
#[derive(Debug)]
pub struct Estimator {
    sampler: Arc<Sampler>,
    limits: Limits,
    simulation: Option<Simulation>,
    batch: Vec<Reference>,
    /// The counts of the sampler at the last call.
    seen: Seen,
    /// Blocks read and written, which fade like the counts of the simulation. Requests whose references were lost are
    /// left out.
    reads: f64,
    writes: f64,
    /// The time of the last call.
    last: Duration,
}

impl Estimator {
    /// Returns an estimator within the bounds of [`Limits::LIVE`]. It begins to sample at the first
    /// [`Estimator::advance`].
    pub fn new(sampler: Arc<Sampler>) -> Self {
        Estimator::bounded(sampler, Limits::LIVE)
    }

    /// Returns an estimator within other bounds.
    pub fn bounded(sampler: Arc<Sampler>, limits: Limits) -> Self {
        let seen = sampler.seen();
        Estimator {
            sampler,
            limits,
            simulation: None,
            batch: Vec::new(),
            seen,
            reads: 0.0,
            writes: 0.0,
            last: Duration::ZERO,
        }
    }

    /// Simulates the references since the last call. `now` is on any clock that only goes forward. If the pool or
    /// memory has changed its size, a new simulation begins.
    pub fn advance(&mut self, now: Duration, present: Present) {
        self.batch.clear();
        self.sampler.take(&mut self.batch);
        let elapsed = now.saturating_sub(std::mem::replace(&mut self.last, now)).as_secs_f64();
        let seen = self.sampler.seen();
        let before = std::mem::replace(&mut self.seen, seen);
        let is_new = self.simulation.as_ref().is_none_or(|known| known.geometry() != present.geometry);
        if is_new {
            self.simulation = None;
            (self.reads, self.writes) = (0.0, 0.0);
            self.sampler.set_threshold(0);
            if present.geometry.segments == 0 || present.geometry.devices == 0 {
                return;
            }
            let simulation = Simulation::new(present.geometry, self.limits, FIRST);
            self.sampler.set_threshold(simulation.threshold());
            self.simulation = Some(simulation);
            // References from before are of another threshold.
            return;
        }
        let Some(simulation) = &mut self.simulation else { return };
        let fade = 0.5_f64.powf(elapsed / HALF_LIFE);
        simulation.counts.fade(fade);
        let weight = 1.0 / simulation.rate();
        let new = |now: u64, before: u64, lost: u64| ((now - before) as f64 - lost as f64 * weight).max(0.0);
        let (lost_reads, lost_writes) =
            (seen.lost_reads - before.lost_reads, seen.lost_writes - before.lost_writes);
        self.reads = self.reads * fade + new(seen.reads, before.reads, lost_reads);
        self.writes = self.writes * fade + new(seen.writes, before.writes, lost_writes);
        simulation.set_destage_age(u32::try_from(present.destage_age.as_millis()).unwrap_or(u32::MAX >> 1));
        simulation.set_dirty_part(present.dirty_part);
        simulation.set_record_pages(present.record_pages);
        self.batch.iter().for_each(|reference| simulation.replay(*reference));
        let busy = self.batch.len() as f64 > LOAD * elapsed.max(0.05) || lost_reads + lost_writes > 0;
        let places = present.geometry.segments * present.geometry.slots;
        if busy && places as f64 * simulation.rate() / 2.0 >= FLOOR {
            simulation.halve();
        }
        self.sampler.set_threshold(simulation.threshold());
    }

    /// Forgets the requests so far, but keeps what the simulated caches hold. A measurement calls it when its caches
    /// are warm.
    pub fn forget_counts(&mut self) {
        if let Some(simulation) = &mut self.simulation {
            simulation.counts = Groups::default();
        }
        (self.reads, self.writes) = (0.0, 0.0);
    }

    /// Returns the curve of the requests so far, in which a request counts half after an hour.
    pub fn curve(&self) -> Curve {
        let Seen { reads, writes, lost_reads, lost_writes, lost_others, .. } = self.seen;
        let lost = lost_reads + lost_writes + lost_others;
        let Some(simulation) = &self.simulation else {
            return Curve { blocks_read: reads, blocks_written: writes, lost, ..Curve::default() };
        };
        let geometry = simulation.geometry();
        let (cache_bytes, memory_bytes) = (geometry.bytes(), geometry.memory * BLOCK);
        let counts = simulation.counts.all.adjusted(self.reads, self.writes);
        let (hits, coalescing) = (counts.hit_ratios(), counts.coalescing());
        let points =
            MULTIPLES.iter().zip(simulation.full()).enumerate().map(|(at, (multiple, filled))| Point {
                cache_bytes: (cache_bytes as f64 * multiple) as u64,
                hit_ratio: hits[at],
                coalescing: coalescing[at],
                filled,
            });
        let memory = MEMORY_MULTIPLES.iter().zip(counts.memory).map(|(multiple, hits)| MemoryPoint {
            memory_bytes: (memory_bytes as f64 * multiple) as u64,
            hit_ratio: part(hits, counts.reads),
        });
        Curve {
            enough: simulation.sampled >= MINIMUM,
            sampled: simulation.sampled,
            lost,
            rate: simulation.rate(),
            blocks_read: reads,
            blocks_written: writes,
            cache_bytes,
            memory_bytes,
            simulation_bytes: self.bytes() as u64,
            points: points.collect(),
            memory: memory.collect(),
            groups: groups(simulation),
        }
    }

    /// Returns the bytes of memory that the estimator and its sampler take.
    pub fn bytes(&self) -> usize {
        let simulation = self.simulation.as_ref().map_or(0, Simulation::bytes);
        self.sampler.bytes() + simulation + self.batch.capacity() * size_of::<Reference>()
    }
}

/// Returns the curves of the groups, without the correction for hot blocks: only the total is counted without sampling.
fn groups(simulation: &Simulation) -> Vec<GroupCurve> {
    let all = &simulation.counts.all;
    let each = simulation.counts.each().map(|(group, counts)| GroupCurve {
        group,
        name: String::new(),
        reads: part(counts.reads, all.reads),
        writes: part(counts.writes, all.writes),
        hit_ratios: counts.hit_ratios().into(),
        coalescing: counts.coalescing().into(),
    });
    each.collect()
}
