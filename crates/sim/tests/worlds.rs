//! Runs worlds if an environment variable asks for them. `cargo x mutants` sets it for every mutant.

use std::sync::atomic::{AtomicU64, Ordering};

/// Returns the number of worlds to run; 0 if the variable is not set.
fn wanted() -> u64 {
    std::env::var("FOREBAY_WORLDS").ok().and_then(|text| text.parse().ok()).unwrap_or(0)
}

#[test]
fn as_many_worlds_as_are_asked_for_end_well() {
    let (next, last) = (AtomicU64::new(1), wanted());
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed > last {
                        return;
                    }
                    let failure = forebay_sim::world::run(seed, false).failure;
                    if failure.is_some() {
                        // The other threads need not continue.
                        next.store(u64::MAX / 2, Ordering::Relaxed);
                    }
                    assert_eq!(failure, None, "cargo x sim --seed {seed}");
                }
            });
        }
    });
}
