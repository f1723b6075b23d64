//! Blocks that are moved within the log while they are being destaged.

use forebay_engine::io::Clock as _;

use super::*;
use crate::backing::{Rates, Stuck};

/// Lets 2 s of virtual time pass.
fn wait_a_while(world: &World) {
    let executor = world.shared.executor.clone();
    let a_while = async move { executor.sleep(Duration::from_secs(2)).await };
    assert_eq!(world.shared.executor.block_on(LIMIT, a_while), Ok(()));
}

/// A device is lost and added again while a destage batch waits for the backing store. The blocks that move to the new
/// mirror meanwhile are clean at the end of the batch.
#[test]
pub(super) fn blocks_that_move_while_they_are_destaged_are_clean_afterwards() {
    for seed in 0..10 {
        let mut world = world(seed, 2);
        let engine = world.start_through(Vec::new()).unwrap();
        write(&world, &engine, 0, 20);
        world.shared.store.set_rates(Rates { stuck: Some(Stuck::Sync), ..Rates::default() });
        world.disks[1].vanish();
        let mut client = Client::new(&world.shared, &engine, Allowed::default(), world.rng.fork());
        // The write notices the loss, goes past the log, and waits for the backing store.
        let writing = async move { client.write(1, 40 * 4096, 4096, true).await };
        world.shared.executor.start("client", Box::pin(writing));
        let theirs = engine.clone();
        assert_eq!(until(&world, move || theirs.active() == 1), Stop::Done);
        wait_a_while(&world);
        assert!(engine.usage().dirty_blocks >= 20, "the batch has not ended");
        world.disks[1].appear();
        let disk = world.disks[1].clone();
        with_client(&world, &engine, Allowed::default(), |mut client| async move {
            client.add_again(&disk).await;
        });
        let theirs = engine.clone();
        assert_eq!(until(&world, move || theirs.is_mirrored()), Stop::Done);
        assert!(engine.counters().rewritten >= 20, "the dirty blocks were appended again");
        world.shared.store.set_rates(Rates::default());
        wait_a_while(&world);
        // No other destaging begins for ten minutes.
        assert!(engine.usage().dirty_blocks <= 1, "{} blocks", engine.usage().dirty_blocks);
        cut(&mut world, engine);
        let engine = world.start_through(Vec::new()).unwrap();
        check(&mut world, &engine);
        world.crash(Crash::Kill);
    }
}
