//! Repairs that come late: the segment was destaged and freed meanwhile, and its place belongs to another segment.

use std::sync::atomic::{AtomicBool, Ordering};

use super::*;
use crate::disk::Operation;

/// Delays a scrub's read of the second leg until the place of that leg belongs to another segment.
fn repair_late(seed: u64) -> Result<(), String> {
    let mut world = world(seed, 2);
    let engine = world.start_through(Vec::new()).unwrap();
    write(&world, &engine, 0, 300);
    let disk = world.disks[1].clone();
    let held = AtomicBool::new(false);
    disk.hold(move |operation| {
        matches!(operation, Operation::Read(_)) && !held.swap(true, Ordering::Relaxed)
    });
    engine.start_scrub();
    let theirs = disk.clone();
    assert_eq!(until(&world, move || theirs.holds() == 1), Stop::Done);
    with_client(&world, &engine, Allowed::default(), |mut client| async move { client.flush().await });
    // The place that was freed last is the next to be used.
    write(&world, &engine, 300, 300);
    disk.release();
    let executor = world.shared.executor.clone();
    let a_while = async move { forebay_engine::io::Clock::sleep(&executor, Duration::from_secs(60)).await };
    assert_eq!(world.shared.executor.block_on(LIMIT, a_while), Ok(()));
    cut(&mut world, engine);
    world.disks[0].vanish();
    let engine = world.start_through(Vec::new())?;
    let looked = world.look_at_all(&engine);
    let failed = world.shared.failure.lock().clone();
    world.crash(Crash::Kill);
    failed.map_or(looked.map_err(|stop| format!("{stop:?}")), Err)
}

#[test]
fn a_late_repair_overwrites_no_other_segment() {
    let failed: Vec<_> = (0..13).filter_map(|seed| Some((seed, repair_late(seed).err()?))).collect();
    assert!(failed.is_empty(), "{} of 13: {:?}", failed.len(), failed.first());
}
