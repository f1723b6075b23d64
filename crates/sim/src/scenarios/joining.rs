//! Devices that hang while they are added. No acknowledgement waits for such a device, and the pool stays as it was.

use std::sync::atomic::{AtomicU32, Ordering};

use forebay_engine::{ChangeError, Event};

use super::*;
use crate::disk::{Disk, Operation};

/// Makes the device hang from its operation number `first` on.
pub(super) fn hold_from(disk: &Disk, first: u32) {
    let count = AtomicU32::new(0);
    disk.hold(move |_| count.fetch_add(1, Ordering::Relaxed) >= first);
}

/// Adds the spare device.
fn add(world: &World, engine: &Arc<Engine>) -> Result<Result<(), ChangeError>, Stop> {
    let spare = world.shared.spares.lock()[0].clone();
    let theirs = engine.clone();
    let added = async move { theirs.add_device(Arc::new(spare), false).await };
    world.shared.executor.block_on(LIMIT, added)
}

/// Checks that the pool is as it was before the spare device was not added, now and after two starts.
fn is_as_before(world: &mut World, engine: Arc<Engine>) {
    let spare = world.shared.spares.lock()[0].clone();
    assert_eq!((engine.active(), engine.effective_mode()), (2, Mode::WriteBack));
    spare.release();
    write(world, &engine, 20, 20);
    cut(world, engine);
    let engine = world.start_through(Vec::new()).unwrap();
    assert_eq!(engine.active(), 2);
    check(world, &engine);
    // The late operations of the attempt have ended. The device is blank, or has the table of that attempt.
    world.disks.push(spare);
    cut(world, engine);
    let engine = world.start_through(Vec::new()).unwrap();
    assert_eq!(engine.active(), 2, "a device that was not added is not used");
    check(world, &engine);
}

#[test]
pub(super) fn a_device_that_hangs_while_it_is_added_is_given_up_and_the_pool_is_as_before() {
    for first in 0.. {
        let mut world = world(first.into(), 2);
        let engine = world.start_through(Vec::new()).unwrap();
        write(&world, &engine, 0, 20);
        let spare = world.shared.spares.lock()[0].clone();
        hold_from(&spare, first);
        let begun = world.shared.executor.time();
        let added = add(&world, &engine).unwrap_or_else(|stop| panic!("from operation {first}: {stop:?}"));
        let took = world.shared.executor.time() - begun;
        let Err(error) = added else {
            assert_eq!(spare.holds(), 0, "it was not needed");
            assert!(first > 12, "it was added with {first} operations");
            return;
        };
        assert!(matches!(error, ChangeError::Silent { .. }), "from operation {first}: {error}");
        assert!(error.to_string().contains(spare.name()), "{error}");
        // The deadline and some quarters of it: until ticks are counted, until the device is checked, and for a
        // discard.
        assert!((Duration::from_secs(10)..Duration::from_secs(19)).contains(&took), "{took:?}");
        if engine.active() == 2 {
            is_as_before(&mut world, engine);
        }
        world.crash(Crash::Kill);
    }
}

#[test]
fn a_device_that_could_not_be_added_is_added_once_it_answers() {
    for first in 0..16 {
        let mut world = world(first.into(), 2);
        let engine = world.start_through(Vec::new()).unwrap();
        write(&world, &engine, 0, 20);
        let spare = world.shared.spares.lock()[0].clone();
        hold_from(&spare, first);
        assert!(add(&world, &engine).unwrap().is_err());
        spare.release();
        let executor = world.shared.executor.clone();
        let a_while =
            async move { forebay_engine::io::Clock::sleep(&executor, Duration::from_secs(1)).await };
        assert_eq!(world.shared.executor.block_on(LIMIT, a_while), Ok(()));
        assert_eq!(add(&world, &engine), Ok(Ok(())), "after operation {first}");
        world.shared.joined.lock().push(spare);
        world.disks[1].vanish();
        write(&world, &engine, 10, 20);
        cut(&mut world, engine);
        let engine = world.start_through(Vec::new()).unwrap();
        check(&mut world, &engine);
    }
}

/// A member dies while the newcomer hangs. Its loss is recorded without waiting for the newcomer's deadline.
#[test]
pub(super) fn the_loss_of_a_member_is_recorded_at_once_while_a_device_that_is_added_hangs() {
    for first in 0..16 {
        let mut world = world(first.into(), 2);
        let engine = world.start_through(Vec::new()).unwrap();
        write(&world, &engine, 0, 20);
        let spare = world.shared.spares.lock()[0].clone();
        hold_from(&spare, first);
        let (theirs, newcomer) = (engine.clone(), spare.clone());
        let (promise, added) = crate::executor::promise();
        let adding = async move { promise.keep(theirs.add_device(Arc::new(newcomer), false).await) };
        world.shared.executor.start("administrator", Box::pin(adding));
        let disk = spare.clone();
        assert_eq!(until(&world, move || disk.holds() > 0), Stop::Done);
        world.disks[1].vanish();
        let begun = world.shared.executor.time();
        write(&world, &engine, 0, 1);
        let took = world.shared.executor.time() - begun;
        // The write waits for the slow backing store, and not for the newcomer's deadline of ten seconds.
        assert!(took < Duration::from_secs(2), "from operation {first}: {took:?}");
        let added = world.shared.executor.block_on(LIMIT, added).unwrap();
        assert!(added.is_err(), "a device that hangs is added");
        spare.release();
        write(&world, &engine, 20, 20);
        cut(&mut world, engine);
        world.disks[1].appear();
        world.disks.push(spare);
        let engine = world.start_through(Vec::new()).unwrap();
        assert_eq!(engine.active(), 1, "neither the lost device nor the newcomer is used");
        check(&mut world, &engine);
        world.crash(Crash::Kill);
    }
}

/// A member and a newcomer hang at once. The member is lost, and clients continue.
#[test]
fn a_member_and_a_newcomer_that_hang_are_both_given_up() {
    for first in [0, 3, 6, 8, 10, 12, 14] {
        let mut world = world(first.into(), 2);
        let engine = world.start_through(Vec::new()).unwrap();
        write(&world, &engine, 0, 20);
        let spare = world.shared.spares.lock()[0].clone();
        hold_from(&spare, first);
        world.disks[1].hold(|_| true);
        let theirs = engine.clone();
        let newcomer = spare.clone();
        let adding = async move { drop(theirs.add_device(Arc::new(newcomer), false).await) };
        world.shared.executor.start("administrator", Box::pin(adding));
        write(&world, &engine, 0, 20);
        assert_eq!(engine.active(), 1);
        world.disks[1].release();
        spare.release();
        write(&world, &engine, 20, 20);
        cut(&mut world, engine);
        let engine = world.start_through(Vec::new()).unwrap();
        assert_eq!(engine.active(), 1);
        check(&mut world, &engine);
        world.crash(Crash::Kill);
    }
}

/// The newcomer's superblock cannot be written. Later frames belong to an epoch that the members carry.
#[test]
pub(super) fn what_is_acknowledged_after_a_device_could_not_be_added_survives() {
    for seed in 0..4 {
        let mut world = world(seed, 2);
        let engine = world.start_through(Vec::new()).unwrap();
        write(&world, &engine, 0, 20);
        let spare = world.shared.spares.lock()[0].clone();
        spare.fail_once(|operation| operation == Operation::Write(0));
        if seed % 2 == 1 {
            // The first write of block 0 erases the device, the second one is the superblock.
            let writes = AtomicU32::new(0);
            spare.fail_once(move |operation| {
                operation == Operation::Write(0) && writes.fetch_add(1, Ordering::Relaxed) == 1
            });
        }
        let added = add(&world, &engine).unwrap();
        assert!(added.is_err(), "{added:?}");
        write(&world, &engine, 10, 20);
        cut(&mut world, engine);
        let engine = world.start_through(Vec::new()).unwrap();
        check(&mut world, &engine);
        world.crash(Crash::Kill);
    }
}

/// All devices hang, so none of them is given up.
#[test]
fn a_newcomer_is_waited_for_while_all_members_hang_as_well() {
    let mut world = world(7, 2);
    let engine = world.start_through(Vec::new()).unwrap();
    write(&world, &engine, 0, 20);
    let spare = world.shared.spares.lock()[0].clone();
    let all = [world.disks[0].clone(), world.disks[1].clone(), spare.clone()];
    all.iter().for_each(|disk| disk.hold(|_| true));
    let (theirs, newcomer) = (engine.clone(), spare);
    let (promise, added) = crate::executor::promise();
    let adding = async move { promise.keep(theirs.add_device(Arc::new(newcomer), false).await) };
    world.shared.executor.start("administrator", Box::pin(adding));
    let mut client = Client::new(&world.shared, &engine, Allowed::default(), world.rng.fork());
    let writing = async move { client.write(1, 0, 4096, true).await };
    world.shared.executor.start("client", Box::pin(writing));
    let executor = world.shared.executor.clone();
    let a_while = async move { forebay_engine::io::Clock::sleep(&executor, Duration::from_secs(60)).await };
    assert_eq!(world.shared.executor.block_on(LIMIT, a_while), Ok(()));
    let lost = world.shared.told.lock().iter().any(|event| matches!(event, Event::DeviceLost { .. }));
    assert_eq!((engine.active(), lost), (2, false));
    all.iter().for_each(|disk| disk.release());
    assert_eq!(world.shared.executor.block_on(LIMIT, added), Ok(Ok(())));
    write(&world, &engine, 20, 20);
    check(&mut world, &engine);
}
