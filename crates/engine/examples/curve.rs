//! Compares the miss-ratio curve with measured hit ratios: the engine runs at five sizes of its cache devices under
//! three loads, and the curve comes from the run at the middle size alone. `cargo run -p forebay-engine --example
//! curve`. Devices and backing store are in memory; a read of the backing store takes 20 us on average. With the
//! argument `cost` it compares reads from memory with and without the sampler instead. Another argument is the
//! beginning of a load's name.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a measurement that cannot go on stops")]

#[path = "../../mrc/tests/loads/mod.rs"]
mod loads;
#[path = "../benches/zeros/mod.rs"]
mod zeros;

use std::collections::HashMap;
use std::future::ready;
use std::sync::Arc;
use std::time::Duration;

use forebay_common::lock::RwLock;
use forebay_engine::buffer::{BLOCK, Buffer, Slice};
use forebay_engine::io::{Clock, Device, DeviceError, Durability, Io, Key, Time};
use forebay_engine::pool::Pool;
use forebay_engine::{CachedObject, Engine, Env, Outcome, Settings};
use forebay_mrc::{Curve, Estimator, Kind, Sampler};
use forebay_runtime::{SystemClock, Threads, block_on};

use loads::Request;
use zeros::Zeros;

/// The sizes of each of two devices in MiB, and the number of the simulated size.
const SIZES: [(u64, usize); 5] = [(64, 1), (128, 2), (256, 4), (512, 6), (1024, 8)];
/// The size whose run gives the curve.
const PRESENT: u64 = 256;
/// Requests of a run. The second half counts.
const REQUESTS: u64 = 1_600_000;
/// Bytes of memory for cached blocks.
const MEMORY: u64 = 16 << 20;
/// The size of every object in bytes: a million blocks.
const OBJECT: u64 = 1_000_000 * BLOCK as u64;

/// A device in memory.
struct Memory {
    name: String,
    bytes: RwLock<Vec<u8>>,
    size: u64,
}

impl Device for Memory {
    fn name(&self) -> &str {
        &self.name
    }

    fn size(&self) -> u64 {
        self.size
    }

    fn read(&self, offset: u64, mut buffer: Buffer) -> Io<(Buffer, Result<(), DeviceError>)> {
        let (at, len) = (offset as usize, buffer.len());
        buffer.copy_from_slice(&self.bytes.read()[at..at + len]);
        Box::pin(ready((buffer, Ok(()))))
    }

    fn write(&self, offset: u64, data: Slice, _: Durability) -> Io<Result<(), DeviceError>> {
        self.bytes.write()[offset as usize..][..data.len()].copy_from_slice(&data);
        Box::pin(ready(Ok(())))
    }

    fn flush(&self) -> Io<Result<(), DeviceError>> {
        Box::pin(ready(Ok(())))
    }

    fn discard(&self, _: u64, _: u64) -> Io<Result<(), DeviceError>> {
        Box::pin(ready(Ok(())))
    }
}

/// The result of a run.
struct Measured {
    hit_ratio: f64,
    coalescing: f64,
    curve: Option<Curve>,
}

fn engine(mebibytes: u64, clock: &Arc<SystemClock>) -> Arc<Engine> {
    let device = |name: &str| -> Arc<dyn Device> {
        let size = mebibytes << 20;
        Arc::new(Memory { name: name.to_owned(), bytes: RwLock::new(vec![0; size as usize]), size })
    };
    let mut last = 0;
    let mut random = || {
        last += 1;
        last
    };
    let pool = block_on(Pool::format(vec![device("a"), device("b")], &mut random, false)).unwrap();
    let env = Env {
        clock: clock.clone(),
        spawn: Arc::new(Threads::default()),
        backing: Arc::new(Zeros(OBJECT)),
        witness: None,
        deliver: Arc::new(|batch| batch()),
        events: Arc::new(|_| {}),
    };
    let settings = Settings { ram: MEMORY, ..Settings::default() };
    block_on(Engine::open(pool, env, settings)).unwrap().0
}

fn run(mebibytes: u64, load: &[Request]) -> Measured {
    let clock = Arc::new(SystemClock::default());
    let engine = engine(mebibytes, &clock);
    let sampler = Arc::new(Sampler::default());
    engine.set_sampler(sampler.clone());
    let mut estimator = Estimator::new(sampler);
    let estimates = mebibytes == PRESENT;
    if estimates {
        estimator.advance(clock.now(), engine.present());
    }
    let mut objects: HashMap<u64, Arc<CachedObject>> = HashMap::new();
    let mut block = vec![0; BLOCK];
    let (mut before, mut slept) = (engine.counters(), 0);
    // The engine counts the reads of destaging as well.
    let (mut reads, mut misses) = (0_u32, 0_u32);
    for (number, (name, at, kind)) in load.iter().enumerate() {
        if number == load.len() / 2 {
            before = engine.counters();
            (reads, misses) = (0, 0);
            estimator.forget_counts();
        }
        let named = || engine.object(&Key::new(&name.to_le_bytes()).unwrap(), OBJECT);
        let object = objects.entry(*name).or_insert_with(named);
        let offset = at * BLOCK as u64;
        match kind {
            Kind::Write => {
                let frame = block_on(engine.write(object, offset, &block, Time::default())).unwrap();
                if number % 32 == 0 {
                    block_on(engine.commit(frame)).unwrap();
                }
            }
            _ => {
                let missed = engine.counters().read_backing;
                block_on(engine.read(object, offset, &mut block)).unwrap();
                reads += 1;
                misses += u32::from(engine.counters().read_backing > missed);
            }
        }
        if number % 64 == 0 {
            let missed = engine.counters().read_backing;
            block_on(clock.sleep(Duration::from_micros(20 * (missed - slept).max(1))));
            slept = missed;
            if estimates {
                estimator.advance(clock.now(), engine.present());
            }
        }
    }
    let now = engine.counters();
    let destaged = (now.destaged - before.destaged).max(1);
    let result = Measured {
        hit_ratio: 1.0 - f64::from(misses) / f64::from(reads),
        coalescing: (now.written - before.written) as f64 / destaged as f64,
        curve: estimates.then(|| estimator.curve()),
    };
    block_on(engine.close()).unwrap();
    result
}

/// Prints the least time of a 4 KiB read from memory without and with the sampler, in turn, and the time of a simulated
/// reference.
fn cost() {
    const READS: u64 = 20_000;
    const ROUNDS: u64 = 500;
    const BLOCKS: u64 = 2048;
    let clock = Arc::new(SystemClock::default());
    let engines = [engine(PRESENT, &clock), engine(PRESENT, &clock)];
    let sampler = Arc::new(Sampler::default());
    let mut estimator = Estimator::new(sampler.clone());
    engines[1].set_sampler(sampler);
    estimator.advance(clock.now(), engines[1].present());
    let mut block = vec![0; BLOCK];
    let objects = engines.each_ref().map(|engine| engine.object(&Key::new(b"object").unwrap(), OBJECT));
    for (engine, object) in engines.iter().zip(&objects) {
        for at in 0..BLOCKS {
            block_on(engine.read(object, at * BLOCK as u64, &mut block)).unwrap();
        }
    }
    let (mut least, mut simulated, mut spent) = ([f64::MAX; 2], 0, Duration::ZERO);
    for _ in 0..ROUNDS {
        for (at, (engine, object)) in engines.iter().zip(&objects).enumerate() {
            let begun = clock.now();
            for number in 0..READS {
                let offset = number * 7919 % BLOCKS * BLOCK as u64;
                assert_eq!(engine.try_read(object, offset, &mut block), Outcome::Done(BLOCK));
            }
            least[at] = least[at].min((clock.now() - begun).as_nanos() as f64 / READS as f64);
        }
        let (begun, before) = (clock.now(), estimator.curve().sampled);
        estimator.advance(clock.now(), engines[1].present());
        simulated += estimator.curve().sampled - before;
        spent += clock.now() - begun;
    }
    println!(
        "{:.1} ns without the sampler, {:.1} ns with it; {simulated} references simulated in {:.0} ns each",
        least[0],
        least[1],
        spent.as_nanos() as f64 / simulated.max(1) as f64
    );
    for engine in engines {
        block_on(engine.close()).unwrap();
    }
}

fn main() {
    if std::env::args().nth(1).is_some_and(|word| word == "cost") {
        return cost();
    }
    let loads: [(&str, Vec<Request>); 3] = [
        ("Zipf", loads::zipf(REQUESTS).collect()),
        ("scan and hot set", loads::scan_and_hot_set(REQUESTS).collect()),
        ("phases", loads::phases(REQUESTS).collect()),
    ];
    let wanted = std::env::args().nth(1).unwrap_or_default();
    for (name, load) in loads.into_iter().filter(|(name, _)| name.starts_with(&wanted)) {
        let runs: Vec<_> = SIZES.iter().map(|(mebibytes, _)| run(*mebibytes, &load)).collect();
        let curve = runs.iter().find_map(|run| run.curve.clone()).unwrap();
        let mut error = 0.0;
        println!(
            "{name}: one block in {:.0}, {} samples, {} lost",
            1.0 / curve.rate,
            curve.sampled,
            curve.lost
        );
        for ((mebibytes, at), run) in SIZES.iter().zip(&runs) {
            let point = curve.points[*at];
            error += (point.hit_ratio - run.hit_ratio).abs() * 100.0 / SIZES.len() as f64;
            println!(
                "  2 x {mebibytes} MiB: {:.1} % measured, {:.1} % estimated; coalescing {:.2} measured, {:.2} estimated",
                run.hit_ratio * 100.0,
                point.hit_ratio * 100.0,
                run.coalescing,
                point.coalescing
            );
        }
        println!("  mean error {error:.1} points");
    }
}
