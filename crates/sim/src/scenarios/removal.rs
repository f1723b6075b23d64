//! Removes a device, while this or another device dies.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use forebay_common::lock::Mutex;
use forebay_engine::io::{Clock as _, Device as _};
use forebay_engine::pool::{Contents, identify};
use forebay_engine::{ChangeError, Engine, Event, Mode};

use super::{LIMIT, check, cut, with_client, world_with, write};
use crate::backing::{Rates, Stuck};
use crate::client::{Allowed, Client};
use crate::executor::Stop;
use crate::world::{Crash, World};

/// The result of a removal, once it has ended.
type Ended = Arc<Mutex<Option<Result<(), ChangeError>>>>;

/// Begins to remove a device.
fn remove(world: &World, engine: &Arc<Engine>, device: usize) -> Ended {
    let (ended, theirs, name) = (Ended::default(), engine.clone(), world.disks[device].name().to_owned());
    let result = ended.clone();
    let removal = async move {
        let removed = theirs.remove_device(&name).await;
        *result.lock() = Some(removed);
    };
    world.shared.executor.start("removal", Box::pin(removal));
    ended
}

/// Waits for the end of a removal.
fn end(world: &World, ended: &Ended) -> Result<(), ChangeError> {
    let theirs = ended.clone();
    assert_eq!(until(world, move || theirs.lock().is_some()), Stop::Done);
    ended.lock().take().unwrap()
}

/// Makes devices with many dirty blocks. Writes during the removal partly bypass the log.
fn dirty_world(seed: u64, devices: usize) -> (World, Arc<Engine>) {
    let mut world = world_with(seed, devices, |plan| plan.habits.extent = 512 << 10);
    world.shared.model.lock().logged = false;
    let engine = world.start_through(Vec::new()).unwrap();
    write(&world, &engine, 0, 60);
    (world, engine)
}

/// The errors that clients may get once no device is left.
const LAST: Allowed = Allowed { backing: false, damage: false, no_device: true, late: false };

/// Waits until `is_true`, which is checked every few microseconds.
fn until(world: &World, is_true: impl Fn() -> bool + Send + 'static) -> Stop {
    let executor = world.shared.executor.clone();
    let waiting = async move {
        while !is_true() {
            executor.sleep(Duration::from_micros(20)).await;
        }
    };
    world
        .shared
        .executor
        .block_on(Duration::from_secs(100), waiting)
        .map_or_else(|stop| stop, |()| Stop::Done)
}

/// Starts clients that write, each block stable, until the flag is set. The counter counts the writes.
fn writers(world: &mut World, engine: &Arc<Engine>) -> (Arc<AtomicBool>, Arc<AtomicU64>) {
    let (over, written) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    for writer in 0..2 {
        let mut client = Client::new(&world.shared, engine, LAST, world.rng.fork());
        let (over, written, executor) = (over.clone(), written.clone(), world.shared.executor.clone());
        let writing = async move {
            for turn in 0_u64.. {
                if over.load(Ordering::Relaxed) {
                    return;
                }
                client.write(1, (writer * 40 + turn * 7 % 40) * 4096, 4096, true).await;
                written.fetch_add(1, Ordering::Relaxed);
                executor.sleep(Duration::from_micros(50)).await;
            }
        };
        world.shared.executor.start("client", Box::pin(writing));
    }
    (over, written)
}

fn is_last(error: &ChangeError, name: &str) -> bool {
    error.to_string() == format!("{name} is the last cache device; add another before removing it")
}

/// Removes a device of two while no client writes. Another device vanishes after this number of events. Returns true if
/// that was too late.
fn remove_and_lose(removed: usize, lost: usize, events: u64) -> bool {
    let (mut world, engine) = dirty_world(events, 2);
    world.disks[lost].vanish_in(Some(events));
    let ended = end(&world, &remove(&world, &engine, removed));
    let too_late = !world.disks[lost].is_gone();
    world.disks[lost].vanish_in(None);
    let told = world.shared.told.lock().clone();
    if let Err(error) = &ended {
        assert!(!too_late && lost != removed, "{error}");
        let name = world.disks[removed].name().to_owned();
        assert!(is_last(error, &name), "{told:?}");
        assert_eq!((engine.active(), engine.effective_mode()), (1, Mode::WriteThrough));
        let device = world.disks[lost].name().to_owned();
        let lost = Event::DeviceLost { device, left: 1, data_lost: false };
        assert!(told.contains(&lost) && told.contains(&Event::DeviceKept { device: name }), "{told:?}");
    }
    // All acknowledged data is read, with the devices that are left, and the engine goes on.
    check(&mut world, &engine);
    if engine.active() > 0 {
        write(&world, &engine, 30, 60);
        check(&mut world, &engine);
        cut(&mut world, engine);
        let engine = world.start_through(Vec::new()).unwrap();
        check(&mut world, &engine);
    }
    world.crash(Crash::Kill);
    too_late
}

#[test]
fn a_device_that_is_being_removed_stays_if_the_only_other_one_dies() {
    let mut events = 0..1000;
    let enough = events.find(|events| remove_and_lose(0, 1, *events));
    assert!(enough.is_some_and(|events| events > 10), "there was nothing to interrupt: {enough:?}");
}

#[test]
fn a_device_that_dies_while_it_is_being_removed_is_not_missed() {
    let mut events = 0..1000;
    let enough = events.find(|events| remove_and_lose(0, 0, *events));
    assert!(enough.is_some_and(|events| events > 10), "there was nothing to interrupt: {enough:?}");
}

/// Removes device 0 over a file system that does not answer, while `lost` dies. The result must be known long before
/// the file system would be given up.
fn remove_over_a_stuck_volume(lost: usize) -> Result<(), ChangeError> {
    let (mut world, engine) = dirty_world(lost as u64, 2);
    world.shared.store.set_rates(Rates { stuck: Some(Stuck::Sync), ..Rates::default() });
    let executor = world.shared.executor.clone();
    let ended = remove(&world, &engine, 0);
    let begun = executor.time();
    let pause = executor.clone();
    let a_while = async move { pause.sleep(Duration::from_secs(1)).await };
    assert_eq!(executor.block_on(LIMIT, a_while), Ok(()));
    assert_eq!(*ended.lock(), None, "what is dirty is not in the backing store");
    world.disks[lost].vanish();
    // A write lets the engine notice the loss.
    let notary = world.notary(&engine);
    assert_eq!(executor.block_on(LIMIT, async move { notary.write_one(true).await }), Ok(()));
    let result = end(&world, &ended);
    assert!(executor.time() - begun < Duration::from_secs(2), "it waited for the file system");
    check(&mut world, &engine);
    world.shared.store.unstick();
    write(&world, &engine, 30, 60);
    cut(&mut world, engine);
    let engine = world.start_through(Vec::new()).unwrap();
    check(&mut world, &engine);
    world.crash(Crash::Kill);
    result
}

#[test]
fn the_death_of_another_device_is_noticed_while_a_removal_waits_for_a_file_system() {
    assert!(is_last(&remove_over_a_stuck_volume(1).unwrap_err(), "disk0"));
}

#[test]
fn the_death_of_a_device_is_noticed_while_its_removal_waits_for_a_file_system() {
    assert_eq!(remove_over_a_stuck_volume(0), Ok(()));
}

/// Returns true if a device carries the superblock of a member.
fn is_member(world: &World, device: usize) -> bool {
    let disk = world.disks[device].clone();
    let contents = world.shared.executor.block_on(LIMIT, async move { identify(&disk).await });
    matches!(contents, Ok(Ok(Contents::Pool(_))))
}

/// Removes device 0 while clients write. Another device vanishes after `events` events, and the power may fail `power`
/// steps later. Returns true if the device vanished too late.
fn remove_under_load(devices: usize, lost: usize, events: u64, power: Option<u64>) -> bool {
    let (mut world, engine) = dirty_world(events, devices);
    let (over, written) = writers(&mut world, &engine);
    let ended = remove(&world, &engine, 0);
    world.disks[lost].vanish_in(Some(events));
    let (disk, theirs) = (world.disks[lost].clone(), ended.clone());
    assert_eq!(until(&world, move || disk.is_gone() || theirs.lock().is_some()), Stop::Done, "{events}");
    let too_late = !world.disks[lost].is_gone();
    world.disks[lost].vanish_in(None);
    if too_late {
        assert_eq!(*ended.lock(), Some(Ok(())), "{events}");
        world.disks[1].vanish();
    }
    world.shared.executor.crash_in(power);
    let enough = if power.is_some() { u64::MAX } else { written.load(Ordering::Relaxed) + 20 };
    let goes_on = until(&world, move || written.load(Ordering::Relaxed) > enough);
    let expected = if power.is_some() { Stop::Crashed } else { Stop::Done };
    assert_eq!((goes_on, world.shared.failure.lock().clone()), (expected, None), "{events} {power:?}");
    if power.is_none() {
        let removed = too_late || end(&world, &ended).is_ok();
        assert!(removed || (devices, lost) == (2, 1), "{events}");
        over.store(true, Ordering::Relaxed);
        let gone = usize::from(removed) + usize::from(too_late || lost == 1);
        assert_eq!(engine.active(), devices - gone, "{events}");
        check(&mut world, &engine);
    }
    cut(&mut world, engine);
    // The only device that was left comes back, if it vanished.
    if !(0..devices).any(|device| is_member(&world, device)) {
        world.disks[1].appear();
    }
    let engine = world.start_through(Vec::new()).unwrap();
    check(&mut world, &engine);
    world.crash(Crash::Kill);
    too_late
}

/// Runs [`remove_under_load`] for every number of events, until the removal ends first.
fn remove_under_load_at_every_event(devices: usize, lost: usize) {
    for (first, power) in [(0, None), (1, Some(1)), (0, Some(3)), (1, Some(40))] {
        let mut events = (first..1000).step_by(2);
        let enough = events.find(|events| remove_under_load(devices, lost, *events, power));
        assert!(enough.is_some_and(|events| events > 10), "there was nothing to interrupt: {enough:?}");
    }
}

#[test]
fn nothing_acknowledged_is_lost_if_the_other_device_dies_during_or_after_a_removal() {
    remove_under_load_at_every_event(2, 1);
}

#[test]
fn nothing_acknowledged_is_lost_if_a_device_dies_that_is_being_removed() {
    remove_under_load_at_every_event(2, 0);
}

#[test]
fn of_three_devices_one_may_die_while_another_is_being_removed() {
    remove_under_load_at_every_event(3, 1);
}

#[test]
fn one_device_is_removed_at_a_time() {
    let (world, engine) = dirty_world(1, 3);
    let first = remove(&world, &engine, 0);
    let theirs = engine.clone();
    assert_eq!(until(&world, move || theirs.staying() == 2), Stop::Done);
    let second = remove(&world, &engine, 1);
    let again = remove(&world, &engine, 0);
    let told = |error: Result<(), ChangeError>| error.unwrap_err().to_string();
    let expected = "disk0 is being removed; wait for the end of that, then ask again";
    assert_eq!((told(end(&world, &second)), told(end(&world, &again))), (expected.into(), expected.into()));
    assert_eq!(end(&world, &first), Ok(()));
    assert_eq!(end(&world, &remove(&world, &engine, 1)), Ok(()));
    let last = end(&world, &remove(&world, &engine, 2));
    assert!(is_last(&last.unwrap_err(), "disk2"));
}

#[test]
fn a_device_added_while_one_of_two_is_removed_makes_it_write_back_again() {
    for delay in 0..40 {
        let (mut world, engine) = dirty_world(delay, 2);
        let (over, _) = writers(&mut world, &engine);
        let ended = remove(&world, &engine, 0);
        let (theirs, executor) = (engine.clone(), world.shared.executor.clone());
        let spare = world.shared.spares.lock().pop().unwrap();
        world.shared.joined.lock().push(spare.clone());
        let adding = async move {
            executor.sleep(Duration::from_micros(delay * 97)).await;
            theirs.add_device(Arc::new(spare), false).await
        };
        assert_eq!(world.shared.executor.block_on(LIMIT, adding), Ok(Ok(())));
        assert_eq!(end(&world, &ended), Ok(()));
        let theirs = engine.clone();
        assert_eq!(until(&world, move || theirs.effective_mode() == Mode::WriteBack), Stop::Done);
        over.store(true, Ordering::Relaxed);
        world.disks[1].vanish();
        check(&mut world, &engine);
        cut(&mut world, engine);
        let engine = world.start_through(Vec::new()).unwrap();
        check(&mut world, &engine);
        world.crash(Crash::Kill);
    }
}

#[test]
fn a_removal_that_is_given_up_leaves_everything_as_it_was() {
    let (mut world, engine) = dirty_world(3, 2);
    let theirs = engine.clone();
    let name = world.disks[0].name().to_owned();
    let given_up = async move {
        let mut removal = Box::pin(async move { theirs.remove_device(&name).await });
        let once =
            std::future::poll_fn(|context| std::task::Poll::Ready(removal.as_mut().poll(context).is_ready()));
        once.await
    };
    assert_eq!(world.shared.executor.block_on(LIMIT, given_up), Ok(false));
    assert_eq!(engine.effective_mode(), Mode::WriteBack);
    write(&world, &engine, 50, 60);
    world.disks[1].vanish();
    check(&mut world, &engine);
    with_client(&world, &engine, Allowed::default(), |mut client| async move { client.flush().await });
}
