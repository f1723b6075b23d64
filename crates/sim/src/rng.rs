//! The only source of chance. It is written here and not taken from a crate: a failing seed must give the same world
//! after any upgrade.

use std::time::Duration;

/// SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014).
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// Returns the stream of numbers of `seed`.
    pub fn new(seed: u64) -> Self {
        let mut rng = Rng(seed ^ 0x6f72_6562_6179_0001);
        rng.draw();
        rng
    }

    /// Returns any 64 bits.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// Returns a separate stream, so that more draws from it change nothing in this one.
    pub fn fork(&mut self) -> Self {
        Rng::new(self.draw())
    }

    /// Returns a number below `bound`; 0 for a bound of 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.draw()) * u128::from(bound)) >> 64) as u64
    }

    /// Returns an index below `len`.
    pub fn index(&mut self, len: usize) -> usize {
        self.below(len as u64) as usize
    }

    /// Returns a number from `low` to `high`, both included.
    pub fn within(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// Returns true `chances` times in 10,000.
    pub fn chance(&mut self, chances: u32) -> bool {
        self.below(10_000) < u64::from(chances)
    }

    /// Returns one of `choices`, which must not be empty.
    pub fn pick<T: Clone>(&mut self, choices: &[T]) -> T {
        choices[self.index(choices.len())].clone()
    }

    /// Returns a time from `low` to `high`.
    pub fn time(&mut self, low: Duration, high: Duration) -> Duration {
        low + Duration::from_nanos(self.below((high - low).as_nanos() as u64 + 1))
    }
}

/// Returns the finalizer of SplitMix64: each bit of the input flips about half of the bits of the output.
pub fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}
