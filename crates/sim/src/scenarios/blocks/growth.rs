//! The backing device of a volume becomes longer.

use forebay_volume::key::key;

use super::*;

/// A growth of the volume, which the task of it reports.
type Growth = Arc<Mutex<Option<Result<Option<(u64, u64)>, forebay_engine::Error>>>>;

/// Makes the device longer by a block, and begins to take its size over.
fn grow(blocks: &Blocks, volume: &Arc<Volume>) -> Growth {
    blocks.device.size.fetch_add(BLOCK as u64, Ordering::Relaxed);
    let growth = Growth::default();
    let (volume, end) = (volume.clone(), growth.clone());
    let growing = async move {
        let grown = volume.grown().await;
        *end.lock() = Some(grown);
    };
    blocks.world.shared.executor.start("growth", Box::pin(growing));
    growth
}

#[test]
fn a_growth_that_waits_takes_over_all_that_the_device_gains_meanwhile() {
    let mut blocks = Blocks::new(1, true);
    let engine = blocks.world.start_through(Vec::new()).unwrap();
    let volume = Volume::new(&engine, UUID, blocks.device.clone(), None, false);
    let object = engine.object(&key(UUID), SIZE);
    let executor = blocks.world.shared.executor.clone();
    let (theirs, written) = (engine.clone(), object.clone());
    let beginning = async move { theirs.begin_bypass(&written, 0, 4096).await };
    let direct = executor.block_on(LIMIT, beginning).unwrap().unwrap();
    let first = grow(&blocks, &volume);
    let clock = executor.clone();
    let a_while = async move { clock.sleep(Duration::from_secs(1)).await };
    assert_eq!(executor.block_on(LIMIT, a_while), Ok(()));
    let second = grow(&blocks, &volume);
    let ending = async move { engine.end_bypass(&object, direct, None, SIZE, Time::default()).await };
    executor.block_on(LIMIT, ending).unwrap().unwrap();
    let (one, two) = (first.clone(), second.clone());
    let are_ended = move || one.lock().is_some() && two.lock().is_some();
    assert_eq!(until(&blocks.world, are_ended), Stop::Done);
    let all = SIZE + 2 * BLOCK as u64;
    assert_eq!((first.lock().take(), second.lock().take()), (Some(Ok(Some((SIZE, all)))), Some(Ok(None))));
    assert_eq!(volume.shape().size, all);
}
