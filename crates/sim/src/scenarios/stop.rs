//! Clean stops while a task is still at work, or cannot continue.

use std::sync::atomic::{AtomicBool, Ordering};

use forebay_engine::io::Clock as _;

use super::*;

#[test]
fn who_notes_something_while_the_engine_stops_is_told_that_it_does() {
    for seed in 0..20 {
        let mut world = world(seed, 2);
        world.plan.notes = false;
        let engine = world.start_through(Vec::new()).unwrap();
        let ended = Arc::new(AtomicBool::new(false));
        let (theirs, done) = (engine.clone(), ended.clone());
        let noting = async move {
            while let Ok((frame, _)) = theirs.note(b"late").await
                && theirs.commit(frame).await.is_ok()
            {}
            done.store(true, Ordering::Relaxed);
        };
        world.shared.executor.start("notary", Box::pin(noting));
        let executor = world.shared.executor.clone();
        let later = async move { executor.sleep(Duration::from_micros(5000 + 37 * seed)).await };
        assert_eq!(world.shared.executor.block_on(LIMIT, later), Ok(()));
        assert_eq!(world.close(&engine), Ok(()));
        assert_eq!(until(&world, move || ended.load(Ordering::Relaxed)), Stop::Done, "seed {seed}");
    }
}

#[test]
fn a_stop_ends_though_the_log_is_full_of_what_is_not_let_go() {
    for seed in 0..4 {
        let mut world = world(seed, 2);
        world.plan.notes = false;
        let engine = world.start_through(Vec::new()).unwrap();
        let (theirs, executor) = (engine.clone(), world.shared.executor.clone());
        let noting = async move {
            // No task releases any user record.
            while theirs.counters().log_waits == 0 {
                match theirs.try_append_user_record(&[7; 4000]) {
                    Ok(Some((frame, _))) => theirs.commit(frame).await.unwrap(),
                    noted => executor.sleep(Duration::from_millis(noted.is_ok().into())).await,
                }
            }
        };
        assert_eq!(world.shared.executor.block_on(LIMIT, noting), Ok(()));
        assert_eq!(world.close(&engine), Ok(()));
    }
}

/// Makes a world with a log segment that holds both dirty and destaged blocks. Returns the number of dirty blocks too.
fn partly_destaged(seed: u64) -> (World, Arc<Engine>, u64) {
    let mut world = world_with(seed, 2, |plan| (plan.notes, plan.objects) = (false, 2));
    let engine = world.start_through(Vec::new()).unwrap();
    write(&world, &engine, 0, 300);
    let object = world.shared.objects.lock().object(1).unwrap();
    let theirs = engine.clone();
    let destaged = async move { theirs.destage_object(&object).await };
    assert_eq!(world.shared.executor.block_on(LIMIT, destaged), Ok(Ok(())));
    with_client(&world, &engine, Allowed::default(), |mut client| async move {
        client.write(2, 40_960, 12_288, true).await;
    });
    write(&world, &engine, 298, 4);
    let dirty = engine.usage().dirty_blocks;
    assert_eq!(dirty, 7, "seed {seed}");
    (world, engine, dirty)
}

/// A segment stays in the log for one dirty block. Recovery must not take its destaged blocks for dirty.
#[test]
fn after_a_clean_stop_no_more_is_dirty_than_before_it() {
    for seed in 0..8 {
        let (mut world, mut engine, dirty) = partly_destaged(seed);
        for stop in 0..3 {
            assert_eq!(world.close(&engine), Ok(()));
            // Later starts may have destaged some blocks.
            let left = engine.usage().dirty_blocks;
            assert!(left == dirty || stop > 0, "seed {seed}: {left} blocks are left");
            cut(&mut world, engine);
            engine = world.start_through(Vec::new()).unwrap();
            assert_eq!(engine.usage().dirty_blocks, left, "seed {seed}, stop {stop}");
        }
        // A record of destaged blocks does not count for later writes to them.
        let before = engine.usage().dirty_blocks;
        write(&world, &engine, 200, 10);
        cut(&mut world, engine);
        engine = world.start_through(Vec::new()).unwrap();
        assert!(engine.usage().dirty_blocks >= 10.max(before), "seed {seed}");
        check(&mut world, &engine);
    }
}

/// A crash leaves no time to log the destaged blocks.
#[test]
fn after_a_crash_what_is_in_the_log_is_dirty() {
    let (mut world, engine, dirty) = partly_destaged(1);
    cut(&mut world, engine);
    let engine = world.start_through(Vec::new()).unwrap();
    assert!(engine.usage().dirty_blocks > dirty);
    check(&mut world, &engine);
}
