//! Worlds in which exactly one fault happens, at a chosen place.

use std::sync::Arc;
use std::time::Duration;

use forebay_engine::io::{Device as _, Time};
use forebay_engine::{Engine, Mode};

use crate::client::{Allowed, Client, Shared};
use crate::executor::Stop;
use crate::notes::let_go_when_due;
use crate::plan::Plan;
use crate::rng::Rng;
use crate::world::{Crash, World};

mod blocks;
mod damaged;
mod devices;
mod early;
mod given_up;
mod gone;
mod joining;
mod killed;
mod late;
mod memory;
mod notes;
mod opening;
mod overtaken;
#[cfg(feature = "plant")]
mod planted;
mod policy;
mod pressure;
mod priority;
mod refused;
mod removal;
mod repair;
mod stale;
mod stop;
mod syncs;
mod unsynced;
mod volumes;
mod waiting;

const LIMIT: Duration = Duration::from_secs(3600);

/// Makes a quiet world of `devices` devices of 64 MiB with one file. Nothing is destaged by itself for long.
fn world(seed: u64, devices: usize) -> World {
    world_with(seed, devices, |_| ())
}

/// Makes a quiet world whose plan `change` modifies.
fn world_with(seed: u64, devices: usize, change: impl FnOnce(&mut Plan)) -> World {
    let mut rng = Rng::new(seed);
    let mut plan = Plan::new(&mut rng);
    plan.devices = vec![64 << 20; devices];
    plan.spares = vec![64 << 20];
    plan.victim = 0;
    plan.troubles.clear();
    plan.disaster = None;
    plan.mode = Mode::WriteBack;
    plan.ram = 16 << 10;
    plan.destage_after = Duration::from_secs(600);
    plan.objects = 1;
    plan.volumes = 1;
    plan.sessions = 0;
    plan.habits.modes.clear();
    plan.habits.extent = 4 << 20;
    change(&mut plan);
    World::new(plan, rng, false)
}

/// Runs `act` with a client of the world.
fn with_client<F>(world: &World, engine: &Arc<Engine>, allowed: Allowed, act: impl FnOnce(Client) -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    let client = Client::new(&world.shared, engine, allowed, world.rng.clone());
    let done = world.shared.executor.block_on(LIMIT, act(client));
    assert_eq!(done, Ok(()), "{}", world.shared.executor.busiest());
    assert_eq!(*world.shared.failure.lock(), None);
}

/// Writes `blocks` blocks from block `first` on, each with a stable write of its own.
fn write(world: &World, engine: &Arc<Engine>, first: u64, blocks: u64) {
    with_client(world, engine, Allowed::default(), move |mut client| async move {
        for block in first..first + blocks {
            client.write(1, block * 4096, 4096, true).await;
        }
    });
}

/// Waits until `is_true`.
fn until(world: &World, is_true: impl Fn() -> bool + Send + 'static) -> Stop {
    let executor = world.shared.executor.clone();
    let waiting = async move {
        while !is_true() {
            use forebay_engine::io::Clock as _;
            executor.sleep(Duration::from_millis(10)).await;
        }
    };
    world.shared.executor.block_on(LIMIT, waiting).map_or_else(|stop| stop, |()| Stop::Done)
}

/// Panics if any object has contents that the model does not allow.
fn check(world: &mut World, engine: &Arc<Engine>) {
    assert_eq!(world.look_at_all(engine), Ok(()));
    assert_eq!(*world.shared.failure.lock(), None);
}

/// Ends the session by a power cut.
fn cut(world: &mut World, engine: Arc<Engine>) {
    drop(engine);
    world.crash(Crash::PowerCut);
}

#[test]
fn starts_that_hardly_use_the_segments_they_open_cost_nothing_of_the_cache() {
    let mut world = world(2, 2);
    let mut engine = world.start_through(Vec::new()).unwrap();
    write(&world, &engine, 0, 900);
    with_client(&world, &engine, Allowed::default(), |mut client| async move { client.flush().await });
    for start in 0..=300_usize {
        assert_eq!(world.close(&engine), Ok(()));
        cut(&mut world, engine);
        engine = world.start_through(Vec::new()).unwrap();
        write(&world, &engine, 0, 1);
        let theirs = engine.clone();
        assert_eq!(until(&world, move || theirs.warming().is_none()), Stop::Done);
        let executor = world.shared.executor.clone();
        let a_while = async move {
            use forebay_engine::io::Clock as _;
            // Most starts stop in the middle of the work.
            executor.sleep(Duration::from_millis(if start % 20 == 0 { 60_000 } else { 20 })).await;
        };
        assert_eq!(world.shared.executor.block_on(LIMIT, a_while), Ok(()));
        // A block that is being moved is in neither place for a moment.
        if start % 20 == 0 {
            assert_eq!(engine.usage().ssd_blocks, 900, "after {start} starts");
        }
    }
    check(&mut world, &engine);
}

#[test]
fn a_read_under_way_shows_no_mix_of_what_was_before_a_write_and_of_a_later_cut() {
    for seed in 0..20 {
        let mut world = world(seed, 2);
        let engine = world.start_through(Vec::new()).unwrap();
        // Only the backing store has these blocks.
        engine.set_mode(Mode::WriteAround);
        write(&world, &engine, 0, 4);
        engine.set_mode(Mode::WriteBack);
        let mut reader = Client::new(&world.shared, &engine, Allowed::default(), world.rng.clone());
        let read = async move { reader.read(1, 0, 16384).await };
        world.shared.executor.start("reader", Box::pin(read));
        with_client(&world, &engine, Allowed::default(), |mut client| async move {
            client.write(1, 12288, 4096, false).await;
            client.truncate(1, 14336).await;
        });
        let executor = world.shared.executor.clone();
        let a_while =
            async move { forebay_engine::io::Clock::sleep(&executor, Duration::from_secs(10)).await };
        assert_eq!(world.shared.executor.block_on(LIMIT, a_while), Ok(()));
        assert_eq!(*world.shared.failure.lock(), None, "seed {seed}");
    }
}

#[test]
fn who_is_to_write_a_frame_may_wait_for_it_first() {
    let mut world = world(1, 2);
    let engine = world.start_through(Vec::new()).unwrap();
    write(&world, &engine, 0, 1);
    let executor = world.shared.executor.clone();
    executor.keep_callers_busy();
    let begun = executor.time();
    let object = world.shared.objects.lock().object(1).unwrap();
    for number in 0..10 {
        let (engine, object) = (engine.clone(), object.clone());
        // A task that waits with `commit`, as recovery does, is not called back like a caller of `when_durable`.
        let write = async move {
            let frame = engine.write(&object, number * 4096, &[1; 4096], Time::default()).await?;
            engine.commit(frame).await
        };
        assert_eq!(executor.block_on(LIMIT, write), Ok(Ok(())));
    }
    assert!(executor.time() - begun < crate::executor::BUSY, "a frame waited for its caller");
}

#[test]
fn a_file_removed_while_it_is_destaged_and_written_directly_is_no_failure_of_the_backing_store() {
    for seed in 0..20 {
        let world = &mut world(seed, 2);
        let engine = world.start_through(Vec::new()).unwrap();
        write(world, &engine, 0, 1);
        engine.set_mode(Mode::WriteThrough);
        let mut client = Client::new(&world.shared, &engine, Allowed::default(), world.rng.fork());
        let direct = async move { client.write(1, 8 * 4096, 4096, true).await };
        world.shared.executor.start("client", Box::pin(direct));
        let (shared, theirs) = (world.shared.clone(), engine.clone());
        let first_block = |shared: &Shared| {
            let key = shared.objects.lock().key(1)?;
            Some(shared.store.durable(&key)?.page(0))
        };
        let before = first_block(&shared);
        let removal = async move {
            // One of the two superblocks has been synced, and the other may be on its way.
            while first_block(&shared) == before {
                forebay_engine::io::Clock::sleep(&shared.executor, Duration::from_micros(10)).await;
            }
            let Some((key, object)) = shared.objects.lock().remove(1) else { return };
            shared.model.lock().remove(1);
            shared.store.remove(&key);
            theirs.forget(&object).await;
        };
        world.shared.executor.start("client", Box::pin(removal));
        let theirs = engine.clone();
        let flushed = world.shared.executor.block_on(LIMIT, async move { theirs.flush().await });
        assert_eq!((flushed, engine.counters().backing_errors), (Ok(Ok(())), 0), "seed {seed}");
    }
}

/// Reads `len` bytes of file `number` in pieces of 64 KiB.
fn read(world: &World, engine: &Arc<Engine>, number: u8, len: u64) {
    with_client(world, engine, Allowed::default(), move |mut client| async move {
        for offset in (0..len).step_by(64 << 10) {
            client.read(number, offset, 64 << 10).await;
        }
    });
}

#[test]
fn clean_copies_are_loaded_behind_the_start_of_service_and_never_over_what_is_newer() {
    for seed in 0..40 {
        let mut world = world(seed, 2);
        let engine = world.start_through(Vec::new()).unwrap();
        write(&world, &engine, 0, 600);
        with_client(&world, &engine, Allowed::default(), |mut client| async move { client.flush().await });
        cut(&mut world, engine);
        let engine = world.start_through(Vec::new()).unwrap();
        assert!(engine.warming().is_some(), "service begins before everything is loaded");
        // Some writes bypass the log, some go through it, and a truncation follows. Some of that happens before the
        // copies are loaded.
        let theirs = engine.clone();
        with_client(&world, &engine, Allowed::default(), move |mut client| async move {
            theirs.set_mode(Mode::WriteAround);
            client.write(1, 100 * 4096, 8192, true).await;
            theirs.set_mode(Mode::WriteBack);
            client.write(1, 200 * 4096, 8192, true).await;
            client.truncate(1, 500 * 4096).await;
            client.truncate(1, 600 * 4096).await;
        });
        if seed % 2 == 0 {
            let theirs = engine.clone();
            assert_eq!(until(&world, move || theirs.warming().is_none()), Stop::Done);
            let before = engine.counters();
            read(&world, &engine, 1, 96 * 4096);
            assert_eq!(engine.counters().read_backing, before.read_backing, "it is as warm as before");
            check(&mut world, &engine);
        }
        cut(&mut world, engine);
        let engine = world.start_through(Vec::new()).unwrap();
        check(&mut world, &engine);
    }
}

#[test]
fn a_forgotten_object_is_not_brought_back_by_what_is_loaded_late() {
    let mut world = world(3, 2);
    let engine = world.start_through(Vec::new()).unwrap();
    write(&world, &engine, 0, 300);
    with_client(&world, &engine, Allowed::default(), |mut client| async move { client.flush().await });
    cut(&mut world, engine);
    let engine = world.start_through(Vec::new()).unwrap();
    assert!(engine.warming().is_some());
    let (key, object) = world.shared.objects.lock().remove(1).unwrap();
    world.shared.model.lock().remove(1);
    world.shared.store.remove(&key);
    let theirs = engine.clone();
    assert_eq!(world.shared.executor.block_on(LIMIT, async move { theirs.forget(&object).await }), Ok(()));
    let theirs = engine.clone();
    assert_eq!(until(&world, move || theirs.warming().is_none()), Stop::Done);
    assert!(engine.known(&key).is_none() && engine.scan().ssd_blocks == 0);
}

#[test]
fn what_is_only_read_is_cached_also_after_a_crash() {
    let mut world = world(1, 2);
    world.plan.mode = Mode::WriteAround;
    world.shared.model.lock().logged = false;
    let engine = world.start_through(Vec::new()).unwrap();
    with_client(&world, &engine, Allowed::default(), |mut client| async move {
        client.write(1, 0, 4 << 20, true).await;
    });
    read(&world, &engine, 1, 4 << 20);
    let copies = engine.usage().ssd_blocks;
    assert!(copies > 512, "two segments are full");
    cut(&mut world, engine);
    let engine = world.start_through(Vec::new()).unwrap();
    let theirs = engine.clone();
    assert_eq!(until(&world, move || theirs.warming().is_none()), Stop::Done);
    assert!(engine.usage().ssd_blocks >= copies - 256, "all but the segment that was being filled");
    check(&mut world, &engine);
}

#[test]
fn a_flush_ends_while_clients_go_on_writing() {
    let mut world = world(2, 2);
    let engine = world.start_through(Vec::new()).unwrap();
    write(&world, &engine, 0, 100);
    for writer in 1..3 {
        let mut client = Client::new(&world.shared, &engine, Allowed::default(), world.rng.fork());
        let executor = world.shared.executor.clone();
        let writes = async move {
            for turn in 0.. {
                client.write(1, (writer * 200 + turn % 64) * 4096, 4096, true).await;
                forebay_engine::io::Clock::sleep(&executor, Duration::from_micros(200)).await;
            }
        };
        world.shared.executor.start("client", Box::pin(writes));
    }
    let theirs = engine.clone();
    let flushed =
        world.shared.executor.block_on(Duration::from_secs(60), async move { theirs.flush().await });
    assert_eq!(flushed, Ok(Ok(())));
    assert!(engine.usage().dirty_blocks > 0, "they go on");
    let mut expected = vec![0; 100 * 4096];
    let object = world.shared.objects.lock().object(1).unwrap();
    let read = async move { engine.read(&object, 0, &mut expected).await.map(|_| expected) };
    let expected = world.shared.executor.block_on(LIMIT, read).unwrap().unwrap();
    let key = world.shared.objects.lock().key(1).unwrap();
    let mut found = vec![0; expected.len()];
    world.shared.store.durable(&key).unwrap().read(0, &mut found);
    assert!(found == expected, "what was dirty before it is in the backing store");
    world.crash(Crash::Kill);
}
