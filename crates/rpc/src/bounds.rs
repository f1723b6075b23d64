//! The limits that may change while the server runs.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use crate::config::Config;
use crate::pool::Pool;

/// The limits of a running server that change in service. Every loop reads them at each use.
///
/// A lower limit ends no request and no connection. Connections beyond a lower number stay until they become idle and a
/// new one needs their place; memory beyond a lower limit comes back with the replies that hold it.
pub struct Bounds {
    pool: Arc<Pool>,
    max_record: usize,
    max_connections: AtomicUsize,
    conn_memory: AtomicUsize,
    max_inflight: AtomicUsize,
    shared_inflight: AtomicUsize,
    /// Nanoseconds; 0 keeps idle connections for ever.
    idle_timeout: AtomicU64,
    /// Nanoseconds.
    stall_timeout: AtomicU64,
}

impl Bounds {
    /// Returns the limits of a server at its start, with the pool of its buffers.
    pub(crate) fn new(config: &Config) -> Arc<Self> {
        let bounds = Bounds {
            pool: Pool::new(config.max_record, 0),
            max_record: config.max_record,
            max_connections: AtomicUsize::new(0),
            conn_memory: AtomicUsize::new(0),
            max_inflight: AtomicUsize::new(0),
            shared_inflight: AtomicUsize::new(0),
            idle_timeout: AtomicU64::new(0),
            stall_timeout: AtomicU64::new(0),
        };
        bounds.set(config);
        Arc::new(bounds)
    }

    /// Puts the limits of `config` in force: `max_connections`, `memory`, `conn_memory`, `max_inflight`,
    /// `shared_inflight` and the two timeouts. The other fields are those of the start.
    pub fn set(&self, config: &Config) {
        self.pool.set_limit(config.memory.max(4 * self.max_record));
        self.max_connections.store(config.max_connections, Relaxed);
        self.conn_memory.store(config.conn_memory, Relaxed);
        self.max_inflight.store(config.max_inflight, Relaxed);
        self.shared_inflight.store(config.shared_inflight, Relaxed);
        self.idle_timeout.store(config.idle_timeout.map_or(0, nanos), Relaxed);
        self.stall_timeout.store(nanos(config.stall_timeout), Relaxed);
    }

    pub(crate) fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    pub(crate) fn max_connections(&self) -> usize {
        self.max_connections.load(Relaxed)
    }

    pub(crate) fn conn_memory(&self) -> usize {
        self.conn_memory.load(Relaxed)
    }

    pub(crate) fn max_inflight(&self) -> usize {
        self.max_inflight.load(Relaxed)
    }

    pub(crate) fn shared_inflight(&self) -> usize {
        self.shared_inflight.load(Relaxed)
    }

    /// Returns the time after which an idle connection is closed; `None` keeps it for ever.
    pub(crate) fn idle_timeout(&self) -> Option<Duration> {
        let nanos = self.idle_timeout.load(Relaxed);
        (nanos > 0).then(|| Duration::from_nanos(nanos))
    }

    pub(crate) fn stall_timeout(&self) -> Duration {
        Duration::from_nanos(self.stall_timeout.load(Relaxed))
    }
}

/// Returns a duration in nanoseconds, at least 1 and at most 584 years.
fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX).max(1)
}
