//! Unstable writes past the log. A power cut keeps or loses each of them for good.

use forebay_engine::buffer::{Buffer, Slice};
use forebay_engine::io::{Backing as _, Clock as _};

use super::*;
use crate::backing::{BadRange, Rates};

/// Writes to a file past the log as the server does, UNSTABLE.
async fn write_past(client: &Client, file: u8, offset: u64, len: u64) {
    let (shared, engine) = (&client.shared, &client.engine);
    let object = shared.objects.lock().object(file).unwrap();
    let key = object.key().clone();
    let now = forebay_engine::io::Time::default();
    let id = shared.model.lock().begin_write(file, offset, len, now);
    let mut data = vec![0; len as usize];
    crate::client::stamp(&mut data, offset, file, id);
    let direct = engine.begin_bypass(&object, offset, len).await.unwrap();
    let slice = Slice::new(Arc::new(Buffer::from_bytes(&data)), 0..data.len());
    shared.store.write(&key, offset, slice).await.unwrap();
    let written = Some((offset, &data[..]));
    let frame = engine.end_bypass(&object, direct, written, offset + len, now).await.unwrap();
    shared.model.lock().accepted(id, frame);
}

/// Checks that the backing file has the contents that clients have read.
fn check_backing(world: &World) -> Result<(), String> {
    let key = world.shared.objects.lock().key(1).unwrap();
    let content = world.shared.store.current(&key);
    world.shared.model.lock().check_backing(1, content.as_ref(), false)
}

/// Reads data written past the log until it is on the cache devices, if it may be, and loses it in a power cut. If
/// `told`, the engine was told of a sync that never happened.
fn lose_after_reading(seed: u64, told: bool) -> Result<(), String> {
    let blocks = 600;
    let mut world = world(seed, 2);
    world.shared.model.lock().logged = false;
    let engine = world.start_through(Vec::new()).unwrap();
    write(&world, &engine, 0, blocks);
    with_client(&world, &engine, Allowed::default(), move |mut client| async move {
        client.flush().await;
        write_past(&client, 1, 0, blocks * 4096).await;
        if told {
            let object = client.shared.objects.lock().object(1).unwrap();
            object.begin_sync(0, 0).unwrap().end(true);
        }
        // The log's records of older copies are in a full segment, so newer ones count.
        for write in 0..9 {
            client.write(1, (blocks + write * 31) * 4096, 31 * 4096, true).await;
        }
        for _ in 0..3 {
            for block in (0..blocks).step_by(16) {
                client.read(1, block * 4096, 16 * 4096).await;
            }
        }
        client.write(1, (blocks + 300) * 4096, 4096, true).await;
    });
    cut(&mut world, engine);
    let engine = world.start_through(Vec::new()).unwrap();
    let theirs = engine.clone();
    assert_eq!(until(&world, move || theirs.warming().is_none()), Stop::Done);
    assert_eq!(world.look_at_all(&engine), Ok(()));
    if let Some(failure) = world.shared.failure.lock().take() {
        return Err(failure);
    }
    with_client(&world, &engine, Allowed::default(), |mut client| async move { client.flush().await });
    check_backing(&world)
}

#[test]
pub(super) fn no_copy_outlives_a_write_past_the_log_that_a_power_cut_took() {
    for seed in 0..10 {
        assert_eq!(lose_after_reading(seed, false), Ok(()), "seed {seed}");
    }
    assert!(
        (0..10).any(|seed| lose_after_reading(seed, true).is_err()),
        "copies were made, or this proves nothing"
    );
}

#[test]
fn a_size_that_was_seen_after_a_power_cut_stays() {
    for seed in 0..40 {
        let mut world = world(seed, 2);
        world.shared.model.lock().logged = false;
        let engine = world.start_through(Vec::new()).unwrap();
        let end = world.shared.model.lock().size(1).div_ceil(4096) * 4096;
        with_client(&world, &engine, Allowed::default(), move |client| async move {
            write_past(&client, 1, end + 8 * 4096, 5000).await;
        });
        // The log has the size from now on.
        write(&world, &engine, 0, 1);
        cut(&mut world, engine);
        let engine = world.start_through(Vec::new()).unwrap();
        check(&mut world, &engine);
        with_client(&world, &engine, Allowed::default(), |mut client| async move { client.flush().await });
        assert_eq!(world.close(&engine), Ok(()));
        cut(&mut world, engine);
        let engine = world.start_through(Vec::new()).unwrap();
        check(&mut world, &engine);
        assert_eq!(check_backing(&world), Ok(()));
    }
}

/// Destaging syncs two files. The sync of the one fails, and loses a block that was written past the log. That of the
/// other file waits for a third sync. A client that asks for a sync in the meantime must be told of the failure.
#[test]
pub(super) fn a_failed_sync_is_told_to_a_sync_that_begins_after_it() {
    const LOST: u64 = 40;
    for seed in 0..10 {
        let mut world = world_with(seed, 2, |plan| {
            (plan.objects, plan.destage_after) = (2, Duration::from_secs(1));
        });
        world.shared.model.lock().logged = false;
        let engine = world.start_through(Vec::new()).unwrap();
        let (shared, theirs) = (world.shared.clone(), engine.clone());
        let allowed = Allowed { backing: true, ..Allowed::default() };
        with_client(&world, &engine, allowed, |mut client| async move {
            let (one, other) = {
                let objects = shared.objects.lock();
                (objects.object(1).unwrap(), objects.object(2).unwrap())
            };
            write_past(&client, 1, LOST * 4096, 4096).await;
            write_past(&client, 2, LOST * 4096, 4096).await;
            shared.store.set_rates(Rates { hang: 10_000, ..Rates::default() });
            let (syncing, file) = (theirs.clone(), other.clone());
            let slow = async move {
                let _ = syncing.sync_bypassed(&file).await;
            };
            shared.executor.start("a slow sync", Box::pin(slow));
            shared.executor.sleep(Duration::from_millis(1)).await;
            shared.store.set_rates(Rates::default());
            let blocks = LOST..LOST + 1;
            let object = one.key().clone();
            shared.store.set_bad(Some(BadRange { object, blocks, in_sync: true, in_reads: false }));
            // The other file is destaged first.
            client.write(2, 0, 4096, true).await;
            client.write(1, 0, 4096, true).await;
            while shared.store.failures(one.key()) == 0 {
                shared.executor.sleep(Duration::from_micros(10)).await;
            }
            shared.store.set_bad(None);
            assert!(theirs.sync_bypassed(&one).await.is_err(), "seed {seed}");
        });
        world.crash(Crash::Kill);
    }
}

/// A sync fails between a write past the log and the report of that write to the engine. The sync may have lost the
/// write, and no later sync tells.
#[test]
fn a_write_during_which_a_sync_failed_counts_as_lost() {
    const OTHER: u64 = 40;
    const LOST: u64 = 50;
    for seed in 0..4 {
        let mut world = world(seed, 2);
        world.shared.model.lock().logged = false;
        let engine = world.start_through(Vec::new()).unwrap();
        let (shared, theirs) = (world.shared.clone(), engine.clone());
        let allowed = Allowed { backing: true, ..Allowed::default() };
        with_client(&world, &engine, allowed, |client| async move {
            let file = shared.objects.lock().object(1).unwrap();
            write_past(&client, 1, OTHER * 4096, 4096).await;
            let direct = theirs.begin_bypass(&file, LOST * 4096, 4096).await.unwrap();
            let slice = Slice::new(Arc::new(Buffer::zeroed(1)), 0..4096);
            shared.store.write(file.key(), LOST * 4096, slice).await.unwrap();
            let blocks = OTHER..OTHER + 1;
            let object = file.key().clone();
            shared.store.set_bad(Some(BadRange { object, blocks, in_sync: true, in_reads: false }));
            assert!(theirs.sync_bypassed(&file).await.is_err(), "seed {seed}");
            shared.store.set_bad(None);
            let (written, end) = (Some((LOST * 4096, &[][..])), (LOST + 1) * 4096);
            theirs.end_bypass(&file, direct, written, end, Time::default()).await.unwrap();
            write_past(&client, 1, OTHER * 4096, 4096).await;
            assert!(theirs.sync_bypassed(&file).await.is_err(), "seed {seed}");
            write_past(&client, 1, LOST * 4096, 4096).await;
            assert_eq!(theirs.sync_bypassed(&file).await, Ok(()), "seed {seed}");
        });
        world.crash(Crash::Kill);
    }
}

#[test]
fn writes_past_the_log_are_counted_though_they_are_not_cached() {
    let mut world = world(1, 2);
    world.shared.model.lock().logged = false;
    let engine = world.start_through(Vec::new()).unwrap();
    write(&world, &engine, 0, 8);
    with_client(&world, &engine, Allowed::default(), |mut client| async move {
        client.flush().await;
        write_past(&client, 1, 0, 3 * 4096).await;
    });
    assert_eq!(engine.counters().direct, 3 * 4096);
}
