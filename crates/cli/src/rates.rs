//! Rates computed from counters, for `stat` and `top`.

use forebay_control::{CacheCounters, OperationSample, StatSample};
use serde::Serialize;

/// The rates of a server in an interval. Rates are per second; latencies are in nanoseconds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Rates {
    /// End of the interval, in nanoseconds since 1970.
    pub(crate) time_ns: u64,
    /// Length of the interval in seconds.
    pub(crate) seconds: f64,
    pub(crate) read: OperationRates,
    pub(crate) write: OperationRates,
    pub(crate) commit: OperationRates,
    pub(crate) lookup: OperationRates,
    pub(crate) change: OperationRates,
    /// Syncs of the backing store.
    pub(crate) syncs: f64,
    /// Mean number of operations that shared a sync.
    pub(crate) operations_per_sync: f64,
    /// Syncs that failed, in the whole interval.
    pub(crate) sync_failures: u64,
    pub(crate) reply_cache_hits: f64,
    /// Requests in flight at the end of the interval.
    pub(crate) inflight: u64,
    /// Connections at the end of the interval.
    pub(crate) connections: u64,
    /// Workers busy at the end of the interval.
    pub(crate) workers_busy: u64,
    /// Requests waiting for a worker at the end of the interval.
    pub(crate) workers_queued: u64,
    /// CPU use of the server in percent; 100 is one core.
    pub(crate) cpu_percent: f64,
    /// Rates of the cache; absent without a cache.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cache: Option<CacheRates>,
}

/// The rates of the cache in an interval. Bytes are per second.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct CacheRates {
    /// Blocks read through the cache. If there are none, the percentages are 0.
    pub(crate) reads: f64,
    /// Percentage of blocks read through the cache that came from memory.
    pub(crate) ram_percent: f64,
    /// Percentage of blocks read through the cache that came from the cache devices.
    pub(crate) ssd_percent: f64,
    /// Bytes that only the cache has, at the end of the interval.
    pub(crate) dirty_bytes: u64,
    pub(crate) destaged: f64,
    /// Bytes of client reads and writes in the cache, less the bytes read from and destaged to the backing store.
    pub(crate) spared: f64,
    /// Bytes written to the cache devices for each byte to be cached.
    pub(crate) write_amplification: f64,
}

impl CacheRates {
    /// Returns the cache's rates from the counts in an interval of `seconds`. `dirty_bytes` is the amount at its end.
    fn new(counters: &CacheCounters, dirty_bytes: u64, seconds: f64) -> Self {
        let bytes = |blocks: u64| blocks as f64 * 4096.0 / seconds;
        let (ram, ssd) = counters.hit_rates();
        let served = counters.blocks_read_ram + counters.blocks_read_ssd + counters.blocks_read_backing;
        let cost = counters.blocks_read_backing + counters.blocks_destaged;
        Self {
            reads: served as f64 / seconds,
            ram_percent: ram * 100.0,
            ssd_percent: ssd * 100.0,
            dirty_bytes,
            destaged: bytes(counters.blocks_destaged),
            spared: bytes(served + counters.blocks_written) - bytes(cost),
            write_amplification: counters.write_amplification(),
        }
    }
}

/// The rates of one kind of operation in an interval.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct OperationRates {
    pub(crate) operations: f64,
    pub(crate) errors: f64,
    pub(crate) bytes: f64,
    pub(crate) mean_ns: u64,
    pub(crate) p50_ns: u64,
    pub(crate) p99_ns: u64,
    pub(crate) max_ns: u64,
}

impl OperationRates {
    /// Returns the rates of a kind of operation from the counts in an interval of `seconds`.
    fn new(sample: &OperationSample, seconds: f64) -> Self {
        let latency = sample.latency.summary();
        Self {
            operations: sample.latency.count() as f64 / seconds,
            errors: sample.errors as f64 / seconds,
            bytes: sample.bytes as f64 / seconds,
            mean_ns: latency.mean_ns,
            p50_ns: latency.p50_ns,
            p99_ns: latency.p99_ns,
            max_ns: latency.max_ns,
        }
    }
}

impl Rates {
    /// Returns the rates between two samples. Without an earlier sample, or if the server restarted since, returns
    /// the rates since the start of the server.
    pub(crate) fn between(earlier: Option<&StatSample>, now: &StatSample) -> Self {
        let earlier = earlier.filter(|earlier| earlier.started_ns == now.started_ns);
        let sample = earlier.map_or_else(|| now.clone(), |earlier| now.since(earlier));
        // The length is at least one microsecond, so that no rate is infinite.
        let seconds = (sample.uptime_ns as f64 / 1e9).max(1e-6);
        let rate = |count: u64| count as f64 / seconds;
        let operations = |sample| OperationRates::new(sample, seconds);
        Self {
            time_ns: sample.time_ns,
            seconds,
            read: operations(&sample.read),
            write: operations(&sample.write),
            commit: operations(&sample.commit),
            lookup: operations(&sample.lookup),
            change: operations(&sample.change),
            syncs: rate(sample.sync_batches),
            operations_per_sync: sample.sync_operations as f64 / sample.sync_batches.max(1) as f64,
            sync_failures: sample.sync_failures,
            reply_cache_hits: rate(sample.reply_cache_hits),
            inflight: sample.inflight,
            connections: sample.connections,
            workers_busy: sample.workers_busy,
            workers_queued: sample.workers_queued,
            cpu_percent: sample.cpu_ns as f64 / seconds / 1e7,
            cache: sample.cache.map(|counters| CacheRates::new(&counters, sample.dirty_bytes, seconds)),
        }
    }

    /// Returns the kinds of operations with their names.
    pub(crate) fn kinds(&self) -> [(&'static str, &OperationRates); 5] {
        [
            ("READ", &self.read),
            ("WRITE", &self.write),
            ("COMMIT", &self.commit),
            ("LOOK", &self.lookup),
            ("CHANGE", &self.change),
        ]
    }

    /// Returns the operations of all kinds per second.
    pub(crate) fn operations(&self) -> f64 {
        self.kinds().iter().map(|(_, rates)| rates.operations).sum()
    }

    /// Returns the operations of all kinds that ended with an error, per second.
    pub(crate) fn errors(&self) -> f64 {
        self.kinds().iter().map(|(_, rates)| rates.errors).sum()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use forebay_control::Recorder;

    use super::*;

    fn sample(seconds: u64, recorder: &Recorder) -> StatSample {
        let read = OperationSample { errors: seconds, bytes: 8192 * seconds, latency: recorder.snapshot() };
        let uptime_ns = seconds * 1_000_000_000;
        StatSample { uptime_ns, read, cpu_ns: uptime_ns / 2, sync_batches: seconds, ..StatSample::default() }
    }

    #[test]
    fn what_the_cache_spares_the_backing_store() {
        let block = |n: u64| n as f64 * 4096.0;
        let counters = CacheCounters {
            blocks_read_ram: 50,
            blocks_read_ssd: 30,
            blocks_read_backing: 20,
            blocks_written: 100,
            blocks_destaged: 40,
            ssd_bytes_written: 210 * 4096,
            ..CacheCounters::default()
        };
        let rates = CacheRates::new(&counters, 60 * 4096, 2.0);
        assert_eq!((rates.ram_percent, rates.ssd_percent, rates.write_amplification), (50.0, 30.0, 2.1));
        assert_eq!((rates.destaged, rates.spared), (block(20), block(70)));
    }

    #[test]
    fn rates_are_those_of_the_interval() {
        let recorder = Recorder::default();
        recorder.record(Duration::from_millis(9));
        let first = sample(10, &recorder);
        (0..4).for_each(|_| recorder.record(Duration::from_millis(1)));
        let second = sample(12, &recorder);
        let rates = Rates::between(Some(&first), &second);
        assert_eq!((rates.seconds, rates.read.operations, rates.read.bytes), (2.0, 2.0, 8192.0));
        assert_eq!((rates.read.mean_ns, rates.cpu_percent, rates.syncs), (1_000_000, 50.0, 1.0));
        let whole = Rates::between(None, &second);
        assert_eq!((whole.seconds, whole.read.operations), (12.0, 5.0 / 12.0));
        let longer = StatSample { started_ns: 7, ..second.clone() };
        let restarted = Rates::between(Some(&first), &longer);
        assert_eq!(restarted.seconds, 12.0, "another start is another server, however long it runs");
    }
}
