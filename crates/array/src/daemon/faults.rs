//! Faults that the daemon shows on demand.

use serde::{Deserialize, Serialize};

/// The kind of requests that an injected error hits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Hits {
    /// Reads only.
    Read,
    /// Writes only; no byte of a failed request is written.
    Write,
    /// Reads and writes.
    Both,
}

/// A fault to inject. [`Fault::Clear`] ends every fault. `Eio` also ends with its count, and `Slow` with a factor of
/// 1.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fault {
    /// Makes requests that touch the range fail with EIO.
    Eio {
        /// Offset of the first byte on the block device.
        offset: u64,
        /// Number of bytes.
        length: u64,
        /// Kind of requests that fail.
        hits: Hits,
        /// Number of requests that fail before the range works again; `None` means all.
        count: Option<u64>,
    },
    /// Makes a disk, or every disk, slower.
    Slow {
        /// Factor by which every service time is multiplied, at least 0.01.
        factor: f64,
        /// Number of the disk from 0; `None` means all.
        disk: Option<usize>,
    },
    /// Holds back every completion.
    Hang,
    /// Acknowledges flushes without doing them.
    FlushNoop,
    /// Completes requests at once, without the disks' delays, to fill an array with data.
    Instant,
    /// Ends all injected faults; requests that hung complete.
    Clear,
}

/// The faults in force.
#[derive(Debug, Default)]
pub(super) struct Faults {
    errors: Vec<Errors>,
    pub(super) hang: bool,
    pub(super) instant: bool,
}

#[derive(Debug)]
struct Errors {
    start: u64,
    end: u64,
    hits: Hits,
    left: Option<u64>,
}

impl Faults {
    pub(super) fn fail_range(&mut self, offset: u64, length: u64, hits: Hits, count: Option<u64>) {
        self.errors.push(Errors { start: offset, end: offset.saturating_add(length), hits, left: count });
    }

    /// Returns true if a request fails. A failing request lowers the count of the rule that hit it.
    pub(super) fn hit(&mut self, write: bool, offset: u64, length: u64) -> bool {
        if self.errors.is_empty() {
            return false;
        }
        let other = if write { Hits::Read } else { Hits::Write };
        let touches = |e: &&mut Errors| e.hits != other && e.start < offset + length && offset < e.end;
        let Some(rule) = self.errors.iter_mut().find(touches) else { return false };
        if let Some(left) = rule.left.as_mut() {
            *left -= 1;
        }
        self.errors.retain(|e| e.left != Some(0));
        true
    }

    /// Returns the number of error ranges in force.
    pub(super) fn error_ranges(&self) -> usize {
        self.errors.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_hits_its_range_its_kind_and_its_count() {
        let mut faults = Faults::default();
        faults.fail_range(4096, 4096, Hits::Read, Some(2));
        assert!(!faults.hit(true, 4096, 4096));
        assert!(!faults.hit(false, 0, 4096));
        assert!(!faults.hit(false, 8192, 4096));
        assert!(faults.hit(false, 0, 65536));
        assert!(faults.hit(false, 4096, 4096));
        assert!(!faults.hit(false, 4096, 4096));
    }
}
