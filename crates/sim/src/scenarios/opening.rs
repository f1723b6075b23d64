//! Devices that hang while the pool is opened or recovered.

use forebay_engine::Event;
use forebay_engine::io::Clock as _;

use super::joining::hold_from;
use super::*;

fn told(world: &World, is_one: impl Fn(&Event) -> bool) -> usize {
    world.shared.told.lock().iter().filter(|event| is_one(event)).count()
}

/// Returns a world of two devices with data that only the cache has, after a power cut.
fn used(seed: u64) -> World {
    let mut world = world(seed, 2);
    let engine = world.start_through(Vec::new()).unwrap();
    write(&world, &engine, 0, 40);
    cut(&mut world, engine);
    world
}

/// Releases the devices after a time.
fn release_in(world: &World, time: Duration) {
    let (executor, disks) = (world.shared.executor.clone(), world.disks.clone());
    let releasing = async move {
        executor.sleep(time).await;
        disks.iter().for_each(|disk| disk.release());
    };
    world.shared.executor.start("release", Box::pin(releasing));
}

#[test]
pub(super) fn a_start_goes_on_without_a_device_that_does_not_answer_from_any_of_its_operations_on() {
    let mut first = 0;
    loop {
        let mut world = used(first.into());
        let begun = world.shared.executor.time();
        hold_from(&world.disks[1], first);
        let engine = world.start_through(Vec::new());
        let engine = engine.unwrap_or_else(|error| panic!("from operation {first}: {error}"));
        if world.disks[1].holds() == 0 {
            assert!(first > 60, "the whole start takes {first} operations");
            return;
        }
        let took = world.shared.executor.time() - begun;
        assert!(took < Duration::from_secs(40), "from operation {first}: {took:?}");
        let theirs = engine.clone();
        assert_eq!(until(&world, move || theirs.active() == 1), Stop::Done);
        assert_eq!(engine.effective_mode(), Mode::WriteThrough, "from operation {first}");
        assert!(told(&world, |event| matches!(event, Event::DeviceLate { .. })) > 0, "it is told");
        write(&world, &engine, 10, 10);
        world.disks[1].release();
        write(&world, &engine, 20, 10);
        check(&mut world, &engine);
        cut(&mut world, engine);
        let engine = world.start_through(Vec::new()).unwrap();
        assert_eq!(engine.active(), 1, "it is out of date, from operation {first}");
        check(&mut world, &engine);
        cut(&mut world, engine);
        world.disks[0].vanish();
        let Err(refused) = world.start_through(Vec::new()) else { panic!("it is believed alone") };
        assert!(refused.contains("out of date"), "{refused}");
        first += if first < 16 { 1 } else { 7 };
    }
}

#[test]
fn devices_that_all_hang_at_a_start_are_waited_for() {
    for first in 0..5 {
        let mut world = used(first.into());
        world.disks.iter().for_each(|disk| hold_from(disk, first));
        release_in(&world, Duration::from_secs(60));
        let engine = world.start_through(Vec::new()).unwrap();
        assert_eq!(engine.active(), 2, "from operation {first}");
        assert!(told(&world, |event| matches!(event, Event::DeviceLate { .. })) > 0);
        write(&world, &engine, 10, 10);
        check(&mut world, &engine);
        world.crash(Crash::Kill);
    }
}

/// The hanging device was used alone, and the other device is out of date. So the start waits, and reports that.
#[test]
pub(super) fn a_device_that_is_needed_is_waited_for_at_a_start_and_that_is_told() {
    for first in 0..5 {
        let mut world = used(first.into());
        world.disks[1].vanish();
        let engine = world.start_through(Vec::new()).unwrap();
        write(&world, &engine, 0, 10);
        cut(&mut world, engine);
        world.disks[1].appear();
        hold_from(&world.disks[0], first);
        release_in(&world, Duration::from_secs(60));
        let begun = world.shared.executor.time();
        let engine = world.start_through(Vec::new()).unwrap();
        assert!(world.shared.executor.time() - begun > Duration::from_secs(50), "it was waited for");
        let name = world.disks[0].name();
        let awaited = |event: &Event| matches!(event, Event::DeviceAwaited { device, .. } if device == name);
        assert_eq!((told(&world, awaited), engine.active()), (1, 1), "from operation {first}");
        check(&mut world, &engine);
        world.crash(Crash::Kill);
    }
}

#[test]
fn the_only_device_is_waited_for_at_a_start() {
    for first in [0, 5, 10, 30] {
        let mut world = world(first.into(), 1);
        let engine = world.start_through(Vec::new()).unwrap();
        write(&world, &engine, 0, 40);
        cut(&mut world, engine);
        hold_from(&world.disks[0], first);
        release_in(&world, Duration::from_secs(60));
        let engine = world.start_through(Vec::new()).unwrap();
        assert_eq!(engine.active(), 1);
        assert!(told(&world, |event| matches!(event, Event::DeviceLate { .. })) > 0);
        check(&mut world, &engine);
        world.crash(Crash::Kill);
    }
}

/// A controller with both devices hangs while only one of them is read.
#[test]
pub(super) fn a_device_is_not_given_up_for_one_that_owes_no_answer_and_gives_none() {
    for first in [8, 12, 20, 40] {
        let mut world = used(first.into());
        let other = world.disks[0].clone();
        let count = std::sync::atomic::AtomicU32::new(0);
        // The other device hangs from that moment on.
        world.disks[1].hold(move |_| {
            let hangs = count.fetch_add(1, std::sync::atomic::Ordering::Relaxed) >= first;
            if hangs {
                other.hold(|_| true);
            }
            hangs
        });
        release_in(&world, Duration::from_secs(40));
        let engine = world.start_through(Vec::new()).unwrap();
        assert_eq!(engine.active(), 2, "from operation {first}");
        check(&mut world, &engine);
        world.crash(Crash::Kill);
    }
}
