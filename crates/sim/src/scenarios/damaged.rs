//! Tests of blocks without a readable copy.

use std::sync::Arc;

use forebay_engine::buffer::Buffer;
use forebay_engine::io::{Device as _, Time};
use forebay_engine::{Engine, Error, Event, Mode};

use super::{LIMIT, check, cut, read, until, with_client, world, write};
use crate::client::Allowed;
use crate::disk::Disk;
use crate::executor::Stop;
use crate::hits::Fault;
use crate::world::{Crash, World};

/// Lets every copy of a block of file 1 rot.
pub(super) fn lose_block(world: &World, engine: &Arc<Engine>, block: u64) {
    let mut contents = vec![0; 4096];
    let object = world.shared.objects.lock().object(1).unwrap();
    let theirs = engine.clone();
    let read = async move { theirs.read(&object, block * 4096, &mut contents).await.map(|_| contents) };
    let contents = world.shared.executor.block_on(LIMIT, read).unwrap().unwrap();
    for disk in &world.disks {
        for block in disk.written() {
            let buffer = Buffer::zeroed(1);
            let (found, _) = world.shared.executor.block_on(LIMIT, disk.read(block * 4096, buffer)).unwrap();
            if found[..] == contents[..] {
                disk.rot_at(block * 4096);
            }
        }
    }
}

#[test]
fn a_block_of_which_no_copy_can_be_read_is_mended_by_overwriting_it_whole() {
    let mut world = world(1, 2);
    let engine = world.start_through(Vec::new()).unwrap();
    write(&world, &engine, 0, 300);
    lose_block(&world, &engine, 5);
    // These writes push the block out of memory.
    write(&world, &engine, 100, 50);
    engine.set_mode(Mode::WriteThrough);
    let object = world.shared.objects.lock().object(1).unwrap();
    let result = |offset: u64, len: usize| {
        let (engine, object) = (engine.clone(), object.clone());
        let time = Time::default();
        let write = async move { engine.write(&object, offset, &vec![1; len], time).await.map(|_| ()) };
        world.shared.executor.block_on(LIMIT, write).unwrap()
    };
    assert_eq!(result(5 * 4096, 100), Err(Error::Damaged), "the rest of it is lost");
    with_client(&world, &engine, Allowed::default(), |mut client| async move {
        client.write(1, 4 * 4096, 3 * 4096, true).await;
        client.read(1, 4 * 4096, 3 * 4096).await;
    });
    cut(&mut world, engine);
    let engine = world.start_through(Vec::new()).unwrap();
    check(&mut world, &engine);
}

#[test]
fn what_no_copy_can_be_read_of_never_becomes_what_the_backing_store_had_before() {
    let mut steps = 1..1000;
    loop {
        let step = steps.next().unwrap();
        let mut world = world(1, 2);
        let engine = world.start_through(Vec::new()).unwrap();
        write(&world, &engine, 0, 20);
        lose_block(&world, &engine, 5);
        // These writes push the block out of memory.
        write(&world, &engine, 10, 10);
        engine.set_mode(Mode::WriteThrough);
        let object = world.shared.objects.lock().object(1).unwrap();
        world.shared.executor.crash_in(Some(step));
        let theirs = engine.clone();
        let mend = async move { theirs.write(&object, 4 * 4096, &[1; 3 * 4096], Time::default()).await };
        let mended = world.shared.executor.block_on(LIMIT, mend);
        cut(&mut world, engine);
        let engine = world.start_through(Vec::new()).unwrap();
        let object = world.shared.objects.lock().object(1).unwrap();
        let read = async move {
            let mut contents = vec![0; 4096];
            engine.read(&object, 5 * 4096, &mut contents).await.map(|_| contents)
        };
        match world.shared.executor.block_on(LIMIT, read).unwrap() {
            Ok(contents) => assert!(contents == [1; 4096], "step {step}: {:?}", &contents[..16]),
            Err(error) => assert_eq!((error, mended.is_err()), (Error::Damaged, true), "step {step}"),
        }
        world.crash(crate::world::Crash::Kill);
        if mended.is_ok() {
            assert!(step > 10, "there was nothing to interrupt: {step}");
            break;
        }
    }
}

#[test]
fn a_lone_device_without_the_newest_segment_of_its_log_does_not_go_back_to_an_older_one() {
    for cuts in 1..20 {
        let mut world = world(1, 1);
        for _ in 0..2 {
            let engine = world.start_through(Vec::new()).unwrap();
            write(&world, &engine, 0, 4);
            with_client(&world, &engine, Allowed::default(), move |mut client| async move {
                for size in 0..cuts {
                    client.truncate(1, 9000 - size).await;
                }
                client.truncate(1, 5000).await;
            });
            assert_eq!(world.close(&engine), Ok(()));
            cut(&mut world, engine);
        }
        world.disks[0].rot_newest_header();
        let engine = world.start_through(Vec::new()).unwrap();
        check(&mut world, &engine);
        assert!(world.shared.told.lock().contains(&Event::LogDropped), "{cuts} cuts");
        // After that, the damage is not reported again.
        world.shared.told.lock().clear();
        write(&world, &engine, 0, 1);
        cut(&mut world, engine);
        let engine = world.start_through(Vec::new()).unwrap();
        check(&mut world, &engine);
        assert_eq!(world.shared.told.lock().iter().filter(|told| **told == Event::LogDropped).count(), 0);
    }
}

/// Starts a lone device whose log is damaged at its end, with a crash `step` steps into recovery. The log had the
/// invalidations of clean copies. The machine then stops before the first frame of the new log, and starts again.
/// Returns true if recovery ended before the crash.
fn drop_log(step: u64, damage: fn(&Disk)) -> bool {
    let mut world = world(1, 1);
    let engine = world.start_through(Vec::new()).unwrap();
    with_client(&world, &engine, Allowed::default(), |mut client| async move {
        client.write(1, 0, 4 << 20, true).await;
    });
    read(&world, &engine, 1, 4 << 20);
    assert!(engine.usage().ssd_blocks > 512, "two segments are full");
    write(&world, &engine, 0, 8);
    assert_eq!(world.close(&engine), Ok(()));
    cut(&mut world, engine);
    damage(&world.disks[0]);
    let before = world.shared.hits.of(Fault::CutInRecovery);
    let engine = world.start_through(vec![step]).unwrap();
    let ended = world.shared.hits.of(Fault::CutInRecovery) == before;
    assert!(world.shared.told.lock().contains(&Event::LogDropped), "step {step}");
    // No client has written, so the new log has no frame.
    cut(&mut world, engine);
    let engine = world.start_through(Vec::new()).unwrap();
    check(&mut world, &engine);
    let theirs = engine.clone();
    assert_eq!(until(&world, move || theirs.warming().is_none()), Stop::Done);
    check(&mut world, &engine);
    world.crash(Crash::Kill);
    ended
}

#[test]
pub(super) fn clean_copies_do_not_return_after_the_log_that_invalidated_them_was_dropped() {
    for damage in [Disk::rot_newest_header, Disk::rot_newest_frame] {
        let ends = (1..).step_by(3).position(|step| drop_log(step, damage));
        assert!(ends.is_some_and(|steps| steps > 10), "there was nothing to interrupt: {ends:?}");
    }
}

#[test]
fn a_frame_that_cannot_be_read_on_any_device_is_not_taken_for_one_that_was_never_written() {
    for (devices, spoilt) in [(1, 1), (2, 1), (2, 2)] {
        let mut world = world(1, devices);
        let engine = world.start_through(Vec::new()).unwrap();
        write(&world, &engine, 0, 8);
        with_client(&world, &engine, Allowed::default(), |mut client| async move {
            client.truncate(1, 9000).await;
            client.truncate(1, 5000).await;
        });
        cut(&mut world, engine);
        world.disks[..spoilt].iter().for_each(Disk::spoil_newest_frame);
        match world.start_through(Vec::new()) {
            Ok(engine) => {
                assert!(spoilt < 2);
                check(&mut world, &engine);
                let dropped = world.shared.told.lock().contains(&Event::LogDropped);
                assert_eq!(dropped, devices == 1, "{devices} devices, {spoilt} spoilt");
            }
            Err(error) => assert!(spoilt == 2 && error.contains("is missing on all devices"), "{error}"),
        }
    }
}

#[test]
fn a_device_that_dies_during_recovery_is_no_damaged_log() {
    let mut died = 0;
    for (devices, step) in
        [1, 2].into_iter().flat_map(|devices| (1..400).step_by(7).map(move |step| (devices, step)))
    {
        let mut world = world(1, devices);
        let engine = world.start_through(Vec::new()).unwrap();
        write(&world, &engine, 0, 8);
        assert_eq!(world.close(&engine), Ok(()));
        cut(&mut world, engine);
        // Of two devices, the other one is missing.
        world.disks[1..].iter().for_each(Disk::vanish);
        world.disks[0].vanish_in(Some(step));
        if let Err(error) = world.start_through(Vec::new()) {
            assert!(!error.contains("damaged"), "step {step} of {devices}: {error}");
            died += 1;
        }
        assert!(!world.shared.told.lock().contains(&Event::LogDropped), "step {step} of {devices}");
    }
    assert!(died > 20, "{died}");
}
