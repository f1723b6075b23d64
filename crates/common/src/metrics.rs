//! Latency counters: recorded by any thread with two relaxed additions, merged and subtracted as snapshots.
//!
//! Threads count in shards, so that two event loops do not pass one cache line to and fro with each request.
//!
//! Buckets are log-linear: 8 per power of two, from 1 ns to 18 minutes, in 2.5 KiB. So a percentile is at
//! most 12.5 % above the true value.

use std::cell::Cell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use serde::{Deserialize, Serialize};

const SUB_BITS: u32 = 3;
const SUB: u64 = 1 << SUB_BITS;
/// The last bucket takes everything from 2^40 ns (18 minutes) on.
const BUCKETS: usize = ((40 - SUB_BITS as usize) + 1) * SUB as usize;

/// Shards of a recorder. More threads than these share them.
const SHARDS: usize = 16;

/// A recorder that counts latencies.
#[derive(Debug, Default)]
pub struct Recorder {
    /// A shard is made with the first latency of one of its threads.
    shards: [OnceLock<Box<Shard>>; SHARDS],
}

/// The counts of some threads.
#[derive(Debug)]
#[repr(align(64))]
struct Shard {
    buckets: [AtomicU64; BUCKETS],
    total_ns: AtomicU64,
}

impl Shard {
    fn new() -> Box<Self> {
        Box::new(Self { buckets: [const { AtomicU64::new(0) }; BUCKETS], total_ns: AtomicU64::new(0) })
    }

    /// Returns the number of the calling thread's shard. Threads get the numbers in turn.
    #[inline]
    fn of_thread() -> usize {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        // Initialized without code, since each request counts several times.
        thread_local!(static SHARD: Cell<usize> = const { Cell::new(SHARDS) });
        if SHARD.get() >= SHARDS {
            SHARD.set(NEXT.fetch_add(1, Relaxed) % SHARDS);
        }
        SHARD.get()
    }
}

impl Recorder {
    /// Counts one latency.
    #[inline]
    pub fn record(&self, latency: Duration) {
        let nanos = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX);
        let shard = self.shards[Shard::of_thread()].get_or_init(Shard::new);
        shard.buckets[bucket(nanos)].fetch_add(1, Relaxed);
        if nanos > 0 {
            shard.total_ns.fetch_add(nanos, Relaxed);
        }
    }

    /// Returns the counts so far. While other threads record, counts may be a few ahead of the total.
    pub fn snapshot(&self) -> Snapshot {
        let shards: Vec<_> = self.shards.iter().filter_map(OnceLock::get).collect();
        let count = |index: usize| shards.iter().map(|shard| shard.buckets[index].load(Relaxed)).sum();
        let counts = (0..BUCKETS).map(|index| (index as u16, count(index)));
        Snapshot {
            buckets: counts.filter(|(_, count)| *count > 0).collect(),
            total_ns: shards.iter().map(|shard| shard.total_ns.load(Relaxed)).sum(),
        }
    }
}

/// Latencies counted up to some moment, or between two.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Bucket number and count, ascending, without empty buckets. Bucket `b` below 8 holds latencies of `b` ns;
    /// bucket `8 * e + m` those from `(8 + m) * 2^(e - 1)` ns on.
    buckets: Vec<(u16, u64)>,
    /// Sum of all latencies, in nanoseconds.
    total_ns: u64,
}

impl Snapshot {
    /// Returns the number of latencies.
    pub fn count(&self) -> u64 {
        self.buckets.iter().map(|(_, count)| count).sum()
    }

    /// Returns the sum of all latencies, in nanoseconds.
    pub fn total_ns(&self) -> u64 {
        self.total_ns
    }

    /// Adds the latencies of another snapshot.
    pub fn merge(&mut self, other: &Self) {
        for &(index, count) in &other.buckets {
            match self.buckets.binary_search_by_key(&index, |(own, _)| *own) {
                Ok(at) => self.buckets[at].1 = self.buckets[at].1.saturating_add(count),
                Err(at) => self.buckets.insert(at, (index, count)),
            }
        }
        self.total_ns = self.total_ns.saturating_add(other.total_ns);
    }

    /// Returns the latencies counted since an earlier snapshot of these recorders.
    pub fn since(&self, earlier: &Self) -> Self {
        let before = |index| {
            let found = earlier.buckets.binary_search_by_key(&index, |(own, _)| *own);
            found.map_or(0, |at| earlier.buckets[at].1)
        };
        let counts = self.buckets.iter().map(|&(index, count)| (index, count.saturating_sub(before(index))));
        Self {
            buckets: counts.filter(|(_, count)| *count > 0).collect(),
            total_ns: self.total_ns.saturating_sub(earlier.total_ns),
        }
    }

    /// Returns the latency in nanoseconds that `percent` (0 to 100) of all do not exceed: the upper end of its bucket.
    /// Returns 0 if nothing was counted.
    pub fn percentile(&self, percent: f64) -> u64 {
        let count = self.count();
        let rank = ((percent / 100.0 * count as f64).ceil() as u64).clamp(1, count.max(1));
        let mut passed = 0;
        for &(index, bucket_count) in &self.buckets {
            passed += bucket_count;
            if passed >= rank {
                return upper_end(index);
            }
        }
        0
    }

    /// Returns for each bound, ascending and in nanoseconds, the number of latencies above the bound before it and not
    /// above this one. The last number is that of the latencies above all bounds. The numbers are exact for bounds
    /// that are powers of two, less one.
    pub fn between(&self, bounds: &[u64]) -> Vec<u64> {
        let mut counts = vec![0; bounds.len() + 1];
        for &(index, count) in &self.buckets {
            counts[bounds.partition_point(|bound| *bound < upper_end(index))] += count;
        }
        counts
    }

    /// Returns mean and percentiles.
    pub fn summary(&self) -> LatencySummary {
        LatencySummary {
            mean_ns: self.total_ns.checked_div(self.count()).unwrap_or(0),
            p50_ns: self.percentile(50.0),
            p95_ns: self.percentile(95.0),
            p99_ns: self.percentile(99.0),
            p999_ns: self.percentile(99.9),
            max_ns: self.percentile(100.0),
        }
    }
}

/// Latencies in figures, all in nanoseconds; percentiles and maximum are at most 12.5 % too high.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LatencySummary {
    /// Mean.
    pub mean_ns: u64,
    /// Median.
    pub p50_ns: u64,
    /// 95th percentile.
    pub p95_ns: u64,
    /// 99th percentile.
    pub p99_ns: u64,
    /// 99.9th percentile.
    pub p999_ns: u64,
    /// Maximum.
    pub max_ns: u64,
}

/// Returns the bucket of a latency. The last bucket has all latencies beyond its bound.
fn bucket(nanos: u64) -> usize {
    if nanos < SUB {
        return nanos as usize;
    }
    let exponent = nanos.ilog2() - SUB_BITS;
    let mantissa = (nanos >> exponent) - SUB;
    ((u64::from(exponent) + 1) * SUB + mantissa).min(BUCKETS as u64 - 1) as usize
}

/// Returns the largest latency of a bucket. Numbers beyond the last bucket, which only a foreign sender has, count as
/// the last.
fn upper_end(index: u16) -> u64 {
    let index = u64::from(index).min(BUCKETS as u64 - 1);
    if index < SUB {
        return index;
    }
    let exponent = index / SUB - 1;
    ((SUB + index % SUB + 1) << exponent) - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_cover_all_latencies_without_gaps() {
        let mut previous = 0;
        for index in 1..BUCKETS as u16 {
            let low = upper_end(index - 1) + 1;
            assert_eq!(bucket(low), usize::from(index), "lowest latency of bucket {index}");
            assert_eq!(bucket(upper_end(index)), usize::from(index));
            assert!(upper_end(index) > previous);
            previous = upper_end(index);
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn percentiles_are_at_most_an_eighth_too_high() {
        let recorder = Recorder::default();
        for micros in 1..=1000 {
            recorder.record(Duration::from_micros(micros));
        }
        let snapshot = recorder.snapshot();
        assert_eq!(snapshot.count(), 1000);
        for percent in [1.0, 50.0, 95.0, 99.0, 99.9, 100.0] {
            let exact = (percent * 10.0_f64).ceil() * 1000.0;
            let shown = snapshot.percentile(percent) as f64;
            assert!((exact..exact * 1.126).contains(&shown), "p{percent}: {shown} for {exact}");
        }
        assert_eq!(snapshot.summary().mean_ns, 500_500);
        assert_eq!(Snapshot::default().summary(), LatencySummary::default());
    }

    #[test]
    fn a_snapshot_has_the_counts_of_all_threads() {
        let recorder = Recorder::default();
        std::thread::scope(|scope| {
            for _ in 0..2 * SHARDS {
                scope.spawn(|| recorder.record(Duration::from_nanos(7)));
            }
        });
        let snapshot = recorder.snapshot();
        assert_eq!((snapshot.count(), snapshot.total_ns()), (2 * SHARDS as u64, 14 * SHARDS as u64));
    }

    #[test]
    fn a_difference_holds_what_came_between() {
        let recorder = Recorder::default();
        recorder.record(Duration::from_millis(5));
        let before = recorder.snapshot();
        recorder.record(Duration::from_nanos(3));
        recorder.record(Duration::from_millis(5));
        let between = recorder.snapshot().since(&before);
        assert_eq!((between.count(), between.percentile(1.0)), (2, 3));
        let mut merged = before;
        merged.merge(&between);
        assert_eq!(merged, recorder.snapshot());
    }

    #[test]
    fn every_latency_is_between_two_bounds() {
        let recorder = Recorder::default();
        for nanos in [1, 1023, 1024, 2047, 2048, 1 << 39] {
            recorder.record(Duration::from_nanos(nanos));
        }
        assert_eq!(recorder.snapshot().between(&[1023, 2047]), [2, 2, 2]);
        assert_eq!(recorder.snapshot().between(&[]), [6]);
    }
}
