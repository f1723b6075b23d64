//! The properties of a volume's ranges: holes, cached and dirty blocks.

use std::ops::Range;

use forebay_engine::Error;

use crate::disk::Extent;
use crate::planted_bugs;
use crate::volume::Volume;

type Result<T> = std::result::Result<T, Error>;

impl Volume {
    /// Describes a range as at most `most` extents: holes of the backing device, and cached and dirty blocks. A dirty
    /// block is no hole.
    pub(crate) async fn extents_now(&self, offset: u64, len: u64, most: usize) -> Result<Vec<Extent>> {
        // A dirty block may be destaged meanwhile. It then counts as dirty or as allocated, and never as a hole,
        // because the dirty blocks are found first.
        let most = most.max(1);
        let (mut dirty, end) = self.dirty_runs(offset..offset + len, most);
        let allocated = self.device()?.allocated(offset, end - offset, most).await?;
        // The device does not look for parts that no extent would show.
        let end = allocated.get(most - 1).map_or(end, |last| last.end);
        if planted_bugs::active("a map finds the dirty blocks after the holes") {
            dirty = self.dirty_runs(offset..end, most).0;
        }
        let (mut at, mut dirty, mut found) = (offset, dirty.into_iter().peekable(), Vec::<Extent>::new());
        while at < end {
            let (hole, to) = part_of(&allocated, at, end);
            while dirty.next_if(|run| run.end <= at).is_some() {}
            let (dirty, to) = split(dirty.peek().cloned(), at, to);
            let (cached, to) = split(self.object.cached_run(at..to), at, to);
            let hole = hole && !dirty;
            let next = Extent { len: to - at, hole, zero: hole, cached, dirty };
            let goes_on = found.last().is_some_and(|last| Extent { len: next.len, ..*last } == next);
            if goes_on {
                found.last_mut().into_iter().for_each(|last| last.len += next.len);
            } else if found.len() < most {
                found.push(next);
            } else {
                break;
            }
            at = to;
        }
        Ok(found)
    }

    /// Returns true if the range is not empty, and all of it is a hole of the device without dirty blocks. A range with
    /// bytes that a failed sync may have lost counts as no hole: zeros that are written there end the loss.
    pub(crate) async fn is_hole(&self, range: &Range<u64>) -> Result<bool> {
        if range.is_empty() || self.object.has_lost(range) || !self.dirty_runs(range.clone(), 1).0.is_empty()
        {
            return Ok(false);
        }
        Ok(self.device()?.allocated(range.start, range.end - range.start, 1).await?.is_empty())
    }

    /// Returns the first `most` runs of dirty bytes that touch the range, in order. Returns also the end of the part of
    /// the range that has no further runs.
    fn dirty_runs(&self, range: Range<u64>, most: usize) -> (Vec<Range<u64>>, u64) {
        let (mut runs, mut at) = (Vec::new(), range.start);
        while at < range.end {
            match self.object.dirty_run(at) {
                Some(run) if run.start < range.end && runs.len() == most => return (runs, run.start),
                Some(run) if run.start < range.end => {
                    at = run.end;
                    runs.push(run);
                }
                _ => break,
            }
        }
        (runs, range.end)
    }
}

/// Returns true if `at` is in a hole of the device, and the end of that hole or of the allocated part, at most `end`.
fn part_of(allocated: &[Range<u64>], at: u64, end: u64) -> (bool, u64) {
    match allocated.get(allocated.partition_point(|part| part.end <= at)) {
        Some(part) if part.start <= at => (false, part.end.min(end)),
        Some(part) => (true, part.start.min(end)),
        None => (true, end),
    }
}

/// Returns true if `at` is in the run, and the end of the part of `at..end` that is wholly in the run or wholly
/// outside of it.
fn split(run: Option<Range<u64>>, at: u64, end: u64) -> (bool, u64) {
    match run {
        Some(run) if run.start <= at && at < run.end => (true, run.end.min(end)),
        Some(run) if run.start > at => (false, run.start.min(end)),
        _ => (false, end),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_split_where_a_property_changes() {
        let allocated = [0..4, 8..12];
        assert_eq!(part_of(&allocated, 0, 20), (false, 4));
        assert_eq!(part_of(&allocated, 4, 20), (true, 8));
        assert_eq!(part_of(&allocated, 9, 10), (false, 10));
        assert_eq!(part_of(&allocated, 12, 20), (true, 20));
        assert_eq!(split(Some(4..8), 0, 20), (false, 4));
        assert_eq!(split(Some(4..8), 4, 20), (true, 8));
        assert_eq!(split(Some(4..8), 5, 6), (true, 6));
        assert_eq!(split(None, 5, 6), (false, 6));
    }
}
