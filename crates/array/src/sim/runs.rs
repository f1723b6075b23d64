//! Sets of blocks as sorted runs. The dirty blocks of a stripe are few runs, often one.

/// A set of blocks: half-open runs `(start, end)`, sorted, disjoint, not touching.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Runs(Vec<(u32, u32)>);

impl Runs {
    /// Adds `start..end` and joins runs that touch.
    pub(crate) fn insert(&mut self, start: u32, end: u32) {
        let first = self.0.partition_point(|r| r.1 < start);
        let last = self.0.partition_point(|r| r.0 <= end);
        let joined = match self.0.get(first..last) {
            Some([lowest, ..]) => (lowest.0.min(start), self.0[last - 1].1.max(end)),
            _ => (start, end),
        };
        self.0.splice(first..last, [joined]);
    }

    /// Returns the runs in ascending order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        self.0.iter().copied()
    }

    /// Returns true if the set is empty.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns true if all of `start..end` is in the set.
    pub(crate) fn covers(&self, start: u32, end: u32) -> bool {
        let after = self.0.partition_point(|r| r.0 <= start);
        after > 0 && self.0[after - 1].1 >= end
    }

    /// Removes and returns the blocks that are written together when a stripe is incomplete. These are the blocks of
    /// the first run, with its place in the chunk widened to whole lines, and the blocks at that place in other
    /// chunks.
    pub(crate) fn take_rows(&mut self, chunk: u32, line: u32) -> Self {
        let Some((start, end)) = self.0.first().copied() else { return Self::default() };
        let within = start % chunk;
        let (low, high) = if within + end - start > chunk {
            (0, chunk)
        } else {
            (within / line * line, (within + end - start).next_multiple_of(line))
        };
        let (mut taken, mut rest) = (Self::default(), Self::default());
        for (mut at, end) in std::mem::take(&mut self.0) {
            while at < end {
                let base = at / chunk * chunk;
                let (inside, border) = match at - base {
                    w if w < low => (false, low),
                    w if w < high => (true, high),
                    _ => (false, chunk),
                };
                let until = end.min(base + border);
                if inside { &mut taken } else { &mut rest }.insert(at, until);
                at = until;
            }
        }
        *self = rest;
        taken
    }

    /// Returns the number of aligned groups of `size` blocks that the set touches.
    pub(crate) fn groups(&self, size: u32) -> u32 {
        let (mut count, mut next) = (0, 0);
        for &(start, end) in &self.0 {
            let (low, high) = ((start / size).max(next), end.div_ceil(size));
            count += high.saturating_sub(low);
            next = next.max(high);
        }
        count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_agree_with_a_plain_set() {
        let mut seed = 1u32;
        for _ in 0..300 {
            let (mut runs, mut plain) = (Runs::default(), vec![false; 64]);
            for _ in 0..10 {
                seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let start = (seed >> 8) % 60;
                let end = (start + 1 + (seed >> 20) % 12).min(64);
                runs.insert(start, end);
                plain[start as usize..end as usize].fill(true);
                let listed: Vec<u32> = runs.iter().flat_map(|(s, e)| s..e).collect();
                let expected: Vec<u32> = (0..64).filter(|i| plain[*i as usize]).collect();
                assert_eq!(listed, expected);
                assert!(runs.iter().zip(runs.iter().skip(1)).all(|(a, b)| a.1 < b.0));
                assert_eq!(
                    runs.groups(8),
                    (0..8).filter(|g| plain[g * 8..g * 8 + 8].contains(&true)).count() as u32
                );
                assert_eq!(runs.covers(5, 20), plain[5..20].iter().all(|b| *b));
            }
        }
    }

    #[test]
    fn a_small_write_is_taken_with_its_row_and_a_long_one_whole() {
        let (chunk, line) = (128, 16);
        let mut runs = Runs::default();
        for start in [20, 128 + 17, 128 + 60, 256 + 31] {
            runs.insert(start, start + 1);
        }
        let taken: Vec<_> = runs.take_rows(chunk, line).iter().collect();
        assert_eq!(taken, [(20, 21), (145, 146), (287, 288)]);
        assert_eq!(runs.iter().collect::<Vec<_>>(), [(188, 189)]);

        let mut long = Runs::default();
        long.insert(100, 600);
        long.insert(1000, 1001);
        assert_eq!(long.take_rows(chunk, line).iter().collect::<Vec<_>>(), [(100, 600), (1000, 1001)]);
        assert!(long.is_empty());
    }
}
