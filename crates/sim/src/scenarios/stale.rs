//! Tests of a device that dropped out and is alone at a later start.

use forebay_engine::Mode;

use super::{LIMIT, check, cut, read, with_client, world, write};
use crate::client::{Allowed, Client};

/// The errors that clients may get once the log takes nothing more.
const STOPPED: Allowed = Allowed { backing: false, damage: true, no_device: true, late: false };

/// The first device drops out. The other device goes on and dies, and the host starts with the first one alone. Its
/// dirty blocks are older than the contents of the backing store.
#[test]
fn a_device_that_missed_something_is_refused_when_it_is_alone() {
    for seed in 0..8 {
        let mut world = world(seed, 2);
        let engine = world.start_through(Vec::new()).unwrap();
        write(&world, &engine, 0, 100);
        world.disks[0].vanish();
        write(&world, &engine, 0, 50);
        assert_eq!(engine.effective_mode(), Mode::WriteThrough);
        with_client(&world, &engine, Allowed::default(), |mut client| async move { client.flush().await });
        cut(&mut world, engine);
        world.disks[0].appear();
        world.disks[1].vanish();
        let Err(refused) = world.start_through(Vec::new()) else { panic!("stale blocks are served") };
        assert!(refused.contains("out of date"), "{refused}");
        // The message says to connect the other device.
        world.disks[1].appear();
        let engine = world.start_through(Vec::new()).unwrap();
        read(&world, &engine, 1, 100 * 4096);
        check(&mut world, &engine);
    }
}

/// A device that is alone because the other device was lost first is not out of date, whenever the machine stops.
#[test]
fn the_last_device_in_use_opens_alone_however_the_loss_of_the_other_one_was_cut_short() {
    let mut finished = false;
    for step in 1..40 {
        let mut world = world(step, 2);
        let engine = world.start_through(Vec::new()).unwrap();
        write(&world, &engine, 0, 20);
        world.disks[0].vanish();
        world.shared.executor.crash_in(Some(step));
        let mut client = Client::new(&world.shared, &engine, Allowed::default(), world.rng.clone());
        let writing = async move { client.write(1, 0, 4096, true).await };
        finished |= world.shared.executor.block_on(LIMIT, writing).is_ok();
        world.shared.executor.crash_in(None);
        cut(&mut world, engine);
        let engine = world.start_through(Vec::new()).unwrap();
        check(&mut world, &engine);
    }
    assert!(finished, "every write was interrupted");
}

/// A loss that cannot be noted stops the log. Otherwise a device that missed acknowledged writes would later contradict
/// them.
#[test]
fn a_loss_that_cannot_be_noted_stops_the_log() {
    let mut world = world(3, 2);
    world.shared.model.lock().logged = false;
    let engine = world.start_through(Vec::new()).unwrap();
    write(&world, &engine, 0, 100);
    world.shared.epochs.set_failing(true);
    world.disks[0].vanish();
    with_client(&world, &engine, STOPPED, |mut client| async move {
        for _ in 0..2 {
            client.write(1, 0, 4096, true).await;
        }
    });
    assert_eq!(engine.active(), 0, "a log goes on that nobody knows of");
    cut(&mut world, engine);
    world.shared.epochs.set_failing(false);
    let engine = world.start_through(Vec::new()).unwrap();
    check(&mut world, &engine);
}

/// Each of two devices is alone at a start. The power cuts the first of these starts short, after the device carries
/// the new epoch and before that epoch is noted. The first device must not take back data that the second start
/// acknowledges.
#[test]
pub(super) fn two_devices_that_are_each_there_alone_do_not_go_on_in_one_epoch() {
    for seed in 0..8 {
        let mut world = world(seed, 2);
        let engine = world.start_through(Vec::new()).unwrap();
        write(&world, &engine, 0, 20);
        cut(&mut world, engine);
        world.disks[0].vanish();
        world.shared.epochs.set_failing(true);
        assert!(world.start_through(Vec::new()).is_err(), "nobody notes the epoch");
        world.shared.epochs.set_failing(false);
        world.disks[0].appear();
        world.disks[1].vanish();
        let engine = world.start_through(Vec::new()).unwrap();
        write(&world, &engine, 0, 50);
        cut(&mut world, engine);
        world.disks[0].vanish();
        world.disks[1].appear();
        let Err(refused) = world.start_through(Vec::new()) else { panic!("older blocks are served") };
        assert!(refused.contains("out of date"), "{refused}");
        world.disks[0].appear();
        world.disks[1].vanish();
        let engine = world.start_through(Vec::new()).unwrap();
        check(&mut world, &engine);
    }
}
