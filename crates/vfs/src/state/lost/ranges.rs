//! The record of the ranges that were set aside of a file. Holes do not tell them: ZFS reports holes in units of its
//! records, and some file systems report none. A restoration over a file must not write zeros between the ranges.
//!
//! The record is a text that grows. Each line has the first byte and the byte behind the last one, or "cut" and a size.
//! The line ends with a full stop, so a line that a power cut tore counts for nothing.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Write as _};
use std::ops::Range;

use rustix::fs::SeekFrom;
use rustix::io::Errno;

/// A change of the data that was set aside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// These bytes were written.
    Data(Range<u64>),
    /// The bytes behind this size do not count any more.
    Cut(u64),
}

/// Adds a change. A range that continues the last one extends it.
pub(super) fn add(changes: &mut Vec<Change>, change: Change) {
    match (changes.last_mut(), change) {
        (Some(Change::Data(last)), Change::Data(next)) if last.end == next.start => last.end = next.end,
        (_, change) => changes.push(change),
    }
}

/// Appends changes to the record, durably. The changed data is durable already.
pub(super) fn append(mut record: &File, changes: &[Change]) -> io::Result<()> {
    record.write_all(text(changes).as_bytes())?;
    record.sync_data()
}

/// Returns the lines for changes. The rest of an earlier write that failed half-way becomes a line of its own.
pub(super) fn text(changes: &[Change]) -> String {
    changes.iter().fold(String::new(), |mut text, change| {
        // Writing to a string does not fail.
        let _ = match change {
            Change::Data(range) => write!(text, "\n{} {}.", range.start, range.end),
            Change::Cut(size) => write!(text, "\ncut {size}."),
        };
        text
    })
}

/// Returns the ranges in a record, in order and apart from each other: first byte, and the byte after the last one.
pub(super) fn parse(text: &str) -> Vec<(u64, u64)> {
    let mut ranges = BTreeMap::new();
    for change in text.lines().filter_map(parse_line) {
        match change {
            Change::Data(range) => insert(&mut ranges, range),
            Change::Cut(size) => {
                ranges.split_off(&size);
                ranges.values_mut().for_each(|end| *end = size.min(*end));
            }
        }
    }
    ranges.into_iter().collect()
}

fn parse_line(line: &str) -> Option<Change> {
    let (first, second) = line.strip_suffix('.')?.split_once(' ')?;
    let second = second.parse().ok()?;
    match first {
        "cut" => Some(Change::Cut(second)),
        first => Some(Change::Data(first.parse().ok()?..second)),
    }
}

/// Adds a range to ranges, each with its end, that are apart from each other.
fn insert(ranges: &mut BTreeMap<u64, u64>, Range { mut start, mut end }: Range<u64>) {
    if start >= end {
        return;
    }
    while let Some((&other, &other_end)) = ranges.range(..=end).next_back().filter(|(_, to)| **to >= start) {
        ranges.remove(&other);
        (start, end) = (start.min(other), end.max(other_end));
    }
    ranges.insert(start, end);
}

/// Returns the ranges of a sparse file that are not holes, for data of a version without a record.
pub(super) fn of_holes(data: &File) -> io::Result<Vec<Change>> {
    let (mut ranges, mut at) = (Vec::new(), 0);
    loop {
        let from = match rustix::fs::seek(data, SeekFrom::Data(at)) {
            Ok(from) => from,
            Err(Errno::NXIO) => return Ok(ranges),
            Err(errno) => return Err(errno.into()),
        };
        at = rustix::fs::seek(data, SeekFrom::Hole(from))?;
        ranges.push(Change::Data(from..at));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_tells_the_ranges_after_all_changes_but_for_torn_lines() {
        let ranges = |changes: &[Change]| parse(&text(changes));
        let data = |from, to| Change::Data(from..to);
        assert_eq!(ranges(&[]), []);
        assert_eq!(ranges(&[data(8, 12), data(0, 4), data(2, 6)]), [(0, 6), (8, 12)]);
        assert_eq!(ranges(&[data(0, 4), data(8, 12), data(20, 24), data(4, 21)]), [(0, 24)]);
        assert_eq!(
            ranges(&[data(0, 4), data(8, 12), Change::Cut(9), data(20, 21)]),
            [(0, 4), (8, 9), (20, 21)]
        );
        assert_eq!(ranges(&[data(0, 4), data(8, 12), Change::Cut(8)]), [(0, 4)]);
        assert_eq!(ranges(&[data(0, 4), Change::Cut(0)]), []);
        let torn = format!("{}\n12 2{}", text(&[data(0, 4)]), text(&[data(8, 9)]));
        assert_eq!(parse(&torn), [(0, 4), (8, 9)]);
        assert_eq!(parse("5 4.\n-1 3.\ncut x.\n1 2 3.\n"), []);
    }

    #[test]
    fn ranges_that_continue_each_other_are_one() {
        let mut changes = Vec::new();
        for change in [Change::Data(0..4), Change::Data(4..8), Change::Cut(8), Change::Data(8..9)] {
            add(&mut changes, change);
        }
        assert_eq!(changes, [Change::Data(0..8), Change::Cut(8), Change::Data(8..9)]);
    }
}
