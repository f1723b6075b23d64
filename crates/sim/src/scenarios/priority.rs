//! Priorities of objects: at equal use a higher one is found in the cache more often, within its limit.

use std::sync::Arc;

use forebay_common::lock::Mutex;
use forebay_engine::io::{Key, Time};
use forebay_engine::{CachedObject, Engine, Keep, Policy, Priority};

use super::policy::{BLOCK, RUN, fill, keep, press, run, world};
use super::{Crash, World, world_with};
use crate::content::Content;
use crate::rng::Rng;

fn with(priority: Priority) -> Policy {
    Policy { priority, ..Policy::default() }
}

/// Returns a world whose objects are in the backing store, `blocks` blocks each, and in no cache.
fn stored(policies: &[Policy], blocks: u64) -> (World, Arc<Engine>, Vec<Arc<CachedObject>>) {
    let mut world = world_with(5, 2, |plan| plan.ram = 1 << 20);
    world.plan.notes = false;
    let engine = world.start_through(Vec::new()).unwrap();
    let mut content = Content::default();
    content.resize(blocks * BLOCK);
    let page = Arc::new([7; BLOCK as usize]);
    (0..blocks).for_each(|block| content.put(block, page.clone()));
    let objects = (1..).zip(policies).map(|(number, policy)| {
        let key = Key::new(&[number; 8]).unwrap();
        world.shared.store.create(&key, content.clone());
        let object = engine.object(&key, content.size);
        engine.set_policy(&object, *policy);
        object
    });
    let objects = objects.collect();
    (world, engine, objects)
}

/// Reads a block at random of a random object, `count` times. Returns the reads of each object that did not need the
/// backing store.
fn read_at_random(
    (world, engine, objects): (&World, &Arc<Engine>, &[Arc<CachedObject>]),
    (blocks, count): (u64, u32),
) -> Vec<u32> {
    let hits = Arc::new(Mutex::new(vec![0; objects.len()]));
    let (theirs, used, counted, mut rng) = (engine.clone(), objects.to_vec(), hits.clone(), Rng::new(7));
    run(world, async move {
        let mut page = vec![0; BLOCK as usize];
        for _ in 0..count {
            let (number, block) = (rng.index(used.len()), rng.below(blocks));
            let before = theirs.counters().read_backing;
            assert_eq!(theirs.read(&used[number], block * BLOCK, &mut page).await, Ok(page.len()));
            assert_eq!(page, [7; BLOCK as usize]);
            counted.lock()[number] += u32::from(theirs.counters().read_backing == before);
        }
    });
    hits.lock().clone()
}

#[test]
pub(super) fn at_equal_use_data_of_a_higher_priority_is_found_in_the_cache_more_often() {
    const BLOCKS: u64 = 18_000;
    let (mut world, engine, objects) =
        stored(&[with(Priority::Low), with(Priority::Normal), with(Priority::High)], BLOCKS);
    // The cache, about half of the data, fills first.
    read_at_random((&world, &engine, &objects), (BLOCKS, 80_000));
    let hits = read_at_random((&world, &engine, &objects), (BLOCKS, 80_000));
    let [low, normal, high] = hits[..] else { unreachable!() };
    assert!(low > 0 && low * 11 < normal * 10 && normal * 11 < high * 10, "{hits:?} of 26,667 each");
    assert_eq!(engine.check(), Ok(()));
    world.crash(Crash::Kill);
}

#[test]
pub(super) fn data_of_high_priority_beyond_half_of_the_devices_is_data_like_any_other() {
    const BLOCKS: u64 = 28_000;
    let (mut world, engine, objects) = stored(&[with(Priority::High), with(Priority::Normal)], BLOCKS);
    read_at_random((&world, &engine, &objects), (BLOCKS, 160_000));
    let (high, limit) = (engine.usage().high_blocks, engine.high_limit());
    assert_eq!(high, objects[0].usage().ssd_blocks);
    assert!(high > limit * 3 / 4 && high < limit + 256, "{high} of {limit}");
    assert!(objects[1].usage().ssd_blocks > 1000, "{:?}", objects[1].usage());
    let counters = engine.counters();
    assert!((1..=counters.evicted).contains(&counters.kept_by_priority), "{counters:?}");
    assert_eq!(engine.check(), Ok(()));
    engine.set_policy(&objects[0], keep(Keep::Pin));
    assert_eq!((engine.usage().high_blocks, engine.check()), (0, Ok(())));
    world.crash(Crash::Kill);
}

#[test]
pub(super) fn a_block_of_high_priority_that_nobody_reads_survives_one_eviction_and_no_second_one() {
    let policies = [with(Priority::High), with(Priority::Normal), with(Priority::Low)];
    let (mut world, engine, objects) = world(&policies);
    let (theirs, used) = (engine.clone(), objects.clone());
    run(&world, async move {
        // Blocks that eviction drops allow it to write as many again for their priority.
        press(&theirs, &used[2]).await;
        for object in &used[..2] {
            fill(&theirs, object, 1000).await;
        }
        let held = |number: usize| used[number].usage().ssd_blocks;
        let mut pressed = 0;
        while held(1) > 0 || held(0) > 0 {
            if pressed % 20_000 == 0 {
                assert!(pressed < 200_000, "{:?} stay", [held(0), held(1)]);
            }
            let before = held(1);
            let data = vec![3; (RUN * BLOCK) as usize];
            theirs.write(&used[2], pressed % 20_000 * BLOCK, &data, Time::default()).await.unwrap();
            pressed += RUN;
            if pressed % 1024 == 0 {
                theirs.flush().await.unwrap();
            }
            if before > 0 && held(1) == 0 {
                assert!(held(0) > 700, "{} blocks of high priority stay", held(0));
            }
        }
    });
    let counters = engine.counters();
    assert!((700..=1000).contains(&counters.kept_by_priority), "{counters:?}");
    assert_eq!(engine.check(), Ok(()));
    world.crash(Crash::Kill);
}
