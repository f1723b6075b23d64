//! One device is lost, replaced, damaged or removed.

use forebay_engine::Event;

use super::*;

#[test]
fn what_recovery_finds_on_one_device_only_is_on_two_before_write_back_goes_on() {
    for seed in 0..8 {
        let mut world = world(seed, 2);
        let engine = world.start_through(Vec::new()).unwrap();
        write(&world, &engine, 0, 300);
        cut(&mut world, engine);
        // Headers of one device's segments rot, so recovery finds only one of their copies.
        world.disks[0].rot_headers();
        let engine = world.start_through(Vec::new()).unwrap();
        let theirs = engine.clone();
        assert_eq!(until(&world, move || theirs.effective_mode() == Mode::WriteBack), Stop::Done);
        assert!(engine.usage().dirty_blocks > 0, "it was not for destaging it all");
        write(&world, &engine, 300, 10);
        cut(&mut world, engine);
        world.disks[1].vanish();
        let engine = world.start_through(Vec::new()).unwrap();
        check(&mut world, &engine);
    }
}

#[test]
fn after_a_device_was_replaced_the_other_one_may_go() {
    let mut world = world(1, 2);
    let engine = world.start_through(Vec::new()).unwrap();
    write(&world, &engine, 0, 300);
    world.disks[0].vanish();
    write(&world, &engine, 300, 1);
    assert_eq!(engine.effective_mode(), Mode::WriteThrough);
    let spare = world.shared.spares.lock()[0].clone();
    let theirs = engine.clone();
    let added = async move { theirs.add_device(Arc::new(spare), false).await.is_ok() };
    assert_eq!(world.shared.executor.block_on(LIMIT, added), Ok(true));
    let theirs = engine.clone();
    assert_eq!(until(&world, move || theirs.effective_mode() == Mode::WriteBack), Stop::Done);
    write(&world, &engine, 301, 10);
    world.disks[1].vanish();
    check(&mut world, &engine);
    cut(&mut world, engine);
    let spare = world.shared.spares.lock().pop().unwrap();
    world.disks.push(spare);
    let engine = world.start_through(Vec::new()).unwrap();
    check(&mut world, &engine);
}

#[test]
fn notes_on_one_device_only_are_asked_for_before_write_back_goes_on() {
    let mut world = world(6, 2);
    let engine = world.start_through(Vec::new()).unwrap();
    write(&world, &engine, 0, 10);
    let theirs = engine.clone();
    let noted = async move {
        let (frame, _) = theirs.note(b"kept").await?;
        theirs.commit(frame).await
    };
    assert!(world.shared.executor.block_on(LIMIT, noted).unwrap().is_ok());
    let letting_go = let_go_when_due(world.shared.clone(), engine.clone(), world.rng.fork());
    world.shared.executor.start("notes", Box::pin(letting_go));
    world.disks[0].vanish();
    write(&world, &engine, 10, 1);
    let spare = world.shared.spares.lock()[0].clone();
    let theirs = engine.clone();
    let added = async move { theirs.add_device(Arc::new(spare), false).await.is_ok() };
    assert_eq!(world.shared.executor.block_on(LIMIT, added), Ok(true));
    let theirs = engine.clone();
    assert_eq!(until(&world, move || theirs.effective_mode() == Mode::WriteBack), Stop::Done);
    check(&mut world, &engine);
}

/// Two of three devices are lost at once. The event says so exactly if they had both copies of dirty data, whose loss
/// the write verifier has to tell clients.
#[test]
fn a_loss_of_both_copies_is_told_with_the_device_that_had_the_last_one() {
    let mut told_of_loss = Vec::new();
    for kept in 0..3 {
        let mut world = world(1, 3);
        let engine = world.start_through(Vec::new()).unwrap();
        write(&world, &engine, 0, 20);
        assert_eq!(engine.usage().dirty_blocks, 20);
        (0..3).filter(|disk| *disk != kept).for_each(|disk| world.disks[disk].vanish());
        let object = world.shared.objects.lock().object(1).unwrap();
        let theirs = engine.clone();
        // A read notices the losses. Unlike a write, it does not break the log.
        let reading = async move { theirs.read(&object, 0, &mut [0; 20 * 4096]).await };
        let is_lost = world.shared.executor.block_on(LIMIT, reading).unwrap().is_err();
        let told = world.shared.told.lock().clone();
        let tells = told.iter().any(|event| matches!(event, Event::DeviceLost { data_lost: true, .. }));
        assert_eq!(tells, is_lost, "without {kept}: {told:?}");
        told_of_loss.push(tells);
    }
    assert_eq!(told_of_loss.iter().filter(|lost| **lost).count(), 1, "two devices have the copies");
}

/// A device was lost and another one added. The power fails before a frame is on the new device, which then is there
/// alone at the start. The log is on the missing device, and nothing on the new device says where the log begins.
#[test]
pub(super) fn a_device_without_a_frame_of_the_log_is_not_opened_alone() {
    for steps in 1..16 {
        let mut world = world(1, 2);
        let engine = world.start_through(Vec::new()).unwrap();
        write(&world, &engine, 0, 300);
        world.disks[0].vanish();
        write(&world, &engine, 300, 1);
        let spare = world.shared.spares.lock()[0].clone();
        spare.crash_at_header(Some((1, steps)));
        let theirs = engine.clone();
        let added = async move { theirs.add_device(Arc::new(spare), false).await.is_ok() };
        assert_eq!(world.shared.executor.block_on(LIMIT, added), Ok(true), "it is added before the header");
        assert_eq!(until(&world, || false), Stop::Crashed);
        cut(&mut world, engine);
        let spare = world.shared.spares.lock().pop().unwrap();
        world.disks.push(spare);
        world.disks[1].vanish();
        let error = world.start_through(Vec::new()).err().unwrap();
        assert!(error.contains("frame"), "{steps}: {error}");
        world.crash(Crash::Kill);
        world.disks[1].appear();
        let engine = world.start_through(Vec::new()).unwrap();
        check(&mut world, &engine);
    }
}

#[test]
fn a_lone_device_with_a_damaged_log_opens_without_what_it_cached() {
    let mut world = world(3, 1);
    let engine = world.start_through(Vec::new()).unwrap();
    write(&world, &engine, 0, 300);
    check(&mut world, &engine);
    cut(&mut world, engine);
    // After eight rounds every header is rotten: the log's tail is not found.
    for _ in 0..8 {
        world.disks[0].rot_headers();
    }
    let engine = world.start_through(Vec::new()).unwrap();
    write(&world, &engine, 100, 50);
    check(&mut world, &engine);
    cut(&mut world, engine);
    let engine = world.start_through(Vec::new()).unwrap();
    check(&mut world, &engine);
}

#[test]
fn a_log_that_lacks_a_whole_segment_is_not_opened_as_if_nothing_were_missing() {
    let mut world = world(4, 2);
    let engine = world.start_through(Vec::new()).unwrap();
    write(&world, &engine, 0, 400);
    cut(&mut world, engine);
    // Chooses the first log segment, on both devices.
    for disk in &world.disks {
        let header = disk.written().into_iter().find(|block| *block > 0 && block % 256 == 0).unwrap();
        disk.rot_at(header * 4096);
    }
    let error = world.start_through(Vec::new()).err().unwrap();
    assert!(error.contains("frame"), "{error}");
}

#[test]
fn a_device_that_cannot_be_drained_goes_on_serving() {
    let mut world = world(5, 2);
    let engine = world.start_through(Vec::new()).unwrap();
    write(&world, &engine, 0, 100);
    let failing = crate::backing::Rates { error: 10_000, ..Default::default() };
    world.shared.store.set_rates(failing);
    let remove = |engine: &Arc<Engine>, name: &str| {
        let (engine, name) = (engine.clone(), name.to_owned());
        let removal = async move { engine.remove_device(&name).await.is_ok() };
        world.shared.executor.block_on(LIMIT, removal)
    };
    assert_eq!(remove(&engine, world.disks[0].name()), Ok(false));
    world.shared.store.set_rates(Default::default());
    let theirs = engine.clone();
    assert_eq!(until(&world, move || theirs.effective_mode() == Mode::WriteBack), Stop::Done);
    write(&world, &engine, 50, 400);
    assert_eq!(remove(&engine, world.disks[0].name()), Ok(true));
    world.disks[0].vanish();
    check(&mut world, &engine);
}
