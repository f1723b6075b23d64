//! The counters behind `forebay stat` and `forebay top`. A sample is cheap to take; two samples are subtracted to get
//! rates.

use serde::{Deserialize, Serialize};

use forebay_common::metrics::Snapshot;

/// The counters of a server since its start, and some values of the moment.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatSample {
    /// Time at which the sample was taken, in nanoseconds since 1970.
    pub time_ns: u64,
    /// Time at which the server started, in nanoseconds since 1970. Samples of two starts must not be subtracted.
    #[serde(default)]
    pub started_ns: u64,
    /// Time since the start, in nanoseconds of the server's monotonic clock. Rates divide by the difference of two
    /// samples.
    pub uptime_ns: u64,
    /// READ.
    pub read: OperationSample,
    /// WRITE.
    pub write: OperationSample,
    /// COMMIT.
    pub commit: OperationSample,
    /// Requests that change nothing: GETATTR, LOOKUP, ACCESS, READLINK, READDIR, FSSTAT and similar ones.
    pub lookup: OperationSample,
    /// Requests that change names or attributes: SETATTR, CREATE, REMOVE, RENAME and similar ones.
    pub change: OperationSample,
    /// Syncs of the backing store.
    pub sync_batches: u64,
    /// Operations that waited for a sync.
    pub sync_operations: u64,
    /// Syncs that failed.
    pub sync_failures: u64,
    /// Retransmissions answered from the reply cache.
    pub reply_cache_hits: u64,
    /// Requests in flight now.
    pub inflight: u64,
    /// Connections open now.
    pub connections: u64,
    /// Workers busy now.
    pub workers_busy: u64,
    /// Requests that wait for a worker now.
    pub workers_queued: u64,
    /// CPU time of the process, in nanoseconds.
    pub cpu_ns: u64,
    /// Counters of the cache; absent without a cache.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache: Option<CacheCounters>,
    /// Bytes that only the cache has now, each block counted once.
    #[serde(default)]
    pub dirty_bytes: u64,
}

/// Defines the counters of the cache from one list, so that `since` and `each` cannot miss one.
macro_rules! cache_counters {
    ($($(#[$doc:meta])* $name:ident),+ $(,)?) => {
        /// The work of the cache since the start. Blocks are of 4 KiB.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
        pub struct CacheCounters {
            $($(#[$doc])* #[serde(default)] pub $name: u64),+
        }

        impl CacheCounters {
            /// Returns the difference to an earlier sample.
            pub fn since(&self, earlier: &Self) -> Self {
                Self { $($name: self.$name.saturating_sub(earlier.$name)),+ }
            }

            /// Returns the name and value of each counter.
            pub fn each(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name)),+].into_iter()
            }
        }
    };
}

cache_counters! {
    /// Blocks read from memory.
    blocks_read_ram,
    /// Blocks read from the cache devices.
    blocks_read_ssd,
    /// Blocks read from the backing store through the cache.
    blocks_read_backing,
    /// Blocks written to the log by clients.
    blocks_written,
    /// Bytes written by clients straight to the backing store.
    direct_bytes,
    /// Blocks destaged.
    blocks_destaged,
    /// Writes to the backing store that destaging made.
    destage_writes,
    /// Dirty blocks appended to the log again to make room in it.
    blocks_compacted,
    /// Clean blocks written to the cache devices.
    blocks_admitted,
    /// Clean blocks evicted from the cache devices to make room.
    blocks_evicted,
    /// Clean blocks that were in use when their segment was evicted, or stay by their policy, and were written again.
    blocks_reinserted,
    /// Reinserted blocks that were not in use, and stayed for their high priority alone.
    blocks_kept_by_priority,
    /// Bytes written to the cache devices: all copies, headers and records.
    ssd_bytes_written,
    /// Frames written to the log.
    frames,
    /// Times the log waited for room.
    log_waits,
    /// Bad copies rewritten from good ones.
    repaired,
    /// Failures of the backing store while destaging.
    backing_errors,
    /// Times that the cached blocks of a file were dropped because another program had changed the file in the
    /// directory.
    changed_outside,
}

impl CacheCounters {
    /// Returns the bytes written to the cache devices for each byte that clients wrote to the log or that was
    /// admitted.
    pub fn write_amplification(&self) -> f64 {
        let asked = (self.blocks_written + self.blocks_admitted) * 4096;
        if asked == 0 { 0.0 } else { self.ssd_bytes_written as f64 / asked as f64 }
    }

    /// Returns the number of blocks read through the cache from memory, cache devices and backing store.
    pub fn blocks_read(&self) -> u64 {
        self.blocks_read_ram + self.blocks_read_ssd + self.blocks_read_backing
    }

    /// Returns the fractions, 0 to 1, of all blocks read that came from memory and from the cache devices.
    pub fn hit_rates(&self) -> (f64, f64) {
        let all = self.blocks_read().max(1) as f64;
        (self.blocks_read_ram as f64 / all, self.blocks_read_ssd as f64 / all)
    }
}

/// The counters of one kind of operation.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OperationSample {
    /// Operations answered with an error status.
    pub errors: u64,
    /// Payload bytes.
    pub bytes: u64,
    /// Latencies of all answered operations. Its count is the number of operations.
    pub latency: Snapshot,
}

impl OperationSample {
    /// Returns the difference to an earlier sample.
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            errors: self.errors.saturating_sub(earlier.errors),
            bytes: self.bytes.saturating_sub(earlier.bytes),
            latency: self.latency.since(&earlier.latency),
        }
    }

    /// Adds the counters of another kind of operation.
    pub fn merge(&mut self, other: &Self) {
        self.errors = self.errors.saturating_add(other.errors);
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.latency.merge(&other.latency);
    }
}

impl StatSample {
    /// Returns the difference to an earlier sample. Values of the moment stay as they are.
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            time_ns: self.time_ns,
            uptime_ns: self.uptime_ns.saturating_sub(earlier.uptime_ns),
            read: self.read.since(&earlier.read),
            write: self.write.since(&earlier.write),
            commit: self.commit.since(&earlier.commit),
            lookup: self.lookup.since(&earlier.lookup),
            change: self.change.since(&earlier.change),
            sync_batches: self.sync_batches.saturating_sub(earlier.sync_batches),
            sync_operations: self.sync_operations.saturating_sub(earlier.sync_operations),
            sync_failures: self.sync_failures.saturating_sub(earlier.sync_failures),
            reply_cache_hits: self.reply_cache_hits.saturating_sub(earlier.reply_cache_hits),
            cpu_ns: self.cpu_ns.saturating_sub(earlier.cpu_ns),
            cache: self.cache.map(|now| earlier.cache.map_or(now, |earlier| now.since(&earlier))),
            ..self.clone()
        }
    }
}
