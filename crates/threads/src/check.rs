//! Runs a scenario under one order of threads after another, and checks the state that remains.

use std::any::Any;
use std::cell::Cell;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};

use forebay_engine::Settings;
use forebay_engine::io::Io;
use shuttle::future::block_on;
use shuttle::rand::Rng as _;
use shuttle::{Config, FailurePersistence, MaxSteps, Runner};

use crate::client::Client;
use crate::reach::begin_order;
use crate::scheduler::Orders;
use crate::world::{Snapshot, World};

/// The number of blocks of file 1 that are checked.
pub const BLOCKS: u64 = 32;
/// An order with more choices than this counts as a hang.
const STEPS: usize = 400_000;

/// The actions of the clients, and the conditions under which they run.
#[derive(Clone, Copy)]
pub struct Scenario {
    /// The name, for messages.
    pub name: &'static str,
    /// Runs once, in one order. It produces the devices' contents before the scenario.
    pub prepare: fn(World, Client) -> Io<()>,
    /// Damages the devices after that.
    pub damage: fn(&World),
    /// Runs in every order.
    pub act: fn(World, Client) -> Io<()>,
    /// The engine's settings during the scenario.
    pub settings: fn() -> Settings,
    /// The times at which either device may be lost together with the power.
    pub mirrored: Mirrored,
    /// Tasks of the engine that begin only when a client calls [`World::begin`]. At the start of service they would
    /// finish all their work before the first client comes.
    pub late: &'static [&'static str],
    /// Steps, each of which some orders have to reach.
    pub steps: &'static [&'static str],
}

/// The times at which all data has two good copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mirrored {
    /// Never.
    Never,
    /// After the clients have finished.
    InTheEnd,
    /// At any time.
    Always,
}

/// An order in which the scenario failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The order's seed.
    pub seed: u64,
    /// The failure.
    pub message: String,
}

impl Scenario {
    /// Returns the devices' contents before the scenario.
    pub fn prepared(&'static self) -> Result<Snapshot, Failure> {
        let left = Arc::new(Mutex::new(Snapshot::default()));
        let theirs = left.clone();
        in_orders(0..1, move || {
            let world = World::blank(quiet());
            let client = block_on(world.start()).unwrap_or_else(|error| panic!("{error}"));
            world.hurry();
            block_on((self.prepare)(world.clone(), client));
            (self.damage)(&world);
            *theirs.lock().unwrap_or_else(PoisonError::into_inner) = world.cut();
        })?;
        Ok(left.lock().unwrap_or_else(PoisonError::into_inner).clone())
    }

    /// Runs the scenario in the orders of `seeds`, one after another, up to the first failure.
    ///
    /// # Errors
    /// Fails if the engine told a client something untrue, or if a client waits for ever.
    pub fn run(&'static self, before: &Snapshot, seeds: Range<u64>) -> Result<(), Failure> {
        let before = before.clone();
        in_orders(seeds, move || self.run_here(before.clone()))
    }

    /// Runs the scenario once, under the order of threads that the checker has drawn, and looks at the state after a
    /// power cut. A quarter of the runs are cut in the middle.
    fn run_here(&self, before: Snapshot) {
        begin_order();
        let world = World::new(before, (self.settings)());
        world.delay(self.late);
        let client = block_on(world.start()).unwrap_or_else(|error| panic!("{error}"));
        let act = world.spawn((self.act)(world.clone(), client.clone()));
        let whole = shuttle::rand::thread_rng().gen_range(0..4) > 0;
        let mut known = None;
        if whole {
            block_on(act);
            known = Some((client.file.size(), block_on(client.read_at_once(0..BLOCKS))));
        } else {
            // The power is cut in the middle.
            for _ in 0..shuttle::rand::thread_rng().gen_range(0..200) {
                shuttle::thread::yield_now();
            }
            drop(act);
        }
        let left = world.cut();
        let is_false = self.mirrored == Mirrored::Always && world.was_degraded();
        assert!(!is_false, "the engine reports data on one device");
        drop((client, world));
        if self.mirrored == Mirrored::Always || self.mirrored == Mirrored::InTheEnd && whole {
            // Either device may be lost.
            for kept in &left.disks {
                look(Snapshot { disks: vec![kept.clone()], ..left.clone() }, known.as_ref());
            }
        }
        look(left, known.as_ref());
    }
}

/// Checks the state that recovery makes of `left`, the remains of a power cut. `known` is the size and the contents
/// that were read before it.
fn look(left: Snapshot, known: Option<&(u64, Vec<u8>)>) {
    let world = World::new(left, quiet());
    let client = block_on(world.start()).unwrap_or_else(|error| panic!("after the power cut: {error}"));
    world.hurry();
    let size = client.file.size();
    let bytes = block_on(client.read_at_once(0..BLOCKS));
    if let Some((known_size, known_bytes)) = known {
        assert_eq!(size, *known_size, "the size after the power cut is not the one before it");
        assert!(bytes == *known_bytes, "what is read after the power cut is not what was read before it");
    }
    drop(world.cut());
}

/// Returns settings under which nothing is destaged by itself.
pub fn quiet() -> Settings {
    Settings { ram: 1 << 20, destage_after: std::time::Duration::from_secs(600), ..Settings::default() }
}

/// Runs `act` under the checker in the orders of `seeds`, up to the first one in which it fails.
fn in_orders(seeds: Range<u64>, act: impl Fn() + Send + Sync + 'static) -> Result<(), Failure> {
    let mut config = Config::new();
    config.stack_size = 256 << 10;
    config.failure_persistence = FailurePersistence::None;
    config.max_steps = MaxSteps::FailAfter(STEPS);
    config.silence_warnings = true;
    config.ungraceful_shutdown_config.immediately_return_on_panic = true;
    let seed = Rc::new(Cell::new(seeds.start));
    // One runner reuses the stacks of threads.
    let runner = Runner::new(Orders::new(seeds, seed.clone()), config);
    let run = catch_unwind(AssertUnwindSafe(|| runner.run(act)));
    run.map(|_| ()).map_err(|panic| Failure { seed: seed.get(), message: message(panic) })
}

/// Returns the text of a panic, or an empty text if the panic carries none.
fn message(panic: Box<dyn Any + Send>) -> String {
    match panic.downcast::<String>() {
        Ok(message) => *message,
        Err(panic) => panic.downcast_ref::<&str>().map_or_else(String::new, |message| (*message).to_owned()),
    }
}
