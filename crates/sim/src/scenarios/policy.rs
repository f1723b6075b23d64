//! Policies of objects under pressure: pinned blocks stay within their limit, and blocks that are never kept leave.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use forebay_engine::io::{Clock, Key, Time};
use forebay_engine::{CachedObject, Engine, Keep, Mode, Policy};

use super::{Crash, LIMIT, World, world_with};
use crate::content::Content;

pub(super) const BLOCK: u64 = 4096;
/// The number of blocks of one write.
pub(super) const RUN: u64 = 64;

pub(super) fn keep(keep: Keep) -> Policy {
    Policy { keep, ..Policy::default() }
}

/// Returns a world, its engine, and a new empty object for each of `policies`.
pub(super) fn world(policies: &[Policy]) -> (World, Arc<Engine>, Vec<Arc<CachedObject>>) {
    let mut world = world_with(5, 2, |plan| plan.ram = 8 << 20);
    world.plan.notes = false;
    let engine = world.start_through(Vec::new()).unwrap();
    let objects = (1..).zip(policies).map(|(number, policy)| {
        let key = Key::new(&[number; 8]).unwrap();
        world.shared.store.create(&key, Content::default());
        let object = engine.object(&key, 0);
        engine.set_policy(&object, *policy);
        object
    });
    let objects = objects.collect();
    (world, engine, objects)
}

pub(super) fn run(world: &World, task: impl Future<Output = ()> + Send + 'static) {
    assert_eq!(world.shared.executor.block_on(LIMIT, task), Ok(()), "{}", world.shared.executor.busiest());
}

/// Writes `blocks` blocks of an object, each with its number, and destages everything.
pub(super) async fn fill(engine: &Engine, object: &Arc<CachedObject>, blocks: u64) {
    for first in (0..blocks).step_by(RUN as usize) {
        let numbers = first..(first + RUN).min(blocks);
        let data: Vec<u8> = numbers.flat_map(|number| [number as u8; BLOCK as usize]).collect();
        engine.write(object, first * BLOCK, &data, Time::default()).await.unwrap();
        // Destaging reads from memory then. A block that it reads from a device counts as used.
        if first % 1024 == 0 {
            engine.flush().await.unwrap();
        }
    }
    engine.flush().await.unwrap();
}

/// Writes and destages as many blocks as turn the whole pool over. More than half of the devices is live then, so there
/// is no room for all live blocks.
pub(super) async fn press(engine: &Engine, object: &Arc<CachedObject>) {
    for _ in 0..3 {
        fill(engine, object, 20_000).await;
    }
}

/// Reads all blocks of an object. Each must be filled with the lowest byte of its number.
async fn check_contents(engine: &Engine, object: &Arc<CachedObject>, blocks: u64) {
    let mut page = vec![0; BLOCK as usize];
    for number in 0..blocks {
        assert_eq!(engine.read(object, number * BLOCK, &mut page).await, Ok(page.len()));
        assert!(page.iter().all(|byte| *byte == number as u8), "block {number}");
    }
}

#[test]
fn a_pinned_block_survives_the_pressure_that_evicts_others() {
    let (mut world, engine, objects) = world(&[keep(Keep::Pin), keep(Keep::Normal), keep(Keep::Normal)]);
    let (theirs, used) = (engine.clone(), objects.clone());
    run(&world, async move {
        fill(&theirs, &used[0], 1000).await;
        fill(&theirs, &used[1], 1000).await;
        press(&theirs, &used[2]).await;
    });
    let [pinned, normal, _] = &objects[..] else { unreachable!() };
    assert_eq!(engine.usage().pinned_blocks, pinned.usage().ssd_blocks);
    // A block that is being moved is in neither place for a moment.
    assert!(pinned.usage().ssd_blocks > 1000 - 300, "{:?}", pinned.usage());
    assert_eq!(normal.usage().ssd_blocks, 0);
    let before = engine.counters().read_backing;
    let (theirs, used) = (engine.clone(), pinned.clone());
    run(&world, async move { check_contents(&theirs, &used, 1000).await });
    assert!(engine.counters().read_backing - before < 300);
    assert_eq!(engine.check(), Ok(()));
    engine.set_policy(pinned, Policy::default());
    assert_eq!((engine.usage().pinned_blocks, engine.check()), (0, Ok(())));
    world.crash(Crash::Kill);
}

/// Writers fill the log faster than the array takes their data. So at times the log takes each segment that becomes
/// free, while eviction moves pinned blocks.
#[test]
pub(super) fn pinned_blocks_stay_while_the_log_takes_each_segment_that_becomes_free() {
    const WRITERS: u64 = 8;
    const PIECE: u64 = 16;
    let (mut world, engine, objects) = world(&[keep(Keep::Pin), keep(Keep::Normal)]);
    let executor = world.shared.executor.clone();
    let (theirs, used) = (engine.clone(), objects.clone());
    run(&world, async move { fill(&theirs, &used[0], 1000).await });
    world.shared.store.set_array(Some(Duration::from_secs(1) / 300));
    let left = Arc::new(AtomicU64::new(WRITERS));
    for writer in 0..WRITERS {
        let (theirs, object, left) = (engine.clone(), objects[1].clone(), left.clone());
        let writing = async move {
            for round in 0..470 {
                let first = (round * WRITERS + writer) * PIECE % 25_600;
                let data = [round as u8; (PIECE * BLOCK) as usize];
                let seq = theirs.write(&object, first * BLOCK, &data, Time::default()).await.unwrap();
                theirs.commit(seq).await.unwrap();
            }
            left.fetch_sub(1, Ordering::Relaxed);
        };
        executor.start("writer", Box::pin(writing));
    }
    let theirs = engine.clone();
    run(&world, async move {
        while left.load(Ordering::Relaxed) > 0 {
            executor.sleep(Duration::from_millis(100)).await;
        }
        theirs.flush().await.unwrap();
        // A block that is being moved is in neither place for a moment.
        executor.sleep(Duration::from_secs(60)).await;
    });
    let counters = engine.counters();
    assert!(counters.log_waits > 0 && counters.reinserted > 1000, "{counters:?}");
    assert_eq!(objects[0].usage().ssd_blocks, 1000, "{counters:?}");
    assert_eq!(engine.check(), Ok(()));
    world.crash(Crash::Kill);
}

#[test]
fn pins_beyond_their_limit_stall_nobody_and_leave_room_for_others() {
    let (mut world, engine, objects) = world(&[keep(Keep::Pin), keep(Keep::Normal)]);
    let limit = engine.pin_limit();
    assert!((1000..6000).contains(&limit), "{limit}");
    let (theirs, used) = (engine.clone(), objects.clone());
    run(&world, async move {
        // More than the pool could hold beside its log.
        fill(&theirs, &used[0], 4 * limit).await;
        press(&theirs, &used[1]).await;
        press(&theirs, &used[0]).await;
        press(&theirs, &used[1]).await;
        check_contents(&theirs, &used[0], 4 * limit).await;
    });
    let pinned = engine.usage().pinned_blocks;
    assert!(pinned <= limit + 1024 && pinned >= limit / 2, "{pinned} of {limit}");
    assert_eq!(engine.check(), Ok(()));
    world.crash(Crash::Kill);
}

#[test]
fn a_block_that_is_never_kept_leaves_once_the_backing_store_has_it() {
    let (mut world, engine, objects) = world(&[keep(Keep::Never), keep(Keep::Normal)]);
    let (theirs, used) = (engine.clone(), objects.clone());
    run(&world, async move {
        fill(&theirs, &used[0], 500).await;
        fill(&theirs, &used[1], 500).await;
    });
    let [never, normal] = &objects[..] else { unreachable!() };
    assert_eq!((never.usage().ssd_blocks, never.usage().ram_blocks), (0, 0));
    assert_eq!(normal.usage().ssd_blocks, 500);
    assert!(engine.counters().written >= 1000, "the writes went through the log");
    let (theirs, used) = (engine.clone(), never.clone());
    run(&world, async move { check_contents(&theirs, &used, 500).await });
    assert_eq!((never.usage().ssd_blocks, never.usage().ram_blocks), (0, 0), "reads fill nothing");
    engine.set_policy(normal, keep(Keep::Never));
    assert_eq!((normal.usage().ssd_blocks, normal.usage().ram_blocks), (0, 0), "clean blocks leave at once");
    // The devices still have the copies of the dropped blocks. A start may find them, and none is wrong.
    let keys: Vec<_> = objects.iter().map(|object| object.key().clone()).collect();
    let (theirs, used) = (engine.clone(), never.clone());
    run(&world, async move {
        let seq = theirs.write(&used, 0, &[7; 4096], Time::default()).await.unwrap();
        theirs.commit(seq).await.unwrap();
    });
    drop((engine, objects));
    world.crash(Crash::PowerCut);
    let engine = world.start_through(Vec::new()).unwrap();
    let objects: Vec<_> = keys.iter().map(|key| engine.object(key, 500 * BLOCK)).collect();
    let theirs = engine.clone();
    run(&world, async move {
        let mut page = [0; 4096];
        assert_eq!(theirs.read(&objects[0], 0, &mut page).await, Ok(4096));
        assert_eq!(page, [7; 4096]);
        fill(&theirs, &objects[0], 1).await;
        check_contents(&theirs, &objects[0], 500).await;
        check_contents(&theirs, &objects[1], 500).await;
    });
    world.crash(Crash::Kill);
}

#[test]
fn dirty_blocks_stay_when_their_object_is_kept_no_more() {
    let (mut world, engine, objects) = world(&[keep(Keep::Normal)]);
    let (theirs, used) = (engine.clone(), objects[0].clone());
    run(&world, async move {
        fill(&theirs, &used, 100).await;
        let seq = theirs.write(&used, 10 * BLOCK, &[1; 8192], Time::default()).await.unwrap();
        theirs.commit(seq).await.unwrap();
        theirs.set_policy(&used, keep(Keep::Never));
        assert_eq!((used.usage().ssd_blocks, used.dirty_blocks()), (2, 2));
        theirs.flush().await.unwrap();
        assert_eq!((used.usage().ssd_blocks, used.dirty_blocks()), (0, 0));
        let mut page = [0; 4096];
        assert_eq!(theirs.read(&used, 11 * BLOCK, &mut page).await, Ok(4096));
        assert_eq!(page, [1; 4096]);
    });
    world.crash(Crash::Kill);
}

#[test]
fn an_object_has_the_mode_of_its_policy_unless_the_pool_uses_the_cache_less() {
    let policy = |mode| Policy { mode, ..Policy::default() };
    let modes = [Mode::WriteBack, Mode::WriteThrough, Mode::WriteAround, Mode::PassThrough];
    let (mut world, engine, objects) = world(&modes.map(policy));
    let (theirs, used) = (engine.clone(), objects.clone());
    run(&world, async move {
        for (mode, object) in modes.into_iter().zip(&used) {
            let before = theirs.counters();
            let seq = theirs.write(object, 0, &[5; 8192], Time::default()).await.unwrap();
            theirs.commit(seq).await.unwrap();
            let logged = theirs.counters().written - before.written;
            assert_eq!(
                (logged, object.dirty_blocks()),
                if mode == Mode::WriteBack { (2, 2) } else { (0, 0) }
            );
            let kept = object.usage().ram_blocks;
            assert_eq!(kept, if mode <= Mode::WriteThrough { 2 } else { 0 }, "{mode:?}");
            let mut page = [0; 8192];
            assert_eq!(theirs.read(object, 0, &mut page).await, Ok(8192));
            assert_eq!(page, [5; 8192]);
            assert_eq!(object.usage().ram_blocks, if mode == Mode::PassThrough { 0 } else { 2 }, "{mode:?}");
        }
        // A dirty object that gets another mode is destaged before a write goes past the log.
        theirs.set_policy(&used[0], policy(Mode::WriteThrough));
        theirs.write(&used[0], 4096, &[6; 4096], Time::default()).await.unwrap();
        assert_eq!(used[0].dirty_blocks(), 0);
        theirs.set_mode(Mode::PassThrough);
        theirs.write(&used[0], 0, &[7; 4096], Time::default()).await.unwrap();
        assert_eq!((used[0].dirty_blocks(), used[0].usage().ram_blocks), (0, 1));
        let mut page = [0; 8192];
        assert_eq!(theirs.read(&used[0], 0, &mut page).await, Ok(8192));
        assert_eq!(page, [[7; 4096], [6; 4096]].concat()[..]);
    });
    world.crash(Crash::Kill);
}

#[test]
fn warming_brings_contents_that_changes_meanwhile_make_outdated_nowhere() {
    let (mut world, engine, objects) = world(&[keep(Keep::Normal)]);
    let (theirs, used) = (engine.clone(), objects[0].clone());
    run(&world, async move {
        fill(&theirs, &used, 300).await;
        theirs.set_policy(&used, keep(Keep::Never));
        assert_eq!(theirs.warm(&used, 0..300 * BLOCK).await.unwrap().left, 300, "never means never");
        theirs.set_policy(&used, keep(Keep::Normal));
        let warmed = theirs.warm(&used, 0..256 * BLOCK).await.unwrap();
        assert_eq!((warmed.brought, warmed.had, warmed.left), (256, 0, 0));
        // The blocks are on their way to the devices when they change.
        let seq = theirs.write(&used, 7 * BLOCK, &[200; 4096], Time::default()).await.unwrap();
        theirs.commit(seq).await.unwrap();
        theirs.truncate(&used, 200 * BLOCK, Time::default()).await.unwrap();
        theirs.flush().await.unwrap();
        let warmed = theirs.warm(&used, 0..300 * BLOCK).await.unwrap();
        assert_eq!((warmed.brought + warmed.had, warmed.left), (200, 0));
        let mut page = [0; 4096];
        assert_eq!(theirs.read(&used, 7 * BLOCK, &mut page).await, Ok(4096));
        assert_eq!(page, [200; 4096]);
        assert_eq!(theirs.read(&used, 200 * BLOCK, &mut page).await, Ok(0));
        assert_eq!(theirs.read(&used, 199 * BLOCK, &mut page).await, Ok(4096));
        assert_eq!(page, [199; 4096]);
    });
    assert_eq!(engine.check(), Ok(()));
    world.crash(Crash::Kill);
}

fn dirty_for(dirty_seconds: u32) -> Policy {
    Policy { dirty_seconds, ..Policy::default() }
}

#[test]
fn data_is_destaged_after_the_dirty_time_of_its_policy_and_other_data_waits() {
    let (mut world, engine, objects) = world(&[0, 3, 60].map(dirty_for));
    let executor = world.shared.executor.clone();
    let (theirs, used) = (engine.clone(), objects.clone());
    run(&world, async move {
        let dirty = || [0, 1, 2].map(|number: usize| used[number].dirty_blocks());
        for object in &used {
            theirs.write(object, 0, &[1; 4 * 4096], Time::default()).await.unwrap();
        }
        executor.sleep(Duration::from_millis(2500)).await;
        assert_eq!(dirty(), [4, 4, 4], "nothing is due");
        // A later write of the object does not put its turn off.
        theirs.write(&used[1], 8 * BLOCK, &[2; 4096], Time::default()).await.unwrap();
        executor.sleep(Duration::from_secs(2)).await;
        assert_eq!(dirty(), [4, 0, 4]);
        // An object that waits gets another dirty time, which counts from its first write on.
        theirs.set_policy(&used[2], dirty_for(5));
        executor.sleep(Duration::from_secs(3)).await;
        assert_eq!(dirty(), [4, 0, 0]);
        assert_eq!(theirs.dirty_age().as_secs(), 7);
        executor.sleep(Duration::from_secs(580)).await;
        assert_eq!(dirty(), [4, 0, 0]);
        executor.sleep(Duration::from_secs(20)).await;
        assert_eq!(dirty(), [0, 0, 0]);
    });
    assert_eq!(engine.check(), Ok(()));
    world.crash(Crash::Kill);
}

#[test]
fn data_that_may_stay_dirty_for_long_makes_room_when_the_log_fills() {
    let (mut world, engine, objects) = world(&[Policy::LONGEST; 2].map(dirty_for));
    let executor = world.shared.executor.clone();
    let (theirs, used) = (engine.clone(), objects.clone());
    run(&world, async move {
        theirs.write(&used[0], 0, &[1; 4096], Time::default()).await.unwrap();
        for first in (0..).step_by(64) {
            theirs.write(&used[1], first * BLOCK, &[2; 64 * 4096], Time::default()).await.unwrap();
            if theirs.present().dirty_part > 0.25 {
                break;
            }
        }
        assert_eq!((used[0].dirty_blocks(), theirs.counters().destaged), (1, 0));
        executor.sleep(Duration::from_secs(610)).await;
        assert_eq!(used[0].dirty_blocks(), 0);
    });
    world.crash(Crash::Kill);
}

fn in_share(share: u16) -> Policy {
    Policy { share, ..Policy::default() }
}

#[test]
fn a_share_keeps_its_least_blocks_while_other_data_turns_the_cache_over() {
    let (mut world, engine, objects) = world(&[1, 2, 0].map(in_share));
    let (theirs, used) = (engine.clone(), objects.clone());
    run(&world, async move {
        theirs.set_share(1, 400 * BLOCK, None);
        for object in &used[..2] {
            fill(&theirs, object, 500).await;
        }
        assert_eq!([1, 2].map(|share| theirs.share_held(share) / BLOCK), [500, 500]);
        press(&theirs, &used[2]).await;
        let held = [1, 2].map(|share| theirs.share_held(share) / BLOCK);
        assert!((400..=464).contains(&held[0]) && held[1] == 0, "{held:?}");
        check_contents(&theirs, &used[0], 500).await;
        check_contents(&theirs, &used[1], 500).await;
        // The share of a large minimum is bounded like pins, so that the rest still has room.
        theirs.set_share(1, u64::MAX, None);
        fill(&theirs, &used[0], 20_000).await;
        press(&theirs, &used[2]).await;
        let held = theirs.share_held(1) / BLOCK;
        assert!(held <= theirs.pin_limit() + 64, "{held} of {}", theirs.pin_limit());
    });
    assert_eq!(engine.check(), Ok(()));
    world.crash(Crash::Kill);
}

#[test]
fn a_share_has_no_more_clean_blocks_than_its_most_and_those_in_use_stay() {
    let (mut world, engine, objects) = world(&[1, 0].map(in_share));
    let executor = world.shared.executor.clone();
    let (theirs, used) = (engine.clone(), objects.clone());
    run(&world, async move {
        theirs.set_share(1, 0, Some(160 * BLOCK));
        for object in &used {
            fill(&theirs, object, 1000).await;
        }
        executor.sleep(Duration::from_secs(3)).await;
        let held = theirs.share_held(1) / BLOCK;
        assert!((100..=160).contains(&held) && used[1].usage().ssd_blocks == 1000, "{held}");
        // Dirty blocks stay, however many.
        for first in (0..320).step_by(64) {
            theirs.write(&used[0], first * BLOCK, &[9; 64 * 4096], Time::default()).await.unwrap();
        }
        executor.sleep(Duration::from_secs(3)).await;
        assert!(used[0].dirty_blocks() == 320 && theirs.share_held(1) / BLOCK >= 320);
        theirs.flush().await.unwrap();
        executor.sleep(Duration::from_secs(180)).await;
        assert!(theirs.share_held(1) / BLOCK <= 160);
        // Without the limit the data comes back, and no other share counts it.
        theirs.set_share(1, 0, None);
        fill(&theirs, &used[0], 1000).await;
        executor.sleep(Duration::from_secs(3)).await;
        assert_eq!(theirs.share_held(1) / BLOCK, 1000);
        theirs.set_policy(&used[0], in_share(2));
        assert_eq!([1, 2].map(|share| theirs.share_held(share) / BLOCK), [0, 1000]);
        check_contents(&theirs, &used[0], 1000).await;
    });
    assert_eq!(engine.check(), Ok(()));
    world.crash(Crash::Kill);
}
