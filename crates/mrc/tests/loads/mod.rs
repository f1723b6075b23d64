//! Loads for the tests: sequences of requests that are equal in every run.

// Each test uses only some of the loads.
#![allow(dead_code, unreachable_pub, missing_docs)]

use forebay_mrc::Kind;

/// A pseudo-random sequence (SplitMix64).
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Random(seed)
    }

    /// Returns a number in `0..below`.
    pub fn below(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ mixed >> 31) % below
    }
}

/// Block numbers with Zipf's distribution: the n-th block is used in proportion to n to the power of -s.
pub struct Zipf(Vec<f64>);

impl Zipf {
    pub fn new(blocks: u64, s: f64) -> Self {
        let mut sum = 0.0;
        let weight = |rank: u64| {
            sum += (rank as f64).powf(-s);
            sum
        };
        Zipf((1..=blocks).map(weight).collect())
    }

    pub fn next(&self, random: &mut Random) -> u64 {
        let all = self.0.last().copied().unwrap_or(1.0);
        let point = random.below(1 << 53) as f64 / (1_u64 << 53) as f64 * all;
        self.0.partition_point(|sum| *sum < point) as u64
    }
}

/// A request for one block of an object.
pub type Request = (u64, u64, Kind);

/// Reads a Zipf-distributed set of blocks that no simulated cache holds.
pub fn zipf(count: u64) -> impl Iterator<Item = Request> {
    let (mut random, zipf) = (Random::new(1), Zipf::new(400_000, 0.9));
    (0..count).map(move |_| (1, zipf.next(&mut random), Kind::Read))
}

/// Reads a hot set at random, beside a scan that returns to its start after more blocks than any cache holds.
pub fn scan_and_hot_set(count: u64) -> impl Iterator<Item = Request> {
    let mut random = Random::new(2);
    (0..count).map(move |number| match number % 2 {
        0 => (2, number / 2 % 1_000_000, Kind::Read),
        _ => (3, random.below(30_000), Kind::Read),
    })
}

/// Reads and writes in three phases, each with a hot set of its own.
pub fn phases(count: u64) -> impl Iterator<Item = Request> {
    let (mut random, zipf) = (Random::new(3), Zipf::new(150_000, 0.8));
    (0..count).map(move |number| {
        let phase = number * 3 / count;
        let kind = if random.below(10) < 3 { Kind::Write } else { Kind::Read };
        let object = if random.below(10) < 3 { 9 } else { 10 + phase };
        (object, zipf.next(&mut random), kind)
    })
}
