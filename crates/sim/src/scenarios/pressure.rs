//! Random overwrites of a file over a slow array. The file is larger than the log's share of dirty blocks, or nearly as
//! large. Time is virtual, so rates and latencies are exact and equal in every run.

use std::sync::Arc;
use std::time::Duration;

use forebay_common::lock::Mutex;
use forebay_engine::Engine;
use forebay_engine::io::{Clock as _, Key, Time};

use super::{LIMIT, world_with};
use crate::content::Content;
use crate::disk;
use crate::executor::Executor;
use crate::rng::Rng;

/// The number of writers, each with one write in flight.
const WRITERS: usize = 64;
/// The number of blocks that two devices of 64 MiB hold, each twice.
const POOL: u64 = 62 * 256;
/// The number of runs of blocks that the array writes per second.
const ARRAY: u32 = 250;
/// Virtual seconds before the measurement, and then of the measurement.
const SECONDS: (u64, u64) = (6, 4);

/// The writes during the measurement.
#[derive(Debug, Default)]
struct Outcome {
    /// Writes in each tenth of a second.
    tenths: Vec<u64>,
    latencies: Vec<Duration>,
}

impl Outcome {
    /// Returns the number of writes per second.
    fn rate(&self) -> u64 {
        self.tenths.iter().sum::<u64>() / SECONDS.1
    }

    /// Returns the latency that one write in a thousand exceeds.
    fn p999(&mut self) -> Duration {
        self.latencies.sort_unstable();
        self.latencies[self.latencies.len() * 999 / 1000]
    }

    /// Returns the longest time without any write, in tenths of a second.
    fn longest_stop(&self) -> usize {
        self.tenths.split(|writes| *writes > 0).map(<[u64]>::len).max().unwrap_or(0)
    }
}

/// Overwrites random blocks of the file one after another, each stable, and records the latencies. The first seconds
/// are not recorded.
async fn writer(
    engine: Arc<Engine>,
    executor: Executor,
    key: Key,
    blocks: u64,
    mut rng: Rng,
    outcome: Arc<Mutex<Outcome>>,
) {
    let object = engine.object(&key, blocks * 4096);
    let mut page = vec![0; 4096];
    let (begin, end) = (Duration::from_secs(SECONDS.0), Duration::from_secs(SECONDS.0 + SECONDS.1));
    let start = executor.time();
    loop {
        let begun = executor.time() - start;
        if begun >= end {
            return;
        }
        page[..8].copy_from_slice(&rng.below(u64::MAX).to_le_bytes());
        let now = Time { sec: 1_000_000_000 + begun.as_secs() as i64, nsec: begun.subsec_nanos() };
        let seq = engine.write(&object, rng.below(blocks) * 4096, &page, now).await.unwrap();
        engine.commit(seq).await.unwrap();
        let done = executor.time() - start;
        if (begin..end).contains(&done) {
            let mut outcome = outcome.lock();
            outcome.tenths[((done - begin).as_millis() / 100) as usize] += 1;
            outcome.latencies.push(done - begun);
        }
    }
}

/// Overwrites a file at random. The file takes `percent` of the data that the pool holds twice.
fn overwrite(percent: u64) -> Outcome {
    let mut world = world_with(3, 2, |plan| {
        plan.ram = 4 << 20;
        plan.destage_after = Duration::from_secs(5);
    });
    world.disks.iter().for_each(|disk| disk.set_rates(disk::Rates { slow: 20, ..Default::default() }));
    let (key, blocks) = (Key::new(&[9; 8]).unwrap(), POOL * percent / 100);
    let mut content = Content::default();
    content.resize(blocks * 4096);
    world.shared.store.create(&key, content);
    world.shared.store.set_array(Some(Duration::from_secs(1) / ARRAY));
    let engine = world.start_through(Vec::new()).unwrap();
    let outcome = Outcome { tenths: vec![0; SECONDS.1 as usize * 10], ..Outcome::default() };
    let outcome = Arc::new(Mutex::new(outcome));
    let executor = &world.shared.executor;
    for _ in 0..WRITERS {
        let (engine, rng) = (engine.clone(), world.rng.fork());
        let task = writer(engine, executor.clone(), key.clone(), blocks, rng, outcome.clone());
        executor.start("writer", Box::pin(task));
    }
    for _ in 0..SECONDS.0 + SECONDS.1 + 1 {
        let clock = executor.clone();
        let a_second = async move { clock.sleep(Duration::from_secs(1)).await };
        assert_eq!(executor.block_on(LIMIT, a_second), Ok(()));
    }
    std::mem::take(&mut *outcome.lock())
}

#[test]
fn random_overwrites_slow_down_without_a_stop() {
    let mut spacious = overwrite(5);
    let mut half = overwrite(50);
    assert!(half.rate() * 2 > spacious.rate(), "{} and {} writes a second", half.rate(), spacious.rate());
    assert!(half.p999() < spacious.p999() * 2, "{:?} and {:?}", half.p999(), spacious.p999());
    for (percent, outcome) in [(50, half), (120, overwrite(120)), (200, overwrite(200))] {
        assert!(outcome.longest_stop() <= 2, "{percent} %: {:?}", outcome.tenths);
        // A write to a block that is already dirty costs the array nothing.
        assert!(outcome.rate() > u64::from(ARRAY), "{percent} %: {} writes a second", outcome.rate());
    }
}
