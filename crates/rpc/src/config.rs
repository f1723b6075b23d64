//! What the transport may use, and how long it waits.

use std::time::Duration;

/// Limits and timings of a [`Server`](crate::Server).
#[derive(Debug, Clone)]
pub struct Config {
    /// Event-loop threads; 0 = one per core.
    pub threads: usize,
    /// Longest record accepted, in bytes, record marks not counted; a longer one closes its connection.
    pub max_record: usize,
    /// Connections served at once; beyond it the longest idle one makes room, or the new one is refused.
    pub max_connections: usize,
    /// Bytes that buffers of all connections may hold together. At the limit, connections stop being read;
    /// what requests already accepted append to their reply heads, and small payloads, may go beyond it. At
    /// least four records of `max_record` bytes are allowed whatever is set here.
    pub memory: usize,
    /// Bytes one connection may hold in unanswered requests and unsent replies before it stops being read.
    pub conn_memory: usize,
    /// Deferred requests one connection may have unanswered before it stops being read.
    pub max_inflight: usize,
    /// A connection without any request for this long is closed; `None` keeps it for ever.
    pub idle_timeout: Option<Duration>,
    /// A connection is closed when a record begun does not go on, or queued replies are not read, this long.
    /// Each 64 KiB moved starts the time again. While memory is short an eighth of it is enough.
    pub stall_timeout: Duration,
    /// How long a loop polls after work before it sleeps. Spinning that does not pay stops by itself.
    pub busy_poll: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            threads: 0,
            max_record: (1 << 20) + (64 << 10),
            max_connections: 16_384,
            memory: 1 << 30,
            conn_memory: 64 << 20,
            max_inflight: 256,
            idle_timeout: Some(Duration::from_secs(15 * 60)),
            stall_timeout: Duration::from_secs(30),
            busy_poll: Duration::from_micros(50),
        }
    }
}

impl Config {
    /// Event-loop threads after `0 = one per core` is resolved.
    pub(crate) fn loops(&self) -> usize {
        match self.threads {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            n => n,
        }
    }
}
