//! Repairs that come late: the segment was destaged and let go since, and its place belongs to another one.

use std::sync::atomic::{AtomicBool, Ordering};

use super::*;
use crate::disk::Operation;

/// What of a repair comes late.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Late {
    /// The look at the second leg.
    Read,
    /// The write that repairs it.
    Write,
}

fn repair_late(seed: u64, late: Late) -> Result<(), String> {
    let mut world = world(seed, 2);
    let engine = world.start_through(Vec::new()).unwrap();
    write(&world, &engine, 0, 300);
    let disk = world.disks[1].clone();
    if late == Late::Write {
        // Of two slots behind each other one is a block, and the other one the head of a frame.
        let first = disk.written().into_iter().find(|block| *block > 255 && block % 256 == 4).unwrap();
        (first..first + 2).for_each(|block| disk.rot_at(block * 4096));
    }
    let held = AtomicBool::new(false);
    disk.hold(move |operation| {
        let is_one = matches!(
            (operation, late),
            (Operation::Read(_), Late::Read) | (Operation::Write(_), Late::Write)
        );
        is_one && !held.swap(true, Ordering::Relaxed)
    });
    engine.start_scrub();
    let theirs = disk.clone();
    assert_eq!(until(&world, move || theirs.holds() == 1), Stop::Done);
    with_client(&world, &engine, Allowed::default(), |mut client| async move { client.flush().await });
    // The place that was given up last is the next to be used.
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
    for late in [Late::Read, Late::Write] {
        let failed: Vec<_> =
            (0..13).filter_map(|seed| Some((seed, repair_late(seed, late).err()?))).collect();
        assert!(failed.is_empty(), "{late:?}: {} of 13: {:?}", failed.len(), failed.first());
    }
}
