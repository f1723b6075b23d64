//! Two syncs of one file at a time, and failures before the end of a write past the log. Such a write overwrites a
//! block without a readable copy. Its end syncs the file, while destaging does so as well.

use forebay_engine::buffer::{Buffer, Slice};
use forebay_engine::io::{Backing as _, BackingError, Clock as _, Time};
use forebay_engine::{Error, Event};

use super::damaged::lose_block;
use super::*;
use crate::backing::{Rates, Stuck};

/// The damaged block.
const DAMAGED: u64 = 5;
/// A failed sync of the backing store, in the form in which the engine reports it.
const FAILED: Error = Error::Backing(BackingError::Io(5));

/// Makes a world in which dirty data rests for a second. Destaging has found no good copy of one block of file 1.
fn damaged_world(seed: u64) -> (World, Arc<Engine>) {
    let mut world = world_with(seed, 2, |plan| plan.destage_after = Duration::from_secs(1));
    world.shared.model.lock().logged = false;
    // This store tells of a failed sync once, and the engine has to pass that on.
    world.backing = Some(Arc::new(world.shared.store.clone()));
    let engine = world.start_through(Vec::new()).unwrap();
    write(&world, &engine, 0, 8);
    lose_block(&world, &engine, DAMAGED);
    // These writes push the block out of memory.
    write(&world, &engine, 100, 8);
    let (shared, theirs) = (world.shared.clone(), engine.clone());
    let found = move || {
        let told = shared.told.lock();
        told.iter().any(|event| matches!(event, Event::Damaged { .. })) && theirs.usage().dirty_blocks == 1
    };
    assert_eq!(until(&world, found), Stop::Done);
    (world, engine)
}

/// Writes the damaged block past the log as the server does. `meanwhile` runs before the end of that write.
async fn mend(
    shared: &Shared,
    engine: &Arc<Engine>,
    meanwhile: impl Future<Output = ()>,
) -> Result<(), Error> {
    let object = shared.objects.lock().object(1).unwrap();
    let data = vec![7; 4096];
    let direct = engine.begin_bypass(&object, DAMAGED * 4096, 4096).await.unwrap();
    let slice = Slice::new(Arc::new(Buffer::from_bytes(&data)), 0..data.len());
    shared.store.write(object.key(), DAMAGED * 4096, slice).await.unwrap();
    meanwhile.await;
    let (done, end) = (Some((DAMAGED * 4096, &data[..])), (DAMAGED + 1) * 4096);
    engine.end_bypass(&object, direct, done, end, Time::default()).await.map(drop)
}

/// The sync at the end of a write past the log fails. The kernel reports the failure only to that sync, and the
/// destaged data is lost with it.
#[test]
pub(super) fn a_failed_sync_counts_for_every_sync_of_the_file_that_was_under_way() {
    for seed in 0..10 {
        let (mut world, engine) = damaged_world(seed);
        // The blocks are apart from each other, so each takes a write of its own.
        let blocks: Vec<u64> = (10..70).step_by(2).collect();
        let (theirs, shared) = (engine.clone(), world.shared.clone());
        let mut client = Client::new(&world.shared, &engine, Allowed::default(), world.rng.fork());
        let first_block = |shared: &Shared| {
            let key = shared.objects.lock().key(1).unwrap();
            shared.store.current(&key).unwrap().page(10)
        };
        let work = async move {
            let before = first_block(&shared);
            let meanwhile = async {
                for block in blocks {
                    client.write(1, block * 4096, 4096, true).await;
                }
                while first_block(&shared) == before {
                    shared.executor.sleep(Duration::from_micros(10)).await;
                }
                // The destage task stays in the middle of its batch.
                let rates = Rates { stuck: Some(Stuck::Write), sync_error: 10_000, ..Rates::default() };
                shared.store.set_rates(rates);
            };
            let mended = mend(&shared, &theirs, meanwhile).await;
            shared.store.set_rates(Rates::default());
            mended
        };
        assert_eq!(world.shared.executor.block_on(LIMIT, work), Ok(Err(FAILED)), "seed {seed}");
        let theirs = engine.clone();
        assert_eq!(until(&world, move || theirs.usage().dirty_blocks == 1), Stop::Done);
        // Now everything can be destaged and checked.
        engine.set_mode(Mode::WriteThrough);
        with_client(&world, &engine, Allowed::default(), |mut client| async move {
            client.write(1, DAMAGED * 4096, 4096, true).await;
        });
        assert_eq!(world.drain(&engine), Ok(()));
        assert_eq!(world.check_backing(), Ok(()), "seed {seed}");
        world.crash(Crash::Kill);
    }
}

/// A sync fails between a write past the log and the end of that write, which syncs the file again. The second sync
/// proves nothing about the write.
#[test]
fn a_sync_that_failed_before_the_end_of_a_direct_write_mends_no_block() {
    for seed in 0..10 {
        let (mut world, engine) = damaged_world(seed);
        let (theirs, shared) = (engine.clone(), world.shared.clone());
        let mut client = Client::new(&world.shared, &engine, Allowed::default(), world.rng.fork());
        let work = async move {
            let meanwhile = async {
                shared.store.set_rates(Rates { sync_error: 10_000, ..Rates::default() });
                client.write(1, 10 * 4096, 4096, true).await;
                while theirs.counters().backing_errors == 0 {
                    shared.executor.sleep(Duration::from_micros(10)).await;
                }
                shared.store.set_rates(Rates::default());
            };
            let mended = mend(&shared, &theirs, meanwhile).await;
            let object = shared.objects.lock().object(1).unwrap();
            let mut contents = vec![0; 4096];
            (mended, theirs.read(&object, DAMAGED * 4096, &mut contents).await)
        };
        let outcome = world.shared.executor.block_on(LIMIT, work);
        assert_eq!(outcome, Ok((Err(FAILED), Err(Error::Damaged))), "seed {seed}");
        world.crash(Crash::Kill);
    }
}

/// A hole takes the place of a block without a readable copy. The server passes no contents to the engine.
#[test]
fn a_hole_mends_a_block_of_which_no_copy_can_be_read() {
    for seed in 0..10 {
        let (mut world, engine) = damaged_world(seed);
        let (theirs, shared) = (engine.clone(), world.shared.clone());
        let work = async move {
            let (object, at) = (shared.objects.lock().object(1).unwrap(), DAMAGED * 4096);
            let part = theirs.begin_bypass(&object, at + 100, 3000).await.map(drop);
            let direct = theirs.begin_bypass(&object, at, 4096).await.unwrap();
            let zeros = Slice::new(Arc::new(Buffer::zeroed(1)), 0..4096);
            shared.store.write(object.key(), at, zeros).await.unwrap();
            let ended = theirs.end_bypass(&object, direct, Some((at, &[])), 0, Time::default()).await;
            let mut contents = vec![1; 4096];
            let read = theirs.read(&object, at, &mut contents).await;
            (part, ended.map(drop), read, contents)
        };
        let outcome = world.shared.executor.block_on(LIMIT, work);
        let expected = (Err(Error::Damaged), Ok(()), Ok(4096), vec![0; 4096]);
        assert_eq!(outcome, Ok(expected), "seed {seed}");
        world.crash(Crash::Kill);
    }
}
