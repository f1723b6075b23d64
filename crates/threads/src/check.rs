//! Runs a scenario under one order of threads after another, and looks at what is left.

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

/// Blocks of file 1 that are looked at.
pub const BLOCKS: u64 = 32;
/// An order of more choices than this hangs.
const STEPS: usize = 400_000;

/// What clients do, and beside what.
#[derive(Clone, Copy)]
pub struct Scenario {
    /// For people.
    pub name: &'static str,
    /// Done once, in one order: what the devices hold before the scenario.
    pub prepare: fn(World, Client) -> Io<()>,
    /// What happens to the devices after that.
    pub damage: fn(&World),
    /// Done in every order.
    pub act: fn(World, Client) -> Io<()>,
    /// What is chosen of the engine meanwhile.
    pub settings: fn() -> Settings,
    /// When either device may be lost together with the power.
    pub mirrored: Mirrored,
    /// Tasks of the engine that begin only when a client says so ([`World::begin`]): at the start of service they would do all there is
    /// to do before the first client comes.
    pub late: &'static [&'static str],
    /// Steps of which each has to be reached in some orders.
    pub steps: &'static [&'static str],
}

/// When everything has two good copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mirrored {
    /// Never.
    Never,
    /// Once the clients are done.
    InTheEnd,
    /// At any time.
    Always,
}

/// An order in which something went wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The order's seed.
    pub seed: u64,
    /// What went wrong.
    pub message: String,
}

impl Scenario {
    /// What the devices hold before the scenario.
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
    /// A client was told something that is not so, or waits for ever.
    pub fn run(&'static self, before: &Snapshot, seeds: Range<u64>) -> Result<(), Failure> {
        let before = before.clone();
        in_orders(seeds, move || self.run_here(before.clone()))
    }

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

/// Looks at what recovery makes of what a power cut left: `known` is the size and the contents that were read before it.
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

/// Nothing is destaged by itself.
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

fn message(panic: Box<dyn Any + Send>) -> String {
    match panic.downcast::<String>() {
        Ok(message) => *message,
        Err(panic) => panic.downcast_ref::<&str>().map_or_else(String::new, |message| (*message).to_owned()),
    }
}
