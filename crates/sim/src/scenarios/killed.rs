//! Dirty data that a killed server leaves.

use forebay_engine::io::Clock as _;

use super::*;

#[test]
fn dirty_data_of_a_killed_server_waits_for_its_usual_time_and_is_destaged_then() {
    let mut world = world_with(5, 2, |plan| plan.destage_after = Duration::from_secs(5));
    let engine = world.start_through(Vec::new()).unwrap();
    write(&world, &engine, 0, 300);
    let dirty = engine.scan().dirty_blocks;
    assert!(dirty > 0);
    cut(&mut world, engine);
    let engine = world.start_through(Vec::new()).unwrap();
    assert_eq!(engine.scan().dirty_blocks, dirty);
    let clock = world.shared.executor.clone();
    let most_of_the_time = async move { clock.sleep(Duration::from_secs(4)).await };
    assert_eq!(world.shared.executor.block_on(LIMIT, most_of_the_time), Ok(()));
    assert_eq!(engine.scan().dirty_blocks, dirty, "clients come first after a start");
    let theirs = engine.clone();
    assert_eq!(until(&world, move || theirs.scan().dirty_blocks == 0), Stop::Done);
    check(&mut world, &engine);
    assert_eq!(world.close(&engine), Ok(()));
    drop(engine);
    assert_eq!(world.outcome(None).failure, None);
}
