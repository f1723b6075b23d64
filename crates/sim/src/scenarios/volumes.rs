//! Tests of two volumes, one of which fails or does not answer.

use std::sync::Arc;
use std::time::Duration;

use forebay_engine::io::Clock as _;
use forebay_engine::{Engine, Error, Mode, VolumeStatus};

use super::{LIMIT, check, cut, until, with_client, world_with};
use crate::backing::{Rates, Stuck};
use crate::client::{Allowed, Client};
use crate::executor::Stop;
use crate::world::{Crash, World};

/// The file on the volume that gets into trouble, and that volume.
const BAD: (u8, usize) = (1, 1);
/// The file on the good volume.
const GOOD: u8 = 2;
/// Bytes of each write.
const WRITE: u64 = 64 << 10;
/// More bytes than the log's share of two devices of 64 MiB.
const MUCH: u64 = 48 << 20;

/// Makes a world with two devices and two volumes with an object each. Destaging begins after 20 s.
fn world(seed: u64) -> World {
    let world = world_with(seed, 2, |plan| {
        (plan.objects, plan.volumes) = (2, 2);
        plan.destage_after = Duration::from_secs(20);
    });
    {
        let mut model = world.shared.model.lock();
        // Writes that the log refuses may bypass it, and be lost with a failed sync.
        (model.logged, model.lossy) = (false, true);
    }
    world
}

/// Writes `range` of a file, in order. Writes may be refused with the errors of `allowed`.
fn fill(world: &World, engine: &Arc<Engine>, file: u8, range: std::ops::Range<u64>, allowed: Allowed) {
    with_client(world, engine, allowed, move |mut client| async move {
        for offset in range.step_by(WRITE as usize) {
            client.write(file, offset, WRITE, true).await;
        }
    });
}

fn volume(engine: &Engine) -> VolumeStatus {
    engine.volumes().into_iter().find(|volume| volume.name == "volume 1").unwrap()
}

/// The number of blocks that the log should hold.
const SHARE: u64 = 43 * 256;

/// Returns the errors that a volume may give when it fails or does not answer.
fn refuses() -> Allowed {
    Allowed { backing: true, late: true, ..Allowed::default() }
}

/// One volume has `dirty` bytes to destage and gets into trouble with these `rates`. Clients of the other volume write
/// more than twice the size of the log. Then the first volume heals, perhaps after a power cut.
fn one_in_trouble(seed: u64, rates: &Rates, dirty: u64) {
    let mut world = world(seed);
    let mut engine = world.start_through(Vec::new()).unwrap();
    world.shared.store.set_rates_of(BAD.1, rates.clone());
    fill(&world, &engine, BAD.0, 0..dirty, refuses());
    let theirs = engine.clone();
    assert_eq!(until(&world, move || volume(&theirs).trouble.is_some()), Stop::Done);
    // The engine reports the volume, which takes no more than its share.
    fill(&world, &engine, BAD.0, dirty..dirty + MUCH / 2, refuses());
    let held = volume(&engine).dirty_blocks;
    assert!(held <= (dirty / 4096).max(SHARE / 4), "it holds {held} blocks");
    // Dirty blocks may be overwritten.
    fill(&world, &engine, BAD.0, 0..dirty.min(1 << 20), Allowed::default());
    for _ in 0..2 {
        fill(&world, &engine, GOOD, 0..MUCH, Allowed::default());
    }
    assert!(volume(&engine).dirty_blocks >= dirty.min(4 << 20) / 4096, "nothing of it was destaged");
    check_counts(&engine);
    if seed.is_multiple_of(2) {
        cut(&mut world, engine);
        if rates.error > 0 {
            // A file whose size cannot be read keeps the engine from starting.
            world.shared.store.set_rates(Rates::default());
        }
        engine = world.start_through(Vec::new()).unwrap();
    }
    world.shared.store.set_rates(Rates::default());
    check(&mut world, &engine);
    assert_eq!(world.drain(&engine), Ok(()));
    assert_eq!((engine.scan().dirty_blocks, volume(&engine).trouble), (0, None));
    assert_eq!(world.close(&engine), Ok(()));
    assert_eq!(*world.shared.failure.lock(), None, "seed {seed}");
    drop(engine);
    assert_eq!(world.outcome(None).failure, None);
}

/// Panics if the dirty blocks that the volumes count are not those that a scan finds.
fn check_counts(engine: &Engine) {
    let counted: u64 = engine.volumes().iter().map(|volume| volume.dirty_blocks).sum();
    assert_eq!(counted, engine.scan().dirty_blocks);
}

#[test]
fn a_volume_whose_writes_hang_holds_up_no_other() {
    for seed in 0..2 {
        one_in_trouble(seed, &Rates { stuck: Some(Stuck::Write), ..Rates::default() }, 4 << 20);
    }
}

#[test]
fn a_volume_whose_syncs_hang_holds_up_no_other() {
    one_in_trouble(1, &Rates { stuck: Some(Stuck::Sync), ..Rates::default() }, 4 << 20);
}

#[test]
fn a_volume_that_fails_holds_up_no_other() {
    one_in_trouble(0, &Rates { error: 10_000, ..Rates::default() }, 4 << 20);
    // With some seeds a sync that has nothing to write succeeds, and the volume counts as healed for a moment.
    one_in_trouble(3, &Rates { sync_error: 10_000, ..Rates::default() }, 4 << 20);
}

#[test]
fn a_volume_that_has_filled_the_log_before_it_hangs_holds_up_no_other() {
    one_in_trouble(0, &Rates { stuck: Some(Stuck::Write), ..Rates::default() }, 30 << 20);
}

#[test]
fn a_volume_that_hangs_holds_up_no_other_whose_blocks_fill_the_devices() {
    let mut world = world_with(0, 2, |plan| {
        (plan.objects, plan.volumes, plan.habits.extent) = (2, 2, 2 * MUCH);
        plan.destage_after = Duration::from_millis(100);
    });
    let engine = world.start_through(Vec::new()).unwrap();
    world.shared.store.set_rates_of(BAD.1, Rates { stuck: Some(Stuck::Write), ..Rates::default() });
    fill(&world, &engine, BAD.0, 0..1 << 20, refuses());
    with_client(&world, &engine, Allowed::default(), |mut client| async move {
        for offset in (0..2 * MUCH).step_by(WRITE as usize) {
            client.write(GOOD, offset, WRITE, true).await;
            client.read(GOOD, offset * 7 % (2 * MUCH), WRITE as usize).await;
        }
    });
    world.shared.store.set_rates(Rates::default());
    assert_eq!(world.drain(&engine), Ok(()));
    check(&mut world, &engine);
}

#[test]
fn a_cut_that_a_volume_does_not_carry_out_does_not_keep_the_log() {
    for seed in 0..2 {
        let mut world = world(seed);
        let engine = world.start_through(Vec::new()).unwrap();
        fill(&world, &engine, BAD.0, 0..2 << 20, Allowed::default());
        let stuck = Rates { stuck: Some(Stuck::Truncate), ..Rates::default() };
        world.shared.store.set_rates_of(BAD.1, stuck);
        let mut client = Client::new(&world.shared, &engine, Allowed::default(), world.rng.fork());
        let cutting = async move { client.truncate(BAD.0, (1 << 20) + 100).await };
        world.shared.executor.start("client", Box::pin(cutting));
        for _ in 0..2 {
            fill(&world, &engine, GOOD, 0..MUCH, Allowed::default());
        }
        let engine = if seed % 2 == 0 {
            cut(&mut world, engine);
            world.shared.store.set_rates(Rates::default());
            world.start_through(Vec::new()).unwrap()
        } else {
            world.shared.store.set_rates(Rates::default());
            engine
        };
        let object = world.shared.objects.lock().object(BAD.0).unwrap();
        assert_eq!(until(&world, move || object.size() == (1 << 20) + 100), Stop::Done);
        assert_eq!(world.drain(&engine), Ok(()));
        check(&mut world, &engine);
        world.crash(Crash::Kill);
    }
}

#[test]
fn a_flush_says_that_a_volume_does_not_answer_once_the_others_are_through() {
    let mut world = world(1);
    let engine = world.start_through(Vec::new()).unwrap();
    world.shared.store.set_rates_of(BAD.1, Rates { stuck: Some(Stuck::Sync), ..Rates::default() });
    fill(&world, &engine, BAD.0, 0..1 << 20, Allowed::default());
    fill(&world, &engine, GOOD, 0..8 << 20, Allowed::default());
    let theirs = engine.clone();
    let flushed = world.shared.executor.block_on(LIMIT, async move { theirs.flush().await });
    assert_eq!(flushed, Ok(Err(Error::Late)));
    let dirty = |name: &str| {
        let volumes = engine.volumes();
        volumes.iter().find(|volume| volume.name == name).map(|volume| volume.dirty_blocks)
    };
    assert_eq!((dirty("volume 0"), dirty("volume 1")), (Some(0), Some(256)));
    world.shared.store.set_rates(Rates::default());
    assert_eq!(world.drain(&engine), Ok(()));
    check(&mut world, &engine);
    world.crash(Crash::Kill);
}

/// The stop begins while the volume is late already, or while its requests have just begun.
#[test]
pub(super) fn a_stop_ends_though_a_volume_does_not_answer_and_what_it_lacks_stays_in_the_log() {
    for (stuck, is_late) in
        [(Stuck::Write, true), (Stuck::Write, false), (Stuck::Sync, true), (Stuck::Sync, false)]
    {
        let mut world = world(6);
        let engine = world.start_through(Vec::new()).unwrap();
        world.shared.store.set_rates_of(BAD.1, Rates { stuck: Some(stuck), ..Rates::default() });
        fill(&world, &engine, BAD.0, 0..1 << 20, Allowed::default());
        fill(&world, &engine, GOOD, 0..1 << 20, Allowed::default());
        let theirs = engine.clone();
        let flushing = async move { _ = theirs.flush().await };
        world.shared.executor.start("flush", Box::pin(flushing));
        let theirs = engine.clone();
        let good = move || theirs.volumes().iter().any(|it| it.name == "volume 0" && it.dirty_blocks == 0);
        assert_eq!(until(&world, good), Stop::Done);
        let theirs = engine.clone();
        assert!(
            !is_late || until(&world, move || volume(&theirs).trouble == Some(Error::Late)) == Stop::Done
        );
        let before = world.shared.executor.time();
        assert_eq!(world.close(&engine), Ok(()), "{stuck:?}");
        let took = world.shared.executor.time() - before;
        assert!(took < Duration::from_secs(15), "{took:?}");
        assert_eq!(volume(&engine).dirty_blocks, 256);
        drop(engine);
        world.crash(Crash::Kill);
        world.shared.store.set_rates(Rates::default());
        let engine = world.start_through(Vec::new()).unwrap();
        check(&mut world, &engine);
        assert_eq!(world.drain(&engine), Ok(()));
        check(&mut world, &engine);
        world.crash(Crash::Kill);
    }
}

#[test]
fn a_volume_that_does_not_answer_a_write_past_the_log_is_told_of_and_holds_up_no_other() {
    let mut world = world(3);
    let engine = world.start_through(Vec::new()).unwrap();
    engine.set_mode(Mode::WriteThrough);
    world.shared.store.set_rates_of(BAD.1, Rates { stuck: Some(Stuck::Write), ..Rates::default() });
    let mut client = Client::new(&world.shared, &engine, Allowed::default(), world.rng.fork());
    let writing = async move { client.write(BAD.0, 0, WRITE, true).await };
    world.shared.executor.start("client", Box::pin(writing));
    let theirs = engine.clone();
    assert_eq!(until(&world, move || volume(&theirs).trouble == Some(Error::Late)), Stop::Done);
    fill(&world, &engine, GOOD, 0..8 << 20, Allowed::default());
    world.shared.store.set_rates(Rates::default());
    let theirs = engine.clone();
    assert_eq!(until(&world, move || volume(&theirs).trouble.is_none()), Stop::Done);
    check(&mut world, &engine);
    world.crash(Crash::Kill);
}

#[test]
fn a_volume_is_not_late_because_the_clock_jumps() {
    let mut world = world(4);
    let engine = world.start_through(Vec::new()).unwrap();
    world.shared.store.set_rates_of(BAD.1, Rates { stuck: Some(Stuck::Sync), ..Rates::default() });
    fill(&world, &engine, BAD.0, 0..1 << 20, Allowed::default());
    let (executor, store) = (world.shared.executor.clone(), world.shared.store.clone());
    let jumping = async move {
        executor.sleep(Duration::from_secs(2)).await;
        executor.jump(Duration::from_secs(3600));
        executor.sleep(Duration::from_secs(2)).await;
        store.set_rates(Rates::default());
    };
    world.shared.executor.start("clock", Box::pin(jumping));
    let theirs = engine.clone();
    let flushed = world.shared.executor.block_on(LIMIT, async move { theirs.flush().await });
    assert_eq!(flushed, Ok(Ok(())));
    check(&mut world, &engine);
    world.crash(Crash::Kill);
}
