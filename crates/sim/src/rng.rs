//! The one source of chance. Written out here, not taken from a crate, because a failing seed must give the same world
//! whatever else is upgraded.

use std::time::Duration;

/// SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014).
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// The stream of numbers that belongs to `seed`.
    pub fn new(seed: u64) -> Self {
        let mut rng = Rng(seed ^ 0x6f72_6562_6179_0001);
        rng.draw();
        rng
    }

    /// Any 64 bits.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// A stream of its own, so that more draws there change nothing here.
    pub fn fork(&mut self) -> Self {
        Rng::new(self.draw())
    }

    /// A number below `bound`; 0 for a bound of 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.draw()) * u128::from(bound)) >> 64) as u64
    }

    /// An index below `len`.
    pub fn index(&mut self, len: usize) -> usize {
        self.below(len as u64) as usize
    }

    /// A number from `low` to `high`, both included.
    pub fn within(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// True `chances` times in 10,000.
    pub fn chance(&mut self, chances: u32) -> bool {
        self.below(10_000) < u64::from(chances)
    }

    /// One of `choices`, which are not none.
    pub fn pick<T: Clone>(&mut self, choices: &[T]) -> T {
        choices[self.index(choices.len())].clone()
    }

    /// A time from `low` to `high`.
    pub fn time(&mut self, low: Duration, high: Duration) -> Duration {
        low + Duration::from_nanos(self.below((high - low).as_nanos() as u64 + 1))
    }
}

/// The finalizer of SplitMix64: every bit of the input moves about half of the output's.
pub fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}
