//! Counts of simulated requests that fade with time, so that the curve follows the load.

use std::collections::BTreeMap;

use crate::geometry::{MEMORIES, SIZES};

/// The highest number of groups with counts of their own. All other groups share one count.
const MOST_GROUPS: usize = 16;
/// The group of all groups without counts of their own.
pub(crate) const OTHERS: u32 = u32::MAX;

/// Weighted counts of block reads and block writes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) reads: f64,
    /// Reads of blocks in memory, by the size of memory.
    pub(crate) memory: [f64; MEMORIES],
    /// Reads of blocks in memory or on the cache devices, by the size of the devices.
    pub(crate) cached: [f64; SIZES],
    pub(crate) writes: f64,
    /// Writes of blocks that were dirty already, by the size of the devices.
    pub(crate) coalesced: [f64; SIZES],
}

impl Counts {
    /// Multiplies all counts with a factor.
    fn fade(&mut self, factor: f64) {
        let Counts { reads, memory, cached, writes, coalesced } = self;
        let all = [reads, writes].into_iter().chain(memory).chain(cached).chain(coalesced);
        all.for_each(|count| *count *= factor);
    }

    /// Adds the counts of another sample.
    pub(crate) fn add(&mut self, other: &Counts) {
        self.reads += other.reads;
        self.writes += other.writes;
        let pairs = |own: &mut [f64], others: &[f64]| {
            own.iter_mut().zip(others).for_each(|(own, other)| *own += other);
        };
        pairs(&mut self.memory, &other.memory);
        pairs(&mut self.cached, &other.cached);
        pairs(&mut self.coalesced, &other.coalesced);
    }

    /// Returns the ratio of reads from the cache, for each size of the devices.
    pub(crate) fn hit_ratios(&self) -> [f64; SIZES] {
        self.cached.map(|hits| part(hits, self.reads))
    }

    /// Returns the writes for each destaged block, for each size of the devices.
    pub(crate) fn coalescing(&self) -> [f64; SIZES] {
        self.coalesced.map(|coalesced| match self.writes - coalesced {
            destaged if destaged > 0.0 => self.writes / destaged,
            _ => 1.0,
        })
    }

    /// Returns the counts corrected for `reads` and `writes`, which were counted without sampling (SHARDS-adj, FAST'15
    /// section 3.2). A sample lacks or has too many references because a few blocks are used very often, and those hit
    /// at any size.
    pub(crate) fn adjusted(&self, reads: f64, writes: f64) -> Counts {
        let (read, written) = (reads - self.reads, writes - self.writes);
        let mut adjusted = Counts { reads, writes, ..*self };
        let corrected = adjusted.memory.iter_mut().chain(&mut adjusted.cached);
        corrected.for_each(|hits| *hits = (*hits + read).clamp(0.0, reads));
        adjusted.coalesced.iter_mut().for_each(|hits| *hits = (*hits + written).clamp(0.0, writes));
        adjusted
    }
}

/// Returns a part of a whole, which may be 0.
pub(crate) fn part(some: f64, all: f64) -> f64 {
    if all > 0.0 { some / all } else { 0.0 }
}

/// Counts by group, and in total.
#[derive(Debug, Default)]
pub(crate) struct Groups {
    pub(crate) all: Counts,
    groups: BTreeMap<u32, Counts>,
}

impl Groups {
    /// Adds the counts of a request to its group. Groups beyond the bound are counted together.
    pub(crate) fn add(&mut self, group: u32, counts: &Counts) {
        self.all.add(counts);
        let known = self.groups.contains_key(&group);
        let group = if known || self.groups.len() < MOST_GROUPS { group } else { OTHERS };
        self.groups.entry(group).or_default().add(counts);
    }

    /// Multiplies all counts with a factor, so that old requests count less.
    pub(crate) fn fade(&mut self, factor: f64) {
        self.all.fade(factor);
        self.groups.values_mut().for_each(|counts| counts.fade(factor));
        // A group without requests for some hours gives its place to another one.
        self.groups.retain(|_, counts| counts.reads + counts.writes > 0.5);
    }

    pub(crate) fn each(&self) -> impl Iterator<Item = (u32, &Counts)> {
        self.groups.iter().map(|(group, counts)| (*group, counts))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_bounded_and_the_rest_is_summed() {
        let mut groups = Groups::default();
        for group in 0..40 {
            groups.add(group, &Counts { reads: 2.0, ..Counts::default() });
        }
        assert_eq!(groups.all.reads, 80.0);
        assert_eq!(groups.each().count(), MOST_GROUPS + 1);
        assert_eq!(groups.each().find(|(group, _)| *group == OTHERS).unwrap().1.reads, 48.0);
        groups.fade(0.01);
        assert_eq!(groups.each().count(), 0);
        assert!((groups.all.reads - 0.8).abs() < 1e-9);
    }

    #[test]
    fn a_sample_without_a_hot_block_is_corrected() {
        // 1,000 reads; the sample stands for 800 of them, since a block with 200 reads is not in it.
        let mut counts = Counts { reads: 800.0, ..Counts::default() };
        (counts.memory, counts.cached) = ([100.0; MEMORIES], [400.0; SIZES]);
        let adjusted = counts.adjusted(1000.0, 0.0);
        assert_eq!((adjusted.reads, adjusted.memory[0], adjusted.cached[0]), (1000.0, 300.0, 600.0));
        assert_eq!(counts.adjusted(300.0, 0.0).memory[0], 0.0, "no count is negative");
    }
}
