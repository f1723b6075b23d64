//! Repeated overwrites of a few blocks over a backing store that takes nothing: the log must make room from its own
//! contents.

use std::sync::Arc;
use std::time::Duration;

use forebay_engine::{Engine, Mode};

use crate::backing;
use crate::client::Client;
use crate::plan::Plan;
use crate::rng::Rng;
use crate::world::{Crash, World};

/// The size of the only file in bytes.
const FILE: u64 = 12 << 20;
/// The size of a write in bytes.
const WRITE: u64 = 32 << 10;

/// Makes a world with two devices of 64 MiB, one file, `ram` bytes of memory, and no faults. Nothing is destaged
/// within an hour.
fn world(ram: u64) -> World {
    let mut rng = Rng::new(7);
    let mut plan = Plan::new(&mut rng);
    plan.devices = vec![64 << 20; 2];
    plan.spares.clear();
    plan.troubles.clear();
    plan.disaster = None;
    plan.mode = Mode::WriteBack;
    plan.ram = ram;
    plan.destage_after = Duration::from_secs(3600);
    plan.objects = 1;
    plan.volumes = 1;
    plan.sessions = 0;
    plan.habits.modes.clear();
    plan.habits.extent = FILE;
    World::new(plan, rng, false)
}

/// Lets four clients write all over the file. Returns `None` if they were held up.
fn overwrite(world: &mut World, engine: &Arc<Engine>, writes: u64) -> Option<()> {
    let clients: Vec<Client> =
        (0..4).map(|_| Client::new(&world.shared, engine, Default::default(), world.rng.fork())).collect();
    for (n, mut client) in clients.into_iter().enumerate() {
        let mut rng = world.rng.fork();
        let task = async move {
            for _ in 0..writes / 4 {
                let at = rng.below(FILE / WRITE / 4) * 4 + n as u64;
                client.write(1, at * WRITE, WRITE, true).await;
            }
        };
        world.shared.executor.block_on(Duration::from_secs(600), task).ok()?;
    }
    Some(())
}

/// Writes more than twice as many bytes as the log can hold, to a file that fits three times into the log's share. Then
/// the power fails.
fn survives(ram: u64) {
    let mut world = world(ram);
    let engine = world.start_through(Vec::new()).unwrap();
    assert!(overwrite(&mut world, &engine, FILE / WRITE).is_some());
    // The store is too slow to destage anything in time.
    world.shared.store.set_rates(backing::Rates { slow: 1_000_000, ..Default::default() });
    let written = || engine.counters().written * 4096;
    while written() < 160 << 20 {
        assert!(overwrite(&mut world, &engine, 400).is_some(), "held up after {} MiB", written() >> 20);
        assert_eq!(engine.scan().dirty_blocks, engine.usage().dirty_blocks);
    }
    let counters = engine.counters();
    assert!(counters.compacted > 0 && counters.destaged < 1000, "{counters:?}");
    drop(engine);
    world.shared.store.set_rates(backing::Rates::default());
    world.crash(Crash::PowerCut);
    let engine = world.start_through(Vec::new()).unwrap();
    assert!(
        world.look_at_all(&engine).is_ok() && world.drain(&engine).is_ok() && world.close(&engine).is_ok()
    );
    assert_eq!(world.outcome(None).failure, None);
}

#[test]
fn a_log_of_overwritten_blocks_needs_no_backing_store() {
    survives(64 << 20);
}

#[test]
fn what_is_moved_within_the_log_need_not_be_in_memory() {
    survives(64 << 10);
}
