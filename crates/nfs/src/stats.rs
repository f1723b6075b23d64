//! The counters of the service: per procedure, per operation of NFSv4, and in bytes.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use forebay_common::metrics::Recorder;
use forebay_wire::nfs3::Procedure;
use forebay_wire::nfs4::Opcode;

/// Counters of one procedure.
#[derive(Default)]
pub struct ProcedureStats {
    /// Latency from the arrival of the record to the reply, which waits until the result is durable where required.
    pub latency: Recorder,
    /// Replies with a status other than NFS3_OK.
    pub errors: AtomicU64,
}

/// The operations of NFSv4 by their numbers. ILLEGAL has the last place.
pub(crate) const OPERATIONS: usize = 77;

/// Counters of the operations of NFSv4.
struct Operations([ProcedureStats; OPERATIONS]);

impl Default for Operations {
    fn default() -> Self {
        Operations(std::array::from_fn(|_| ProcedureStats::default()))
    }
}

/// Counters since start.
#[derive(Default)]
pub struct Stats {
    procedures: [ProcedureStats; Procedure::COUNT],
    operations: Operations,
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

    /// Returns the counters of one operation of NFSv4. The latency of an operation begins with the end of the operation
    /// before it, or with the arrival of the COMPOUND. The last change of a COMPOUND ends with the reply.
    pub fn operation(&self, operation: Opcode) -> &ProcedureStats {
        &self.operations.0[(operation as usize).min(OPERATIONS - 1)]
    }

    pub(crate) fn answered(&self, procedure: Procedure, took: Duration, failed: bool) {
        self.procedure(procedure).add(took, failed);
    }

    #[inline]
    pub(crate) fn executed(&self, operation: Opcode, took: Duration, failed: bool) {
        self.operation(operation).add(took, failed);
    }
}

impl ProcedureStats {
    /// Counts one answered request, with the time that it took and its failure.
    fn add(&self, took: Duration, failed: bool) {
        self.latency.record(took);
        if failed {
            self.errors.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_operation_has_a_place_of_its_own() {
        let stats = Stats::default();
        for (before, operation) in Opcode::ALL.iter().enumerate() {
            assert_eq!(stats.operation(*operation).latency.snapshot().count(), 0, "{}", operation.name());
            stats.executed(*operation, Duration::from_millis(1), before % 2 == 0);
            assert_eq!(stats.operation(*operation).errors.load(Ordering::Relaxed), (before as u64 + 1) % 2);
        }
    }
}
