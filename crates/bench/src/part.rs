//! The share of a job's clients that one host runs, and the points at which hosts wait for each other.

use std::ops::Range;

use anyhow::Result;
use serde::{Deserialize, Serialize};

use crate::stats::Measured;

/// One of several hosts that share the clients of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Part {
    /// Number of the host, from 0. Host 0 prepares and removes the shared files.
    pub(crate) index: u32,
    /// Number of hosts, at least 1.
    pub(crate) count: u32,
}

impl Part {
    /// The only host; it runs all clients.
    pub(crate) const WHOLE: Self = Self { index: 0, count: 1 };

    /// Returns the numbers of this host's clients, out of `total`. The shares of two hosts differ by at most one.
    pub(crate) fn clients(self, total: u32) -> Range<u32> {
        let border = |index: u32| (u64::from(total) * u64::from(index) / u64::from(self.count)) as u32;
        border(self.index)..border(self.index + 1)
    }

    /// Returns true if this host prepares the shared files.
    pub(crate) const fn leads(self) -> bool {
        self.index == 0
    }
}

/// A point at which hosts wait for each other.
pub(crate) trait Gate {
    /// Waits until every host has reached `place`.
    fn wait(&mut self, place: &str) -> Result<()>;

    /// Passes on the result of a phase and waits until every host has done so.
    fn hand_in(&mut self, step: usize, phase: &str, measured: &Measured) -> Result<()>;

    /// Returns true if the controller is gone, so that the run can end.
    fn is_over(&self) -> bool;
}

/// The gate of a single host. It never waits.
pub(crate) struct Alone;

impl Gate for Alone {
    fn wait(&mut self, _: &str) -> Result<()> {
        Ok(())
    }

    fn hand_in(&mut self, _: usize, _: &str, _: &Measured) -> Result<()> {
        Ok(())
    }

    fn is_over(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_client_is_somewhere() {
        for total in [0, 1, 2, 3, 7, 64] {
            for count in 1..6 {
                let all: Vec<u32> =
                    (0..count).flat_map(|index| Part { index, count }.clients(total)).collect();
                assert_eq!(all, (0..total).collect::<Vec<_>>());
            }
        }
        assert_eq!(Part { index: 2, count: 3 }.clients(3), 2..3);
    }
}
