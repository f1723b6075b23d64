//! The estimate takes at most 4 MiB of memory, however large the cache and however busy the server.

#![allow(clippy::unwrap_used, clippy::print_stdout, missing_docs)]

mod loads;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use forebay_mrc::{Estimator, Geometry, Kind, Limits, Present, Reference, Sampler, Simulation};

use loads::Random;

/// Counts the bytes that are allocated, and the most that were at any time.
struct Counting;

static NOW: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let now = NOW.fetch_add(layout.size(), Relaxed) + layout.size();
        MOST.fetch_max(now, Relaxed);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Simulates a load in a pool, and returns the estimator.
fn run(geometry: Geometry, requests: u64, blocks: u64) -> Estimator {
    let sampler = Arc::new(Sampler::default());
    let mut estimator = Estimator::new(sampler.clone());
    let present =
        Present { geometry, destage_age: Duration::from_secs(5), dirty_part: 0.5, record_pages: 0.5 };
    let mut random = Random::new(7);
    for number in 0..requests {
        let now = Duration::from_micros(number * 50);
        let kind = [Kind::Read, Kind::Write, Kind::Past, Kind::Through, Kind::Around, Kind::Write]
            [random.below(6) as usize];
        let block = random.below(blocks);
        sampler.record(random.below(50), (number % 40) as u32, block..block + 8, kind, || now);
        if number % 2000 == 0 {
            estimator.advance(now, present);
        }
    }
    estimator
}

/// Pools of 256 MiB with 16 MiB of memory, of 2 TiB with 16 GiB, and of little SSD with much memory.
const POOLS: [Geometry; 3] = [
    Geometry { devices: 2, segments: 128, slots: 512, memory: 4096 },
    Geometry { devices: 4, segments: 32_768, slots: 16_384, memory: 4 << 20 },
    Geometry { devices: 2, segments: 128, slots: 512, memory: 16 << 20 },
];
/// Bytes of all buffers of a sampler when they are full, and of the batch that the estimator takes from them.
const BUFFERS: usize = 2 * 16 * 512 * size_of::<Reference>();

/// Runs `work`, and returns the most bytes that it had allocated at any time.
fn most_allocated<T>(work: impl FnOnce() -> T) -> (usize, T) {
    let before = NOW.load(Relaxed);
    MOST.store(before, Relaxed);
    let done = work();
    (MOST.load(Relaxed) - before, done)
}

/// One test, since allocations of another one would count.
#[test]
fn the_estimate_takes_at_most_four_mebibytes() {
    for pool in POOLS {
        // Every block is new: nothing bounds the sample but its limits.
        let (most, estimator) = most_allocated(|| run(pool, 1_000_000, 1 << 40));
        println!("estimator: at most {} KiB, {} KiB by its own count", most >> 10, estimator.bytes() >> 10);
        assert!(most <= 4 << 20, "{most} bytes for {pool:?}");
        assert!(estimator.curve().groups.len() <= 17);
        drop(estimator);
        // As fast as the simulation can, without the bound on the load.
        let (most, rate) = most_allocated(|| {
            let mut simulation = Simulation::new(pool, Limits::LIVE, 1 << 60);
            let mut random = Random::new(8);
            for number in 0..500_000_u32 {
                let hash = random.below(simulation.threshold());
                let kind = [Kind::Read, Kind::Write, Kind::Read, Kind::Past][random.below(4) as usize];
                simulation.replay(Reference::new(hash, 0, kind, number / 16));
                // Blocks are used again now and then.
                simulation.replay(Reference::new(hash, 0, Kind::Read, number / 16));
            }
            simulation.rate()
        });
        println!("simulation: at most {} KiB, one block in {:.0}", most >> 10, 1.0 / rate);
        assert!(most + BUFFERS <= 4 << 20, "{most} bytes for {pool:?}");
    }
}
