//! Records that wait for room in the log while other changes of the object overtake them.

use std::sync::atomic::{AtomicU64, Ordering};

use forebay_engine::buffer::{Buffer, Slice};
use forebay_engine::io::{Backing as _, Clock as _, Time};

use super::*;

/// A change that waits for room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waits {
    /// The end of a write past the log.
    EndOfDirect,
    /// The record of a write past the log that makes older copies invalid.
    BeginOfDirect,
    /// A new modification time.
    Mtime,
}

/// Writes a block past the log, as the server does. The first or the second record of that waits for `step` 2.
async fn write_past(client: &mut Client, waits: Waits, step: &AtomicU64) {
    let (shared, engine) = (client.shared.clone(), client.engine.clone());
    let object = shared.objects.lock().object(1).unwrap();
    let now = Time { sec: 1_500_000_000, nsec: 0 };
    let reached = async |wanted| {
        while step.load(Ordering::Relaxed) < wanted {
            shared.executor.sleep(Duration::from_micros(100)).await;
        }
    };
    if waits == Waits::Mtime {
        reached(2).await;
        let id = shared.model.lock().begin_mtime(1, now);
        engine.set_mtime(&object, now).await.unwrap();
        shared.model.lock().durable(id);
        return;
    }
    if waits == Waits::BeginOfDirect {
        reached(2).await;
    }
    let id = shared.model.lock().begin_write(1, 0, 4096, now);
    let mut data = vec![0; 4096];
    crate::client::stamp(&mut data, 0, 1, id);
    let direct = engine.begin_bypass(&object, 0, 4096).await.unwrap();
    step.store(1, Ordering::Relaxed);
    if waits == Waits::EndOfDirect {
        reached(2).await;
    }
    let slice = Slice::new(Arc::new(Buffer::from_bytes(&data)), 0..data.len());
    shared.store.write(object.key(), 0, slice).await.unwrap();
    let frame = engine.end_bypass(&object, direct, Some((0, &data[..])), 4096, now).await.unwrap();
    engine.commit(frame).await.unwrap();
    let sync = object.begin_sync(0, 0);
    let synced = shared.store.sync(vec![object.key().clone()]).await.pop().unwrap();
    sync.unwrap().end(synced.is_ok());
    shared.model.lock().accepted(id, frame);
    shared.model.lock().durable(id);
}

/// Writes another file until the segment of the log is full. The header of the next one is held back.
fn fill_segment(world: &mut World, engine: &Arc<Engine>) {
    world.disks[0].hold(|operation| operation.is_header());
    let mut client = Client::new(&world.shared, engine, Allowed::default(), world.rng.fork());
    let disk = world.disks[0].clone();
    let writer = async move {
        while disk.holds() == 0 {
            client.write(2, 0, 4096, true).await;
        }
    };
    world.shared.executor.start("filler", Box::pin(writer));
    let disk = world.disks[0].clone();
    assert_eq!(until(world, move || disk.holds() > 0), Stop::Done);
}

/// Lets the held header go on after a second. After both changes have ended, the power fails, and the engine starts
/// again.
fn go_on_and_cut(world: &mut World, engine: Arc<Engine>, ended: Arc<AtomicU64>) -> Arc<Engine> {
    let executor = world.shared.executor.clone();
    let a_while = async move { executor.sleep(Duration::from_secs(1)).await };
    assert_eq!(world.shared.executor.block_on(LIMIT, a_while), Ok(()));
    world.disks[0].release();
    assert_eq!(until(world, move || ended.load(Ordering::Relaxed) == 2), Stop::Done);
    cut(world, engine);
    world.start_through(Vec::new()).unwrap()
}

/// A write makes the file longer while another record of it waits for the next log segment. Then the power fails.
fn lengthen_while(waits: Waits, seed: u64) -> Result<(), String> {
    let mut world = world_with(seed, 2, |plan| plan.objects = 2);
    world.shared.model.lock().logged = false;
    let engine = world.start_through(Vec::new()).unwrap();
    let end = world.shared.model.lock().size(1).div_ceil(4096) + 64;
    write(&world, &engine, end, 1);
    let step = Arc::new(AtomicU64::new(u64::from(waits != Waits::EndOfDirect)));
    let ended = Arc::new(AtomicU64::new(0));
    let (mine, done) = (step.clone(), ended.clone());
    let mut client = Client::new(&world.shared, &engine, Allowed::default(), world.rng.fork());
    let writer = async move {
        write_past(&mut client, waits, &mine).await;
        done.fetch_add(1, Ordering::Relaxed);
    };
    world.shared.executor.start("past", Box::pin(writer));
    let theirs = step.clone();
    assert_eq!(until(&world, move || theirs.load(Ordering::Relaxed) == 1), Stop::Done);
    world.disks[0].hold(|operation| operation.is_header());
    fill_segment(&mut world, &engine);
    step.store(2, Ordering::Relaxed);
    let mut client = Client::new(&world.shared, &engine, Allowed::default(), world.rng.fork());
    let done = ended.clone();
    let writer = async move {
        client.write(1, (end + 1) * 4096, 4096, true).await;
        done.fetch_add(1, Ordering::Relaxed);
    };
    world.shared.executor.start("log", Box::pin(writer));
    let engine = go_on_and_cut(&mut world, engine, ended);
    let looked = world.look_at_all(&engine);
    let failed = world.shared.failure.lock().clone();
    world.crash(Crash::Kill);
    if looked.is_ok() && failed.is_none() { Ok(()) } else { Err(format!("{looked:?} {failed:?}")) }
}

#[test]
fn a_size_that_grew_while_a_record_waited_for_room_counts_after_a_power_cut() {
    for waits in [Waits::EndOfDirect, Waits::BeginOfDirect, Waits::Mtime] {
        let failed: Vec<_> =
            (0..20).filter_map(|seed| Some((seed, lengthen_while(waits, seed).err()?))).collect();
        assert!(failed.is_empty(), "{waits:?}: {} of 20: {:?}", failed.len(), failed.first());
    }
}

#[test]
fn a_write_that_gets_in_before_a_record_about_older_copies_counts_after_a_power_cut() {
    for seed in 0..20 {
        let mut world = world_with(seed, 2, |plan| plan.objects = 2);
        let engine = world.start_through(Vec::new()).unwrap();
        write(&world, &engine, 0, 8);
        with_client(&world, &engine, Allowed::default(), |mut client| async move { client.flush().await });
        fill_segment(&mut world, &engine);
        let (theirs, object) = (engine.clone(), world.shared.objects.lock().object(1).unwrap());
        let ended = Arc::new(AtomicU64::new(0));
        let done = ended.clone();
        // An administrator on the host has touched the file.
        let looking = async move {
            let size = object.size();
            theirs.changed_outside(&object, size, 7).await.unwrap();
            done.fetch_add(1, Ordering::Relaxed);
        };
        world.shared.executor.start("outside", Box::pin(looking));
        let mut client = Client::new(&world.shared, &engine, Allowed::default(), world.rng.fork());
        let (done, executor) = (ended.clone(), world.shared.executor.clone());
        let writing = async move {
            executor.sleep(Duration::from_millis(1)).await;
            client.write(1, 3 * 4096, 4096, true).await;
            done.fetch_add(1, Ordering::Relaxed);
        };
        world.shared.executor.start("log", Box::pin(writing));
        let engine = go_on_and_cut(&mut world, engine, ended);
        check(&mut world, &engine);
        world.crash(Crash::Kill);
    }
}

#[test]
fn a_cut_waits_for_writes_past_the_log() {
    let mut world = world(1, 2);
    let engine = world.start_through(Vec::new()).unwrap();
    write(&world, &engine, 0, 2);
    let object = world.shared.objects.lock().object(1).unwrap();
    let done = Arc::new(AtomicU64::new(0));
    let (clock, cut) = (world.shared.executor.clone(), done.clone());
    let act = async move {
        let now = Time { sec: 1_500_000_000, nsec: 0 };
        let direct = engine.begin_bypass(&object, 1 << 20, 4096).await.unwrap();
        let (theirs, to_cut) = (engine.clone(), object.clone());
        let truncate = async move {
            theirs.truncate(&to_cut, 4096, now).await.unwrap();
            cut.store(1, Ordering::Relaxed);
        };
        clock.start("client", Box::pin(truncate));
        clock.sleep(Duration::from_secs(10)).await;
        assert_eq!(done.load(Ordering::Relaxed), 0, "what is written may be behind the cut");
        engine.end_bypass(&object, direct, None, 8192, now).await.unwrap();
        while done.load(Ordering::Relaxed) == 0 {
            clock.sleep(Duration::from_millis(1)).await;
        }
    };
    assert_eq!(world.shared.executor.block_on(LIMIT, act), Ok(()));
}

/// Writes 400 times past the log, each time for 3 ms.
async fn write_on(engine: Arc<Engine>, shared: Arc<Shared>, offset: u64) {
    let object = shared.objects.lock().object(1).unwrap();
    let now = Time { sec: 1_500_000_000, nsec: 0 };
    for _ in 0..400 {
        let direct = engine.begin_bypass(&object, offset, 4096).await.unwrap();
        shared.executor.sleep(Duration::from_millis(3)).await;
        engine.end_bypass(&object, direct, None, 8192, now).await.unwrap();
    }
}

/// Begins a cut of the only file. The result is 1 once the cut has ended.
fn begin_cut(world: &World, engine: &Arc<Engine>) -> Arc<AtomicU64> {
    let is_cut = Arc::new(AtomicU64::new(0));
    let object = world.shared.objects.lock().object(1).unwrap();
    let (theirs, done) = (engine.clone(), is_cut.clone());
    let cutting = async move {
        theirs.truncate(&object, 4096, Time { sec: 1_500_000_001, nsec: 0 }).await.unwrap();
        done.store(1, Ordering::Relaxed);
    };
    world.shared.executor.start("cut", Box::pin(cutting));
    is_cut
}

/// At each moment, at least one of two clients writes past the log.
#[test]
pub(super) fn a_cut_waits_only_for_writes_past_the_log_that_began_before_it() {
    let mut world = world(1, 2);
    let engine = world.start_through(Vec::new()).unwrap();
    write(&world, &engine, 0, 2);
    let ended = Arc::new(AtomicU64::new(0));
    let (shared, executor) = (world.shared.clone(), world.shared.executor.clone());
    for at in [1 << 20, 2 << 20] {
        let writing = write_on(engine.clone(), shared.clone(), at);
        let done = ended.clone();
        let writing = async move {
            writing.await;
            done.fetch_add(1, Ordering::Relaxed);
        };
        executor.start("past", Box::pin(writing));
        let executor = executor.clone();
        let a_while = async move { executor.sleep(Duration::from_millis(1)).await };
        assert_eq!(shared.executor.block_on(LIMIT, a_while), Ok(()));
    }
    let cuts = [begin_cut(&world, &engine), begin_cut(&world, &engine)];
    let are_cut = move || cuts.iter().all(|cut| cut.load(Ordering::Relaxed) == 1);
    assert_eq!(until(&world, are_cut), Stop::Done);
    assert_eq!(ended.load(Ordering::Relaxed), 0, "the cuts waited for the last write of a client");
    // The writes go on behind the cuts.
    let theirs = ended.clone();
    assert_eq!(until(&world, move || theirs.load(Ordering::Relaxed) == 2), Stop::Done);
}

/// Each batch of destaging finds blocks of the file that a client has written meanwhile.
#[test]
pub(super) fn a_cut_waits_for_one_batch_of_destaging() {
    let mut world = world_with(1, 2, |plan| plan.destage_after = Duration::ZERO);
    let engine = world.start_through(Vec::new()).unwrap();
    let ended = Arc::new(AtomicU64::new(0));
    let mut client = Client::new(&world.shared, &engine, Allowed::default(), world.rng.fork());
    let done = ended.clone();
    let writing = async move {
        for block in 0..2000 {
            client.write(1, block % 100 * 4096, 4096, true).await;
        }
        done.store(1, Ordering::Relaxed);
    };
    world.shared.executor.start("log", Box::pin(writing));
    let theirs = engine.clone();
    assert_eq!(until(&world, move || theirs.counters().destaged > 0), Stop::Done);
    let is_cut = begin_cut(&world, &engine);
    assert_eq!(until(&world, move || is_cut.load(Ordering::Relaxed) == 1), Stop::Done);
    assert_eq!(ended.load(Ordering::Relaxed), 0, "the cut waited for the last write of the client");
}
