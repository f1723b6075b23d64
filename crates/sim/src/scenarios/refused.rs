//! Tests of blocks that the backing store refuses to write.

use forebay_engine::Event;

use super::*;
use crate::backing::BadRange;

/// The number of blocks that a client has written.
const WRITTEN: u64 = 600;

fn count(world: &World, is_wanted: impl Fn(&Event) -> bool) -> usize {
    world.shared.told.lock().iter().filter(|event| is_wanted(event)).count()
}

/// A client writes blocks, and the backing store refuses those of `bad`. All others are destaged; then the store is
/// mended, perhaps after a power cut.
fn refuses(seed: u64, bad: std::ops::Range<u64>, in_sync: bool) {
    let mut world = world_with(seed, 2, |plan| plan.destage_after = Duration::from_secs(1));
    let mut engine = world.start_through(Vec::new()).unwrap();
    let object = world.shared.objects.lock().key(1).unwrap();
    world.shared.store.set_bad(Some(BadRange { object, blocks: bad.clone(), in_sync, in_reads: false }));
    write(&world, &engine, 0, WRITTEN);
    let (theirs, left) = (engine.clone(), bad.end - bad.start);
    assert_eq!(until(&world, move || theirs.scan().dirty_blocks == left), Stop::Done, "{:?}", engine.scan());
    // Later writes behind the bad blocks are destaged as well, several times.
    for _ in 0..3 {
        write(&world, &engine, bad.end + 50, 20);
        let theirs = engine.clone();
        assert_eq!(until(&world, move || theirs.scan().dirty_blocks == left), Stop::Done);
    }
    let failed = |event: &Event| matches!(event, Event::BackingFailed { .. });
    let healed = |event: &Event| matches!(event, Event::BackingHealed { .. });
    assert_eq!((count(&world, failed), count(&world, healed)), (1, 0), "each is told once");
    assert!(engine.volumes()[0].trouble.is_some());
    if seed.is_multiple_of(2) {
        cut(&mut world, engine);
        engine = world.start_through(Vec::new()).unwrap();
    }
    world.shared.store.set_bad(None);
    let theirs = engine.clone();
    assert_eq!(until(&world, move || theirs.scan().dirty_blocks == 0), Stop::Done);
    assert_eq!(engine.volumes()[0].trouble, None);
    // A new start knows nothing of the failure before it.
    assert_eq!(count(&world, healed), count(&world, failed) - usize::from(seed.is_multiple_of(2)));
    check(&mut world, &engine);
    assert_eq!(world.close(&engine), Ok(()));
    assert_eq!(*world.shared.failure.lock(), None, "seed {seed}");
    drop(engine);
    assert_eq!(world.outcome(None).failure, None);
}

#[test]
pub(super) fn a_block_that_cannot_be_written_holds_up_no_other_of_its_file() {
    for (seed, in_sync) in [(0, false), (1, false), (2, true), (3, true)] {
        refuses(seed, 17..18, in_sync);
        refuses(seed, 0..1, in_sync);
    }
}

#[test]
fn blocks_that_cannot_be_written_hold_up_no_others_of_their_file() {
    for (seed, in_sync) in [(0, false), (3, true)] {
        refuses(seed, 100..140, in_sync);
    }
}
