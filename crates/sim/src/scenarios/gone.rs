//! Tests of a pool without any device left.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use forebay_engine::io::{Clock as _, Time};
use forebay_engine::{Engine, Error};

use super::{LIMIT, check, cut, read, until, with_client, world, write};
use crate::client::{Allowed, Client};
use crate::executor::Stop;
use crate::world::World;

/// The errors that clients may get without any device.
const LOST: Allowed = Allowed { backing: false, damage: true, no_device: true, late: false };

/// Lets every device vanish. The engine notices at a write to file 1.
fn lose_all(world: &World, engine: &Arc<Engine>) {
    world.disks.iter().for_each(|disk| disk.vanish());
    with_client(world, engine, LOST, |mut client| async move {
        for _ in 0..2 {
            client.write(1, 0, 4096, true).await;
        }
    });
    assert_eq!(engine.active(), 0);
}

/// Starts the machine again, with the devices back.
fn come_back(world: &mut World, engine: Arc<Engine>) -> Arc<Engine> {
    cut(world, engine);
    world.disks.iter().for_each(|disk| disk.appear());
    world.start_through(Vec::new()).unwrap()
}

#[test]
fn with_no_device_left_dirty_blocks_are_errors_and_clean_ones_come_from_the_backing_store() {
    let mut world = world(2, 2);
    let engine = world.start_through(Vec::new()).unwrap();
    write(&world, &engine, 0, 100);
    world.disks.iter().for_each(|disk| disk.vanish());
    let object = world.shared.objects.lock().object(1).unwrap();
    let theirs = engine.clone();
    let read = async move {
        let mut results = Vec::new();
        for block in 0..200 {
            let mut buffer = vec![0; 4096];
            results.push(theirs.read(&object, block * 4096, &mut buffer).await.is_ok());
        }
        results
    };
    let results = world.shared.executor.block_on(LIMIT, read).unwrap();
    assert!(results[..50].iter().all(|read| !read), "only the cache has them: {results:?}");
    assert!(results[100..].iter().all(|read| *read), "{results:?}");
    // A new device must not replace devices that hold data with no other copy.
    let spare = world.shared.spares.lock().pop().unwrap();
    let theirs = engine.clone();
    let refused = async move {
        theirs.flush().await.is_err() && theirs.add_device(Arc::new(spare), false).await.is_err()
    };
    assert_eq!(world.shared.executor.block_on(LIMIT, refused), Ok(true));
    cut(&mut world, engine);
    world.disks.iter().for_each(|disk| disk.appear());
    let engine = world.start_through(Vec::new()).unwrap();
    check(&mut world, &engine);
}

#[test]
fn without_any_device_clients_go_on_and_what_comes_back_with_the_devices_is_not_older() {
    for seed in 0..20 {
        let mut world = world(seed, 1 + seed as usize % 2);
        world.shared.model.lock().logged = false;
        let engine = world.start_through(Vec::new()).unwrap();
        write(&world, &engine, 0, 300);
        with_client(&world, &engine, Allowed::default(), |mut client| async move { client.flush().await });
        read(&world, &engine, 1, 300 * 4096);
        lose_all(&world, &engine);
        with_client(&world, &engine, Allowed::default(), |mut client| async move {
            for block in 1..60 {
                client.write(1, block * 4096 + block, 4096, block % 2 == 0).await;
            }
            client.truncate(1, 100 * 4096 + 10).await;
            client.truncate(1, 200 * 4096).await;
            client.write(1, 150 * 4096, 4096, true).await;
        });
        check(&mut world, &engine);
        let mut engine = come_back(&mut world, engine);
        // The noted changes are in the log in the first round, and only in the index in the second.
        for _ in 0..2 {
            check(&mut world, &engine);
            write(&world, &engine, 120, 10);
            engine = come_back(&mut world, engine);
        }
        check(&mut world, &engine);
        world.crash(crate::world::Crash::Kill);
    }
}

#[test]
fn what_only_devices_had_that_are_gone_is_an_error_until_overwritten_and_back_with_them() {
    for seed in 0..20 {
        let mut world = world(seed, 2);
        world.shared.model.lock().logged = false;
        let engine = world.start_through(Vec::new()).unwrap();
        write(&world, &engine, 0, 300);
        lose_all(&world, &engine);
        with_client(&world, &engine, Allowed::default(), |mut client| async move {
            // These writes lie beside lost blocks, over them, and over blocks that are still in memory.
            client.write(1, 400 * 4096 + 5, 8192, true).await;
            client.write(1, 10 * 4096, 3 * 4096, true).await;
            client.write(1, 299 * 4096, 4096, true).await;
        });
        let object = world.shared.objects.lock().object(1).unwrap();
        let theirs = engine.clone();
        let asked = async move {
            let mut contents = vec![0; 4096];
            let read = theirs.read(&object, 50 * 4096, &mut contents).await.map(|_| ());
            let written = theirs.write(&object, 50 * 4096 + 1, &[1; 100], Time::default()).await;
            (read, written.map(|_| ()))
        };
        let lost = Err(Error::Damaged);
        assert_eq!(world.shared.executor.block_on(LIMIT, asked), Ok((lost, lost)), "seed {seed}");
        let engine = come_back(&mut world, engine);
        check(&mut world, &engine);
        with_client(&world, &engine, Allowed::default(), |mut client| async move { client.flush().await });
        let engine = come_back(&mut world, engine);
        check(&mut world, &engine);
        world.crash(crate::world::Crash::Kill);
    }
}

#[test]
fn a_file_with_lost_blocks_can_be_cut_to_nothing_and_written_anew() {
    let mut world = world(3, 2);
    world.shared.model.lock().logged = false;
    let engine = world.start_through(Vec::new()).unwrap();
    write(&world, &engine, 0, 100);
    lose_all(&world, &engine);
    with_client(&world, &engine, Allowed::default(), |mut client| async move {
        client.truncate(1, 0).await;
        client.write(1, 4096, 8192, true).await;
    });
    check(&mut world, &engine);
    let engine = come_back(&mut world, engine);
    check(&mut world, &engine);
}

/// Truncates file 1 and writes to it beyond that. Returns false if a crash came first.
fn cut_and_write(world: &World, engine: &Arc<Engine>, size: u64, crash_in: Option<u64>) -> bool {
    world.shared.executor.crash_in(crash_in);
    let mut client = Client::new(&world.shared, engine, LOST, world.rng.clone());
    let acting = async move {
        client.truncate(1, size).await;
        client.write(1, 70 * 4096 + 100, 4096, true).await;
        client.truncate(1, 80 * 4096).await;
    };
    let done = world.shared.executor.block_on(LIMIT, acting);
    world.shared.executor.crash_in(None);
    assert_eq!(*world.shared.failure.lock(), None);
    done.is_ok()
}

#[test]
fn a_cut_that_no_device_knows_of_is_carried_out_whole_or_not_at_all() {
    for (noticed, size) in [(true, 50 * 4096), (true, 50 * 4096 + 10), (false, 60 * 4096 + 10)] {
        let mut steps = 1..1000;
        let done = steps.find(|step| cut_through_a_crash(noticed, size, *step));
        assert!(done.is_some_and(|step| step > 10), "there was nothing to interrupt: {done:?}");
    }
}

/// Truncates file 1, partly dirty, without devices and with a crash after this number of steps. Returns true if that is
/// too late.
fn cut_through_a_crash(noticed: bool, size: u64, step: u64) -> bool {
    let mut world = world(3, 2);
    world.shared.model.lock().logged = false;
    let mut engine = world.start_through(Vec::new()).unwrap();
    write(&world, &engine, 0, 100);
    with_client(&world, &engine, Allowed::default(), |mut client| async move { client.flush().await });
    write(&world, &engine, 55, 30);
    // This block is in memory.
    write(&world, &engine, 60, 1);
    if noticed {
        lose_all(&world, &engine);
    } else {
        world.disks.iter().for_each(|disk| disk.vanish());
    }
    let done = cut_and_write(&world, &engine, size, Some(step));
    cut(&mut world, engine);
    world.disks.iter().for_each(|disk| disk.appear());
    // Recovery is cut short too, twice.
    engine = world.start_through(vec![step % 97 + 1, step % 41 + 1]).unwrap();
    check(&mut world, &engine);
    engine = come_back(&mut world, engine);
    check(&mut world, &engine);
    world.crash(crate::world::Crash::Kill);
    done
}

/// A dirty block in front of the new end keeps the record of the truncation from covering the whole file.
#[test]
fn a_clean_copy_of_the_last_block_has_nothing_that_was_cut_off_when_it_comes_back() {
    let mut world = world(5, 2);
    world.shared.model.lock().logged = false;
    let engine = world.start_through(Vec::new()).unwrap();
    write(&world, &engine, 0, 100);
    with_client(&world, &engine, Allowed::default(), |mut client| async move { client.flush().await });
    write(&world, &engine, 20, 10);
    lose_all(&world, &engine);
    assert!(cut_and_write(&world, &engine, 50 * 4096 + 10, None));
    let engine = come_back(&mut world, engine);
    check(&mut world, &engine);
    world.crash(crate::world::Crash::Kill);
}

#[test]
fn a_cut_is_carried_out_whole_or_not_at_all_whenever_the_devices_go() {
    let last_blocks = [50 * 4096, 50 * 4096 + 10];
    for (delay, size) in (0..50).flat_map(|delay| last_blocks.map(|size| (delay, size))) {
        let mut world = world(delay, 2);
        world.shared.model.lock().logged = false;
        let engine = world.start_through(Vec::new()).unwrap();
        write(&world, &engine, 0, 100);
        if delay % 3 == 0 {
            with_client(
                &world,
                &engine,
                Allowed::default(),
                |mut client| async move { client.flush().await },
            );
            write(&world, &engine, 30, 50);
        }
        // The block in which the truncation ends is in memory.
        write(&world, &engine, 50, 1);
        let (executor, disks) = (world.shared.executor.clone(), world.disks.clone());
        let going = async move {
            executor.sleep(Duration::from_micros(delay * 20)).await;
            disks.iter().for_each(|disk| disk.vanish());
        };
        world.shared.executor.start("trouble", Box::pin(going));
        let crash_in = (delay % 4 == 3).then_some(delay);
        if cut_and_write(&world, &engine, size, crash_in) {
            check_what_is_left(&world, &engine);
        }
        let engine = come_back(&mut world, engine);
        check(&mut world, &engine);
        let engine = come_back(&mut world, engine);
        check(&mut world, &engine);
        world.crash(crate::world::Crash::Kill);
    }
}

/// A write over a clean block is accepted, not durable, when all devices vanish. Then the block is overwritten without
/// them. A copy that comes back with the devices must not hide contents of the backing store.
#[test]
fn clean_copies_that_come_back_do_not_hide_what_an_interrupted_write_left() {
    let done = (1..1000).find(|step| overwrite_through_a_crash(*step));
    assert!(done.is_some_and(|step| step > 10), "there was nothing to interrupt: {done:?}");
}

/// Returns true if the crash after this number of steps is too late.
fn overwrite_through_a_crash(step: u64) -> bool {
    let mut world = world(3, 2);
    world.shared.model.lock().logged = false;
    let engine = world.start_through(Vec::new()).unwrap();
    write(&world, &engine, 0, 100);
    with_client(&world, &engine, Allowed::default(), |mut client| async move { client.flush().await });
    // These blocks are dirty, and the devices must not lose them while they drop clean ones.
    write(&world, &engine, 15, 2);
    world.disks.iter().for_each(|disk| disk.vanish());
    with_client(&world, &engine, LOST, |mut client| async move {
        client.write(1, 10 * 4096, 20 * 4096, false).await;
        client.write(1, 90 * 4096, 4096, true).await;
    });
    assert_eq!(engine.active(), 0);
    world.shared.executor.crash_in(Some(step));
    let mut client = Client::new(&world.shared, &engine, LOST, world.rng.clone());
    let writing = async move { client.write(1, 12 * 4096, 8 * 4096, true).await };
    let done = world.shared.executor.block_on(LIMIT, writing);
    world.shared.executor.crash_in(None);
    assert_eq!(*world.shared.failure.lock(), None);
    let engine = come_back(&mut world, engine);
    let theirs = engine.clone();
    assert_eq!(until(&world, move || theirs.warming().is_none()), Stop::Done);
    check(&mut world, &engine);
    // From here on, only the backing store answers reads of clean blocks.
    lose_all(&world, &engine);
    check_what_is_left(&world, &engine);
    world.crash(crate::world::Crash::Kill);
    done.is_ok()
}

/// Reads each block of file 1 by itself, lost or not.
fn check_what_is_left(world: &World, engine: &Arc<Engine>) {
    with_client(world, engine, LOST, |mut client| async move {
        for block in 0..110 {
            client.read(1, block * 4096, 4096).await;
        }
    });
}

#[test]
fn who_waits_for_anything_is_told_when_a_read_finds_the_last_device_gone() {
    let mut world = world(5, 2);
    world.plan.notes = false;
    let engine = world.start_through(Vec::new()).unwrap();
    write(&world, &engine, 0, 100);
    with_client(&world, &engine, Allowed::default(), |mut client| async move { client.flush().await });
    let theirs = engine.clone();
    // No task releases the user record.
    let noted = async move { theirs.note(b"kept").await.map(|_| ()) };
    assert_eq!(world.shared.executor.block_on(LIMIT, noted), Ok(Ok(())));
    let (theirs, ended) = (engine.clone(), Arc::new(AtomicBool::new(false)));
    let done = ended.clone();
    let flushing = async move { done.store(theirs.flush().await.is_err(), Ordering::Relaxed) };
    world.shared.executor.start("flush", Box::pin(flushing));
    let executor = world.shared.executor.clone();
    let later = async move { executor.sleep(Duration::from_secs(100)).await };
    assert_eq!(world.shared.executor.block_on(LIMIT, later), Ok(()));
    assert!(!ended.load(Ordering::Relaxed));
    world.disks.iter().for_each(|disk| disk.vanish());
    read(&world, &engine, 1, 100 * 4096);
    assert_eq!(engine.active(), 0);
    assert_eq!(until(&world, move || ended.load(Ordering::Relaxed)), Stop::Done);
}

#[test]
fn copies_that_were_not_loaded_when_the_devices_went_do_not_count_when_they_are_back() {
    for seed in 0..10 {
        let mut world = world(seed, 2);
        world.shared.model.lock().logged = false;
        world.plan.mode = forebay_engine::Mode::WriteAround;
        let engine = world.start_through(Vec::new()).unwrap();
        with_client(&world, &engine, Allowed::default(), |mut client| async move {
            client.write(1, 0, 4 << 20, true).await;
        });
        read(&world, &engine, 1, 4 << 20);
        assert!(engine.usage().ssd_blocks > 512, "two segments are full");
        cut(&mut world, engine);
        let engine = world.start_through(Vec::new()).unwrap();
        assert!(engine.warming().is_some());
        let (executor, disks) = (world.shared.executor.clone(), world.disks.clone());
        let going = async move {
            executor.sleep(Duration::from_micros(seed * 30)).await;
            disks.iter().for_each(|disk| disk.vanish());
            executor.sleep(Duration::from_secs(10)).await;
        };
        assert_eq!(world.shared.executor.block_on(LIMIT, going), Ok(()));
        with_client(&world, &engine, LOST, |mut client| async move {
            for block in (0..1024).step_by(50) {
                client.write(1, block * 4096, 4096, true).await;
                client.write(1, block * 4096, 4096, true).await;
            }
        });
        let engine = come_back(&mut world, engine);
        check(&mut world, &engine);
        world.crash(crate::world::Crash::Kill);
    }
}
