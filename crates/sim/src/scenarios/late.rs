//! Tests of devices that do not answer.

use std::sync::atomic::{AtomicUsize, Ordering};

use forebay_engine::Event;
use forebay_engine::io::Clock as _;

use super::*;
use crate::disk::Operation;

fn late(world: &World) -> usize {
    world.shared.told.lock().iter().filter(|event| matches!(event, Event::DeviceLate { .. })).count()
}

#[test]
fn a_device_that_does_not_answer_is_lost_and_what_it_does_later_harms_nobody() {
    for seed in 0..10 {
        let mut world = world(seed, 2);
        let engine = world.start_through(Vec::new()).unwrap();
        write(&world, &engine, 0, 50);
        let begun = world.shared.executor.time();
        world.disks[1].hold(|_| true);
        let mut client = Client::new(&world.shared, &engine, Allowed::default(), world.rng.fork());
        let writing = async move { client.write(1, 40 * 4096, 4096, true).await };
        world.shared.executor.start("client", Box::pin(writing));
        let theirs = engine.clone();
        assert_eq!(until(&world, move || theirs.active() == 1), Stop::Done);
        // The engine may take the deadline and at most two of its quarters: one until time is counted, one until it is
        // checked.
        let took = world.shared.executor.time() - begun;
        assert!((Duration::from_secs(10)..Duration::from_secs(16)).contains(&took), "{took:?}");
        write(&world, &engine, 41, 20);
        assert_eq!((engine.active(), late(&world), world.disks[1].holds() > 0), (1, 1, true));
        world.disks[1].release();
        check(&mut world, &engine);
        cut(&mut world, engine);
        let engine = world.start_through(Vec::new()).unwrap();
        assert_eq!(engine.active(), 1, "it is out of date");
        check(&mut world, &engine);
        world.crash(Crash::Kill);
    }
}

/// Stops the engine of a world of `devices` devices. One of them answers the first `answers` operations of the stop,
/// and no later one. Returns false if the stop has no more operations than that.
fn stop_with_silent(devices: usize, answers: usize) -> bool {
    let mut world = world(7, devices);
    let engine = world.start_through(Vec::new()).unwrap();
    write(&world, &engine, 0, 300);
    with_client(&world, &engine, Allowed::default(), |mut client| async move {
        // A stop puts the clean blocks of memory on a device.
        client.read(1, 0, 1 << 20).await;
        client.write(1, 0, 4096, false).await;
    });
    let begun = AtomicUsize::new(0);
    world.disks[1].hold(move |_| begun.fetch_add(1, Ordering::Relaxed) >= answers);
    let before = world.shared.executor.time();
    assert_eq!(world.close(&engine), Ok(()), "{devices} devices, silent after {answers} operations");
    let took = world.shared.executor.time() - before;
    let is_silent = world.disks[1].holds() > 0;
    assert!(took < Duration::from_secs(60), "{took:?}");
    assert_eq!(engine.active(), devices - usize::from(is_silent));
    world.disks[1].release();
    cut(&mut world, engine);
    let engine = world.start_through(Vec::new()).unwrap();
    assert_eq!(engine.active(), devices - usize::from(is_silent), "a loss that was reported lasts");
    check(&mut world, &engine);
    world.crash(Crash::Kill);
    is_silent
}

#[test]
pub(super) fn a_stop_ends_though_a_device_does_not_answer_from_any_of_its_operations_on() {
    for devices in [2, 3] {
        let operations = (0..).find(|answers| !stop_with_silent(devices, *answers));
        assert!(operations.is_some_and(|operations| operations > 3), "{operations:?}");
    }
}

#[test]
fn a_read_goes_to_the_other_device_when_one_does_not_answer() {
    let mut world = world(3, 2);
    let engine = world.start_through(Vec::new()).unwrap();
    write(&world, &engine, 0, 300);
    world.disks[0].hold(|operation| matches!(operation, Operation::Read(_)));
    let begun = world.shared.executor.time();
    let mut client = Client::new(&world.shared, &engine, Allowed::default(), world.rng.fork());
    let first = async move {
        for block in [0, 40, 80] {
            client.read(1, block * 4096, 4096).await;
        }
    };
    world.shared.executor.start("reader", Box::pin(first));
    let disk = world.disks[0].clone();
    assert_eq!(until(&world, move || disk.holds() == 1), Stop::Done);
    // Only this write waits.
    with_client(&world, &engine, Allowed::default(), |mut client| async move {
        for block in 100..200 {
            client.read(1, block * 4096, 4096).await;
        }
    });
    assert_eq!((world.disks[0].holds(), engine.active()), (1, 2));
    assert!(world.shared.executor.time() - begun < Duration::from_secs(5));
    world.disks[0].release();
    check(&mut world, &engine);
}

#[test]
fn devices_that_are_all_silent_are_waited_for() {
    let mut world = world(4, 2);
    let engine = world.start_through(Vec::new()).unwrap();
    write(&world, &engine, 0, 50);
    world.disks.iter().for_each(|disk| disk.hold(|_| true));
    let mut client = Client::new(&world.shared, &engine, Allowed::default(), world.rng.fork());
    let writing = async move { client.write(1, 0, 4096, true).await };
    world.shared.executor.start("client", Box::pin(writing));
    let executor = world.shared.executor.clone();
    let a_while = async move { executor.sleep(Duration::from_secs(60)).await };
    assert_eq!(world.shared.executor.block_on(LIMIT, a_while), Ok(()));
    assert_eq!((engine.active(), late(&world)), (2, 2));
    world.disks.iter().for_each(|disk| disk.release());
    write(&world, &engine, 10, 10);
    assert_eq!(engine.active(), 2);
    check(&mut world, &engine);
}

#[test]
fn a_clock_that_jumps_makes_nobody_late() {
    let world = &mut world(5, 2);
    let engine = world.start_through(Vec::new()).unwrap();
    for jump in 0..20 {
        let mut client = Client::new(&world.shared, &engine, Allowed::default(), world.rng.fork());
        let writing = async move { client.write(1, jump * 4096, 4096, true).await };
        world.shared.executor.start("client", Box::pin(writing));
        world.shared.executor.jump(Duration::from_secs(3600));
        write(world, &engine, 100 + jump, 1);
    }
    assert_eq!((engine.active(), late(world)), (2, 0));
}
