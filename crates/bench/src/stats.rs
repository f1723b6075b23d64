//! The figures that are counted while a phase runs.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::protocol::Operation;

/// Longest latency in nanoseconds, one hour. A longer latency counts as one hour.
const LONGEST: u64 = 3_600_000_000_000;

/// Latencies in nanoseconds, to three significant digits. In JSON they are pairs of latency and count.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(from = "Vec<(u64, u64)>", into = "Vec<(u64, u64)>")]
pub(crate) struct Latencies(pub(crate) Histogram<u64>);

impl Latencies {
    /// Makes an empty histogram from 1 us to `LONGEST`, with three digits.
    pub(crate) fn new() -> Self {
        // A network latency has no meaningful digits below a microsecond. Leaving them out saves three quarters of
        // the memory.
        #[expect(clippy::expect_used, reason = "the bounds are constants that the library accepts")]
        Self(Histogram::new_with_bounds(1000, LONGEST, 3).expect("bounds of a histogram"))
    }

    #[inline]
    pub(crate) fn record(&mut self, nanoseconds: u64) {
        self.0.saturating_record(nanoseconds.min(LONGEST));
    }

    /// Adds the latencies of another thread.
    fn merge(&mut self, other: &Self) {
        // Both histograms have equal bounds, so adding cannot fail.
        let _ = self.0.add(&other.0);
    }
}

impl From<Vec<(u64, u64)>> for Latencies {
    fn from(pairs: Vec<(u64, u64)>) -> Self {
        let mut latencies = Self::new();
        for (nanoseconds, count) in pairs {
            latencies.0.saturating_record_n(nanoseconds.min(LONGEST), count);
        }
        latencies
    }
}

impl From<Latencies> for Vec<(u64, u64)> {
    fn from(latencies: Latencies) -> Self {
        let recorded = latencies.0.iter_recorded();
        recorded.map(|value| (value.value_iterated_to(), value.count_since_last_iteration())).collect()
    }
}

/// The figures of one second of a phase.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Second {
    pub(crate) operations: u64,
    pub(crate) bytes: u64,
    pub(crate) latency_sum: u64,
    pub(crate) latency_max: u64,
}

/// The figures of one thread in a phase.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Stats {
    /// Latencies from the first request of an operation to its last reply.
    pub(crate) operations: Latencies,
    /// Latencies from each request to its reply, by operation.
    pub(crate) requests: [Option<Box<Latencies>>; Operation::ALL.len()],
    pub(crate) bytes: u64,
    pub(crate) entries: u64,
    /// Requests answered with NFS3ERR_JUKEBOX or NFS4ERR_DELAY, and sent again.
    pub(crate) put_off: u64,
    pub(crate) seconds: Vec<Second>,
}

impl Stats {
    /// Makes empty figures. The histogram of a procedure is made at its first use.
    pub(crate) fn new() -> Self {
        Self {
            operations: Latencies::new(),
            requests: [const { None }; Operation::ALL.len()],
            bytes: 0,
            entries: 0,
            put_off: 0,
            seconds: Vec::new(),
        }
    }

    /// Counts a reply that came `latency` nanoseconds after its request.
    #[inline]
    pub(crate) fn reply(&mut self, operation: Operation, latency: u64) {
        self.requests[operation as usize].get_or_insert_with(|| Box::new(Latencies::new())).record(latency);
    }

    /// Counts payload bytes and entries moved in second number `second` of the phase.
    #[inline]
    pub(crate) fn moved(&mut self, second: usize, bytes: u64, entries: u64) {
        self.bytes += bytes;
        self.entries += entries;
        self.second(second).bytes += bytes;
    }

    /// Counts an operation that completed `latency` nanoseconds after its first request.
    #[inline]
    pub(crate) fn operation(&mut self, second: usize, latency: u64) {
        self.operations.record(latency);
        let second = self.second(second);
        second.operations += 1;
        second.latency_sum += latency;
        second.latency_max = second.latency_max.max(latency);
    }

    /// Returns the figures of a second of the phase, counted from its start.
    #[inline]
    fn second(&mut self, number: usize) -> &mut Second {
        if self.seconds.len() <= number {
            self.seconds.resize(number + 1, Second::default());
        }
        &mut self.seconds[number]
    }

    /// Adds the figures of another thread in this phase.
    pub(crate) fn merge(&mut self, other: &Self) {
        self.operations.merge(&other.operations);
        for (mine, theirs) in self.requests.iter_mut().zip(&other.requests) {
            match (mine.as_mut(), theirs) {
                (Some(mine), Some(theirs)) => mine.merge(theirs),
                (None, Some(_)) => mine.clone_from(theirs),
                (_, None) => {}
            }
        }
        self.bytes += other.bytes;
        self.entries += other.entries;
        self.put_off += other.put_off;
        for (number, theirs) in other.seconds.iter().enumerate() {
            let mine = self.second(number);
            mine.operations += theirs.operations;
            mine.bytes += theirs.bytes;
            mine.latency_sum += theirs.latency_sum;
            mine.latency_max = mine.latency_max.max(theirs.latency_max);
        }
    }
}

/// The measurement of a phase, on one host or on several.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Measured {
    pub(crate) stats: Stats,
    /// Time of the first request, in seconds since 1970.
    pub(crate) began: f64,
    /// Seconds from the first request to the last reply.
    pub(crate) seconds: f64,
    /// CPU seconds of the clients.
    pub(crate) client_cpu: Option<f64>,
    /// CPU seconds of the server, if its process can be seen.
    pub(crate) server_cpu: Option<f64>,
    /// CPU seconds of all other processes on this machine. Known only if all clients are on this machine and the
    /// server's CPU time is known.
    #[serde(default)]
    pub(crate) other_cpu: Option<f64>,
}

impl Measured {
    /// Adds the measurement of another host in this phase.
    pub(crate) fn merge(&mut self, other: &Self) {
        self.stats.merge(&other.stats);
        self.began = self.began.min(other.began);
        self.seconds = self.seconds.max(other.seconds);
        self.client_cpu = self.client_cpu.zip(other.client_cpu).map(|(mine, theirs)| mine + theirs);
        // All hosts measure one server, so the CPU time of either host is right.
        self.server_cpu = self.server_cpu.or(other.server_cpu);
        // With several agents on one machine, each would count the other agents as other processes.
        self.other_cpu = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_histogram_travels_without_loss() {
        let mut latencies = Latencies::new();
        for nanoseconds in [900, 1000, 1001, 54_321, 54_321, 7_654_321, LONGEST] {
            latencies.record(nanoseconds);
        }
        let text = serde_json::to_string(&latencies).unwrap();
        let back: Latencies = serde_json::from_str(&text).unwrap();
        assert_eq!(back.0, latencies.0);
    }

    #[test]
    fn merging_is_adding() {
        let mut one = Stats::new();
        one.reply(Operation::Read, 50_000);
        one.operation(0, 50_000);
        one.moved(0, 4096, 0);
        let mut two = Stats::new();
        two.reply(Operation::Write, 90_000);
        two.operation(2, 90_000);
        two.moved(2, 8192, 3);
        one.merge(&two);
        assert_eq!(one.operations.0.len(), 2);
        assert!(one.requests[Operation::Write as usize].is_some());
        assert_eq!((one.bytes, one.entries), (12288, 3));
        let operations: Vec<u64> = one.seconds.iter().map(|second| second.operations).collect();
        assert_eq!(operations, [1, 0, 1]);
        assert_eq!(one.seconds[2].latency_max, 90_000);
    }

    #[test]
    fn a_latency_beyond_the_scale_counts_as_its_end() {
        let mut latencies = Latencies::new();
        latencies.record(u64::MAX);
        assert!(latencies.0.max() >= LONGEST);
    }
}
