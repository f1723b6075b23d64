//! Checks that the engine's memory has a bound, whatever clients do.

use forebay_engine::io::{Key, Time};

use super::*;
use crate::content::Content;

#[test]
fn files_that_come_and_go_leave_nothing_behind_in_memory() {
    let mut world = world_with(1, 2, |plan| plan.ram = 64 << 20);
    world.plan.notes = false;
    let engine = world.start_through(Vec::new()).unwrap();
    let (theirs, store) = (engine.clone(), world.shared.store.clone());
    let coming_and_going = async move {
        let key = Key::new(b"kept").unwrap();
        store.create(&key, Content::default());
        let kept = theirs.object(&key, 0);
        for number in 0..12_000_u32 {
            let key = Key::new(&[&[0][..], &(number + 1000).to_le_bytes()].concat()).unwrap();
            store.create(&key, Content::default());
            let object = theirs.object(&key, 0);
            theirs.write(&object, 0, &[1; 100], Time::default()).await.unwrap();
            store.remove(&key);
            theirs.forget(&object).await;
            // Another file is written and truncated repeatedly.
            if number % 10 == 0 {
                theirs.write(&kept, 0, &[1; 64 << 10], Time::default()).await.unwrap();
                theirs.truncate(&kept, 0, Time::default()).await.unwrap();
            }
        }
    };
    assert_eq!(world.shared.executor.block_on(LIMIT, coming_and_going), Ok(()));
    let (entries, blocks) = (engine.queued_in_memory(), engine.usage().ram_blocks);
    assert!(entries < 6_000, "{entries} entries for {blocks} blocks");
    world.crash(Crash::Kill);
}
