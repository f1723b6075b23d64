//! The cost of the engine itself. Devices and backing store are in memory, so nothing waits for I/O.

#![allow(clippy::unwrap_used, reason = "a benchmark that cannot go on stops")]

mod zeros;

use std::future::ready;
use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use criterion::{BatchSize, Criterion, Throughput, criterion_main};
use forebay_common::lock::Mutex;
use forebay_engine::buffer::{BLOCK, Buffer, Slice};
use forebay_engine::format::{bind, content_hash};
use forebay_engine::io::{Device, DeviceError, Durability, Io, Key, Time};
use forebay_engine::pool::Pool;
use forebay_engine::{CachedObject, Engine, Env, Outcome, Settings};
use forebay_runtime::{SystemClock, Threads, block_on};
use zeros::Zeros;

const OBJECT: u64 = 256 << 20;
/// Bytes of each end of the device that are kept.
const END: u64 = 1 << 20;

/// A device that drops data written beyond its first and last MiB: only superblocks are ever read back.
struct Nowhere {
    name: String,
    ends: Mutex<Vec<u8>>,
}

impl Nowhere {
    const SIZE: u64 = 4 << 30;

    /// Returns the place of an offset in `ends`.
    fn end(offset: u64) -> Option<usize> {
        let last = Self::SIZE - END;
        let at = if offset < END { Some(offset) } else { offset.checked_sub(last).map(|n| END + n) };
        at.map(|at| at as usize)
    }
}

impl Device for Nowhere {
    fn name(&self) -> &str {
        &self.name
    }

    fn size(&self) -> u64 {
        Self::SIZE
    }

    fn read(&self, offset: u64, mut buffer: Buffer) -> Io<(Buffer, Result<(), DeviceError>)> {
        if let Some(at) = Self::end(offset) {
            let len = buffer.len();
            buffer.copy_from_slice(&self.ends.lock()[at..at + len]);
        }
        Box::pin(ready((buffer, Ok(()))))
    }

    fn write(&self, offset: u64, data: Slice, _: Durability) -> Io<Result<(), DeviceError>> {
        if let Some(at) = Self::end(offset) {
            self.ends.lock()[at..at + data.len()].copy_from_slice(&data);
        }
        Box::pin(ready(Ok(())))
    }

    fn flush(&self) -> Io<Result<(), DeviceError>> {
        Box::pin(ready(Ok(())))
    }

    fn discard(&self, _: u64, _: u64) -> Io<Result<(), DeviceError>> {
        Box::pin(ready(Ok(())))
    }
}

fn engine() -> (Arc<Engine>, Arc<CachedObject>) {
    let device = |name: &str| -> Arc<dyn Device> {
        Arc::new(Nowhere { name: name.to_owned(), ends: Mutex::new(vec![0; 2 * END as usize]) })
    };
    let mut last = 0;
    let mut random = || {
        last += 1;
        last
    };
    let pool = block_on(Pool::format(vec![device("a"), device("b")], &mut random, false)).unwrap();
    let env = Env {
        clock: Arc::new(SystemClock::default()),
        spawn: Arc::new(Threads::default()),
        backing: Arc::new(Zeros(OBJECT)),
        witness: None,
        deliver: Arc::new(|batch| batch()),
        events: Arc::new(|_| {}),
    };
    let settings = Settings { ram: 2 * OBJECT, destage_after: Duration::ZERO, ..Settings::default() };
    let (engine, _) = block_on(Engine::open(pool, env, settings)).unwrap();
    let object = engine.object(&Key::new(b"object").unwrap(), OBJECT);
    (engine, object)
}

fn checksums(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("checksum");
    let block = vec![7; BLOCK];
    group.throughput(Throughput::Bytes(BLOCK as u64));
    group.bench_function("content of a block", |bench| bench.iter(|| content_hash(black_box(&block))));
    group.throughput(Throughput::Elements(1));
    group.bench_function("identity of a block", |bench| bench.iter(|| bind(black_box(1), 2, 3, 4, 5, 6)));
}

/// Returns a function that returns pseudo-random block offsets in the object.
fn places() -> impl Fn() -> u64 {
    let next = AtomicU64::new(1);
    move || {
        let n = next.fetch_add(1, Ordering::Relaxed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (n >> 20) % (OBJECT / BLOCK as u64) * BLOCK as u64
    }
}

fn index_and_memory(criterion: &mut Criterion) {
    let (engine, object) = engine();
    let mut buffer = vec![0; BLOCK];
    for block in 0..OBJECT / BLOCK as u64 {
        block_on(engine.read(&object, block * BLOCK as u64, &mut buffer)).unwrap();
    }
    let mut group = criterion.benchmark_group("read from memory");
    let place = places();
    group.bench_function("4 KiB at random", |bench| {
        bench.iter(|| assert_eq!(engine.try_read(&object, place(), &mut buffer), Outcome::Done(BLOCK)));
    });
    let mut large = vec![0; 1 << 20];
    group.throughput(Throughput::Bytes(1 << 20));
    group.bench_function("1 MiB", |bench| {
        bench.iter(|| assert_eq!(engine.try_read(&object, 0, &mut large), Outcome::Done(1 << 20)));
    });
    block_on(engine.close()).unwrap();
}

fn log(criterion: &mut Criterion) {
    let (engine, object) = engine();
    let mut group = criterion.benchmark_group("write to the log");
    let (block, place) = (vec![9; BLOCK], places());
    for depth in [1, 128_u64] {
        group.throughput(Throughput::Elements(depth));
        group.bench_function(format!("4 KiB at random, {depth} at once, until durable"), |bench| {
            bench.iter_batched(
                mpsc::channel,
                |(sender, receiver)| {
                    for _ in 0..depth {
                        let offset = place();
                        let seq = match engine.try_write(&object, offset, &block, Time::default()).unwrap() {
                            Outcome::Done(seq) => seq,
                            _ => block_on(engine.write(&object, offset, &block, Time::default())).unwrap(),
                        };
                        let sender = sender.clone();
                        engine.when_durable(seq, Box::new(move |result| sender.send(result).unwrap()));
                    }
                    (0..depth).for_each(|_| receiver.recv().unwrap().unwrap());
                },
                BatchSize::SmallInput,
            );
        });
    }
    block_on(engine.close()).unwrap();
}

mod group {
    use super::{checksums, index_and_memory, log};
    criterion::criterion_group!(benches, checksums, index_and_memory, log);
}
criterion_main!(group::benches);
