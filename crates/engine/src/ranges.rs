//! Sets of blocks, as ranges.

use std::collections::BTreeMap;
use std::ops::Range;

/// Ranges that neither overlap nor touch, by their starts.
#[derive(Debug, Default)]
pub(crate) struct Ranges(BTreeMap<u64, u64>);

impl Ranges {
    pub(crate) fn add(&mut self, range: Range<u64>) {
        let Range { mut start, mut end } = range;
        if start >= end {
            return;
        }
        // The last one that begins within or before is looked at first; what it swallows goes.
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

    /// Whether all of `range` is in it.
    pub(crate) fn covers(&self, range: &Range<u64>) -> bool {
        let around = self.0.range(..=range.start).next_back();
        range.is_empty() || around.is_some_and(|(_, end)| range.end <= *end)
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
                let ends: Vec<_> = ranges.0.iter().collect();
                prop_assert!(ends.windows(2).all(|pair| pair[0].1 < pair[1].0));
            }
        }
    }
}
