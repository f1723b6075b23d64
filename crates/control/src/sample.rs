//! What `forebay stat` and `forebay top` show: counters since the start, cheap to take, made to be subtracted.

use serde::{Deserialize, Serialize};

use forebay_common::metrics::Snapshot;

/// Counters of a server since its start, and a few values of the moment.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatSample {
    /// When it was taken, in nanoseconds since 1970.
    pub time_ns: u64,
    /// When the server started, in nanoseconds since 1970: samples of two starts are not subtracted.
    #[serde(default)]
    pub started_ns: u64,
    /// How long the server has been running, in nanoseconds of its monotonic clock; rates divide by its difference.
    pub uptime_ns: u64,
    /// READ.
    pub read: OperationSample,
    /// WRITE.
    pub write: OperationSample,
    /// COMMIT.
    pub commit: OperationSample,
    /// Everything that only looks: GETATTR, LOOKUP, ACCESS, READLINK, READDIR, FSSTAT and their like.
    pub lookup: OperationSample,
    /// Everything that changes names or attributes: SETATTR, CREATE, REMOVE, RENAME and their like.
    pub change: OperationSample,
    /// Synchronisations of the backing store.
    pub sync_batches: u64,
    /// Operations that waited for one.
    pub sync_operations: u64,
    /// Synchronisations that failed.
    pub sync_failures: u64,
    /// Retransmissions answered from the reply cache.
    pub reply_cache_hits: u64,
    /// Requests in flight now.
    pub inflight: u64,
    /// Connections open now.
    pub connections: u64,
    /// Workers busy now.
    pub workers_busy: u64,
    /// Requests waiting for a worker now.
    pub workers_queued: u64,
    /// CPU time of the process, in nanoseconds.
    pub cpu_ns: u64,
    /// What the cache did; absent without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache: Option<CacheCounters>,
    /// Bytes that only the cache has now.
    #[serde(default)]
    pub dirty_bytes: u64,
}

/// Gives the counters of the cache their names once.
macro_rules! cache_counters {
    ($($(#[$doc:meta])* $name:ident),+ $(,)?) => {
        /// What the cache did since the start. Blocks are of 4 KiB.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
        pub struct CacheCounters {
            $($(#[$doc])* #[serde(default)] pub $name: u64),+
        }

        impl CacheCounters {
            /// What came since an earlier moment.
            pub fn since(&self, earlier: &Self) -> Self {
                Self { $($name: self.$name.saturating_sub(earlier.$name)),+ }
            }

            /// Name and value of each.
            pub fn each(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name)),+].into_iter()
            }
        }
    };
}

cache_counters! {
    /// Read from memory.
    blocks_read_ram,
    /// Read from the cache devices.
    blocks_read_ssd,
    /// Read from the backing store through the cache.
    blocks_read_backing,
    /// Written to the log by clients.
    blocks_written,
    /// Bytes written straight to the backing store.
    direct_bytes,
    /// Destaged.
    blocks_destaged,
    /// Writes to the backing store that destaging took.
    destage_writes,
    /// Dirty blocks written again within the log to make room in it.
    blocks_compacted,
    /// Clean blocks written to the cache devices.
    blocks_admitted,
    /// Left the cache devices to make room.
    blocks_evicted,
    /// In use when their place was needed, and written again.
    blocks_reinserted,
    /// Bytes written to the cache devices, all copies, headers and records.
    ssd_bytes_written,
    /// Frames of the log.
    frames,
    /// Times the log waited for room.
    log_waits,
    /// Bad copies rewritten from good ones.
    repaired,
    /// Failures of the backing store while destaging.
    backing_errors,
    /// Times that what was cached of a file was dropped because others had changed it in the directory.
    changed_outside,
}

impl CacheCounters {
    /// Bytes written to the cache devices for each byte that clients wrote to the log or that was admitted.
    pub fn write_amplification(&self) -> f64 {
        let asked = (self.blocks_written + self.blocks_admitted) * 4096;
        if asked == 0 { 0.0 } else { self.ssd_bytes_written as f64 / asked as f64 }
    }

    /// Blocks read through the cache, wherever they came from.
    pub fn blocks_read(&self) -> u64 {
        self.blocks_read_ram + self.blocks_read_ssd + self.blocks_read_backing
    }

    /// Parts of all blocks read that came from memory, and from the cache devices; 0 to 1.
    pub fn hit_rates(&self) -> (f64, f64) {
        let all = self.blocks_read().max(1) as f64;
        (self.blocks_read_ram as f64 / all, self.blocks_read_ssd as f64 / all)
    }
}

/// Counters of a kind of operation.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OperationSample {
    /// Answered with an error status.
    pub errors: u64,
    /// Payload bytes.
    pub bytes: u64,
    /// Latencies of all that were answered; their number is the number of operations.
    pub latency: Snapshot,
}

impl OperationSample {
    /// What came since an earlier sample.
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            errors: self.errors.saturating_sub(earlier.errors),
            bytes: self.bytes.saturating_sub(earlier.bytes),
            latency: self.latency.since(&earlier.latency),
        }
    }

    /// Adds another kind.
    pub fn merge(&mut self, other: &Self) {
        self.errors = self.errors.saturating_add(other.errors);
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.latency.merge(&other.latency);
    }
}

impl StatSample {
    /// What came since an earlier sample; values of the moment stay as they are.
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
