//! Sets of numbers, as ranges.

use std::collections::BTreeMap;
use std::ops::Range;

/// Ranges that neither overlap nor touch, by their starts.
#[derive(Debug, Default)]
pub(crate) struct Ranges(BTreeMap<u64, u64>);

impl Ranges {
    /// Adds a range, and merges the ranges that it overlaps or touches.
    pub(crate) fn add(&mut self, range: Range<u64>) {
        let Range { mut start, mut end } = range;
        if start >= end {
            return;
        }
        // Goes backwards from the last range that begins at or before `end`. Ranges that overlap or touch are merged.
        while let Some((from, to)) = self.0.range(..=end).next_back().map(|(from, to)| (*from, *to))
            && to >= start
        {
            self.0.remove(&from);
            (start, end) = (start.min(from), end.max(to));
        }
        self.0.insert(start, end);
    }

    pub(crate) fn contains(&self, block: u64) -> bool {
        self.0.range(..=block).next_back().is_some_and(|(_, end)| block < *end)
    }

    /// Returns true if the set holds all of `range`.
    pub(crate) fn covers(&self, range: &Range<u64>) -> bool {
        let around = self.0.range(..=range.start).next_back();
        range.is_empty() || around.is_some_and(|(_, end)| range.end <= *end)
    }

    /// Returns true if the set holds a part of `range`.
    pub(crate) fn overlaps(&self, range: &Range<u64>) -> bool {
        let last = self.0.range(..range.end).next_back();
        !range.is_empty() && last.is_some_and(|(_, end)| *end > range.start)
    }

    /// Removes the numbers of `range` from the set, and returns them.
    pub(crate) fn take(&mut self, range: &Range<u64>) -> Ranges {
        let mut taken = Ranges::default();
        // Goes backwards from the last range that begins before `range` ends.
        while let Some((from, to)) = self.0.range(..range.end).next_back().map(|(from, to)| (*from, *to))
            && to > range.start
            && !range.is_empty()
        {
            self.0.remove(&from);
            taken.add(from.max(range.start)..to.min(range.end));
            self.add(range.end..to);
            if from < range.start {
                self.add(from..range.start);
                break;
            }
        }
        taken
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn ranges_are_a_set(added in proptest::collection::vec((0..60_u64, 0..20_u64), 0..30)) {
            let mut ranges = Ranges::default();
            let mut set = std::collections::BTreeSet::new();
            for (start, len) in added {
                ranges.add(start..start + len);
                set.extend(start..start + len);
                prop_assert!((0..90).all(|block| ranges.contains(block) == set.contains(&block)));
                let whole = |part: &std::ops::Range<u64>| part.clone().all(|block| set.contains(&block));
                prop_assert!(
                    (0..90).all(|end| ranges.covers(&(end / 2..end)) == whole(&(end / 2..end)))
                );
                let part = |part: &std::ops::Range<u64>| part.clone().any(|block| set.contains(&block));
                prop_assert!(
                    (0..90).all(|end| ranges.overlaps(&(end / 2..end)) == part(&(end / 2..end)))
                );
                let ends: Vec<_> = ranges.0.iter().collect();
                prop_assert!(ends.windows(2).all(|pair| pair[0].1 < pair[1].0));
            }
        }

        #[test]
        fn what_is_taken_out_is_not_in_there_any_more(
            added in proptest::collection::vec((0..60_u64, 0..20_u64), 0..30),
            (start, len) in (0..70_u64, 0..40_u64),
        ) {
            let mut ranges = Ranges::default();
            added.iter().for_each(|(start, len)| ranges.add(*start..start + len));
            let before: Vec<u64> = (0..90).filter(|block| ranges.contains(*block)).collect();
            let range = start..start + len;
            let taken = ranges.take(&range);
            for block in 0..90 {
                let was = before.contains(&block);
                prop_assert_eq!(taken.contains(block), was && range.contains(&block));
                prop_assert_eq!(ranges.contains(block), was && !range.contains(&block));
            }
            prop_assert_eq!(ranges.is_empty(), !(0..90).any(|block| ranges.contains(block)));
        }
    }
}
