//! An estimate of the number of distinct blocks: HyperLogLog with registers that any thread may raise.
//!
//! The estimator is that of Ertl, "New cardinality estimation algorithms for HyperLogLog sketches" (2017), algorithm 6.
//! It needs no tables of bias. With 8192 registers the standard error is 1.1 %.

use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

/// Bits of a hash that choose the register.
const CHOICE: u32 = 13;
const REGISTERS: usize = 1 << CHOICE;
/// The largest value of a register.
const MOST: usize = 64 - CHOICE as usize + 1;

/// A set of hashes of which only the approximate size is known.
pub(crate) struct Distinct(Box<[AtomicU8]>);

/// The registers of one or more sets.
#[derive(Clone)]
pub(crate) struct Registers(Vec<u8>);

impl Distinct {
    pub(crate) fn new() -> Self {
        Distinct((0..REGISTERS).map(|_| AtomicU8::new(0)).collect())
    }

    /// Adds a hash, all of whose bits are random.
    pub(crate) fn add(&self, hash: u64) {
        let register = &self.0[(hash >> (64 - CHOICE)) as usize];
        let rank = ((hash << CHOICE).leading_zeros().min(64 - CHOICE) + 1) as u8;
        // Most hashes raise nothing, so that the threads share the registers' cache lines.
        if register.load(Relaxed) < rank {
            register.fetch_max(rank, Relaxed);
        }
    }

    pub(crate) fn registers(&self) -> Registers {
        Registers(self.0.iter().map(|register| register.load(Relaxed)).collect())
    }

    pub(crate) fn clear(&self) {
        self.0.iter().for_each(|register| register.store(0, Relaxed));
    }
}

impl Registers {
    /// Makes these the registers of the union of two sets.
    pub(crate) fn join(&mut self, other: &Registers) {
        self.0.iter_mut().zip(&other.0).for_each(|(own, other)| *own = (*own).max(*other));
    }

    /// Returns the estimated number of distinct hashes.
    pub(crate) fn estimate(&self) -> u64 {
        let mut counts = [0.0_f64; MOST + 1];
        self.0.iter().for_each(|register| counts[usize::from(*register).min(MOST)] += 1.0);
        let all = REGISTERS as f64;
        let mut sum = all * tau(1.0 - counts[MOST] / all);
        for count in counts[1..MOST].iter().rev() {
            sum = 0.5 * (sum + count);
        }
        sum += all * sigma(counts[0] / all);
        (all * all / (2.0 * std::f64::consts::LN_2 * sum)).round() as u64
    }
}

/// Returns the correction for registers that no hash has raised.
fn sigma(part: f64) -> f64 {
    if part >= 1.0 {
        return f64::INFINITY;
    }
    let (mut power, mut weight, mut sum) = (part, 1.0, part);
    loop {
        power *= power;
        let before = sum;
        sum += power * weight;
        weight += weight;
        if sum <= before {
            return sum;
        }
    }
}

/// Returns the correction for registers that are at their largest value.
fn tau(part: f64) -> f64 {
    if part <= 0.0 || part >= 1.0 {
        return 0.0;
    }
    let (mut root, mut weight, mut sum) = (part, 1.0, 1.0 - part);
    loop {
        root = root.sqrt();
        let before = sum;
        weight *= 0.5;
        sum -= (1.0 - root).powi(2) * weight;
        if sum >= before {
            return sum / 3.0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operation::mixed;

    #[test]
    fn estimates_are_within_a_few_per_cent_at_every_size() {
        let set = Distinct::new();
        assert_eq!(set.registers().estimate(), 0);
        let mut next = 0;
        for size in [1_u64, 10, 100, 1000, 4096, 10_000, 20_000, 100_000, 1_000_000] {
            while next < size {
                set.add(mixed(next));
                // A second time changes nothing.
                set.add(mixed(next / 2));
                next += 1;
            }
            let estimate = set.registers().estimate() as f64;
            assert!((estimate / size as f64 - 1.0).abs() < 0.05, "{estimate} for {size}");
        }
        set.clear();
        assert_eq!(set.registers().estimate(), 0);
    }

    #[test]
    fn a_union_counts_common_hashes_once() {
        let [one, other] = [Distinct::new(), Distinct::new()];
        (0..60_000).for_each(|hash| one.add(mixed(hash)));
        (30_000..90_000).for_each(|hash| other.add(mixed(hash)));
        let mut union = one.registers();
        union.join(&other.registers());
        assert!((union.estimate() as f64 / 90_000.0 - 1.0).abs() < 0.05, "{}", union.estimate());
    }
}
