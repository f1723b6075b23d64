//! Closed-loop loads on an array in virtual time. They give the model's predictions quickly and without a device.

use crate::model::{BLOCK, Model};
use crate::sim::{Array, Nanos, Op, Output};
use std::collections::HashMap;

/// Virtual nanoseconds between a completion and the next request: the host's own work.
const HOST: Nanos = 20_000;

/// The order of a load's offsets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// Uniformly random over the array, from a fixed seed.
    Random,
    /// Ascending from 0 and again from the start at the end. Each of this many streams has its own part of the array.
    Sequential(u64),
}

/// A load: requests of one length, with `depth` of them in flight at all times.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Load {
    /// True for writes, false for reads.
    pub write: bool,
    /// Order of the offsets.
    pub order: Order,
    /// Bytes of each request, a multiple of 4096.
    pub length: u64,
    /// Requests in flight, at least 1.
    pub depth: u64,
    /// Virtual seconds before measuring starts, so that a write cache fills.
    pub warm_up: f64,
    /// Virtual seconds of measuring.
    pub seconds: f64,
}

/// The measured result of a load.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct Rate {
    /// Requests per second.
    pub iops: f64,
    /// MiB per second.
    pub mib_s: f64,
    /// Mean latency of a request in milliseconds.
    pub mean_ms: f64,
    /// 99th percentile of the latency, in milliseconds.
    pub p99_ms: f64,
}

/// Runs `load` on a new array of `model` with `size` bytes.
pub fn run(model: &Model, size: u64, load: &Load) -> Rate {
    let mut array = Array::new(model, size);
    let mut offsets = Offsets::new(array.size(), load);
    let mut started: HashMap<u64, Nanos> = HashMap::new();
    let (begin, end) = (nanos(load.warm_up), nanos(load.warm_up + load.seconds));
    let mut latencies = Vec::new();
    let mut tag = 0;
    let mut submit = |array: &mut Array, started: &mut HashMap<u64, Nanos>, now: Nanos, stream: u64| {
        // The tag contains the stream's number, so that a completion is followed by the next request of that stream.
        tag += 1;
        let id = tag * 1024 + stream;
        started.insert(id, now);
        let (offset, length) = (offsets.next(stream), load.length);
        array.submit(
            now,
            id,
            if load.write { Op::Write { offset, length } } else { Op::Read { offset, length } },
        );
    };
    let streams = if let Order::Sequential(n) = load.order { n } else { 1 };
    for i in 0..load.depth {
        submit(&mut array, &mut started, i * 1_000, i % streams);
    }
    while let Some(now) = array.next_event().filter(|t| *t < end) {
        array.advance(now);
        while let Some(output) = array.output() {
            let Output::Done { tag, at } = output else { continue };
            let arrived = started.remove(&tag).unwrap_or(at);
            if at >= begin {
                latencies.push(at - arrived);
            }
            submit(&mut array, &mut started, at + HOST, tag % 1024);
        }
    }
    rate(latencies, load)
}

/// Returns rates and latencies of a load that ran for `load.seconds` of virtual time, from the latencies in
/// nanoseconds.
fn rate(mut latencies: Vec<Nanos>, load: &Load) -> Rate {
    latencies.sort_unstable();
    let iops = latencies.len() as f64 / load.seconds;
    let mean = latencies.iter().sum::<Nanos>() as f64 / latencies.len().max(1) as f64;
    let p99 = latencies.get(latencies.len() * 99 / 100).copied().unwrap_or(0);
    Rate {
        iops,
        mib_s: iops * load.length as f64 / (1 << 20) as f64,
        mean_ms: mean / 1e6,
        p99_ms: p99 as f64 / 1e6,
    }
}

fn nanos(seconds: f64) -> Nanos {
    (seconds * 1e9) as Nanos
}

/// The generator of a load's offsets.
struct Offsets {
    slots: u64,
    length: u64,
    order: Order,
    state: u64,
    next: Vec<u64>,
}

impl Offsets {
    /// Makes the source of offsets of a load on an array of `size` bytes. Its random offsets are equal in every run.
    fn new(size: u64, load: &Load) -> Self {
        let streams = if let Order::Sequential(n) = load.order { n as usize } else { 0 };
        Self {
            slots: size / load.length,
            length: load.length,
            order: load.order,
            state: 0x9e37_79b9,
            next: vec![0; streams],
        }
    }

    /// Returns the next offset in bytes: random, or the next one in this stream's share of the array.
    fn next(&mut self, stream: u64) -> u64 {
        let Order::Sequential(streams) = self.order else {
            self.state = self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(BLOCK + 1);
            return (self.state >> 24) % self.slots * self.length;
        };
        let share = self.slots / streams;
        let at = &mut self.next[stream as usize];
        *at += 1;
        (stream * share + (*at - 1) % share) * self.length
    }
}
