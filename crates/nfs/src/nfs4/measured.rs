//! The operations of a COMPOUND in the counters.

use std::time::{Duration, Instant};

use forebay_wire::nfs4::Opcode;

use super::compound::Class;
use crate::stats::Stats;

/// The times of a COMPOUND in execution.
pub(super) struct Measured {
    /// The end of the last operation with a time of its own, or the arrival.
    mark: Instant,
    /// The last operation whose result waits for the log or a file system, and its begin.
    unfinished: Option<(Opcode, Instant)>,
}

impl Measured {
    pub(super) fn begin(arrived: Instant) -> Self {
        Measured { mark: arrived, unfinished: None }
    }

    /// Returns the end of the last operation, or the arrival. To ask the clock in each short step costs a READ several
    /// per cent.
    pub(super) fn last(&self) -> Instant {
        self.mark
    }

    /// Counts an operation that has its result. One that changes something ends with the next such operation, or with
    /// the reply. An operation that only prepares another has no time of its own, which spares a look at the clock: the
    /// operation after it begins with it.
    pub(super) fn ended(&mut self, stats: &Stats, number: Opcode, failed: bool) {
        let class = Class::of(number);
        if class.prepares {
            return stats.executed(number, Duration::ZERO, failed);
        }
        let begun = std::mem::replace(&mut self.mark, Instant::now());
        if failed || !class.ends_late() {
            stats.executed(number, self.mark - begun, failed);
        } else if let Some((before, begun)) = self.unfinished.replace((number, begun)) {
            stats.executed(before, self.mark - begun, false);
        }
    }

    /// Counts the last operation that changes something. `failed` is true if its change did not become durable.
    pub(super) fn finish(&mut self, stats: &Stats, failed: bool) {
        if let Some((number, begun)) = self.unfinished.take() {
            stats.executed(number, begun.elapsed(), failed);
        }
    }
}
