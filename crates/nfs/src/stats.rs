//! The counters of the service: per procedure and in bytes.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use forebay_common::metrics::Recorder;
use forebay_wire::nfs3::Procedure;

/// Counters of one procedure.
#[derive(Default)]
pub struct ProcedureStats {
    /// Latency from the arrival of the record to the reply, which waits until the result is durable where required.
    pub latency: Recorder,
    /// Replies with a status other than NFS3_OK.
    pub errors: AtomicU64,
}

/// Counters since start.
#[derive(Default)]
pub struct Stats {
    procedures: [ProcedureStats; Procedure::COUNT],
    /// Bytes returned by READ.
    pub bytes_read: AtomicU64,
    /// Bytes taken by WRITE.
    pub bytes_written: AtomicU64,
    /// Requests that went to a worker and are not answered yet.
    pub deferred: AtomicU64,
    /// Workers at a request now.
    pub busy: AtomicU64,
    /// Requests answered with NFS3ERR_JUKEBOX because too many waited for a worker.
    pub rejected: AtomicU64,
    /// Replies of clients to no call-back: they are dropped.
    pub stray_replies: AtomicU64,
}

impl Stats {
    /// Returns the counters of one procedure.
    pub fn procedure(&self, procedure: Procedure) -> &ProcedureStats {
        &self.procedures[procedure as usize]
    }

    pub(crate) fn answered(&self, procedure: Procedure, took: Duration, failed: bool) {
        let stats = self.procedure(procedure);
        stats.latency.record(took);
        if failed {
            stats.errors.fetch_add(1, Ordering::Relaxed);
        }
    }
}
