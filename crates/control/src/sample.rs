//! What `forebay stat` and `forebay top` show: counters since the start, cheap to take, made to be subtracted.

use serde::{Deserialize, Serialize};

use forebay_metrics::Snapshot;

/// Counters of a server since its start, and a few values of the moment.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatSample {
    /// When it was taken, in nanoseconds since 1970.
    pub time_ns: u64,
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
            ..self.clone()
        }
    }
}
