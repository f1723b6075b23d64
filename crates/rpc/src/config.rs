//! The limits and timeouts of the transport.

use std::sync::Arc;
use std::time::Duration;

use forebay_tls::Keyring;

/// Limits and timings of a [`Server`](crate::Server).
#[derive(Debug, Clone)]
pub struct Config {
    /// Event-loop threads; 0 = one per core.
    pub threads: usize,
    /// Longest record accepted, in bytes without record marks; a longer record closes its connection.
    pub max_record: usize,
    /// Connections served at once. Beyond this number the longest idle one makes room, or the new one is refused.
    pub max_connections: usize,
    /// Bytes that the buffers of all connections may hold together. At the limit, connections stop being read. Reply
    /// heads and small payloads of requests already accepted may exceed the limit. At least four records of
    /// `max_record` bytes are allowed, whatever the setting.
    pub memory: usize,
    /// Bytes one connection may hold in unanswered requests and unsent replies before it stops being read.
    pub conn_memory: usize,
    /// Deferred requests one connection may have unanswered before it stops being read.
    pub max_inflight: usize,
    /// The most deferred requests that all addresses together may have unanswered while an address with fewer is
    /// active, without those of that address. The server finds the number up to this one. An address may have as many
    /// as the address with the fewest, also if that is more. 0 bounds nothing.
    pub shared_inflight: usize,
    /// A connection without any request for this long is closed; `None` keeps it for ever.
    pub idle_timeout: Option<Duration>,
    /// A connection is closed if an incomplete record does not continue, or queued replies are not read, for this long.
    /// Each 64 KiB moved restarts the time. While memory is short, an eighth of the time is the limit.
    pub stall_timeout: Duration,
    /// The time that a loop polls after work before it sleeps. Spinning without benefit stops by itself.
    pub busy_poll: Duration,
    /// The server's certificate, which may be replaced in service; `None` serves no TLS. The time for a handshake is
    /// `stall_timeout`, and so is the time for the negotiation of a connection with a [`Session`](crate::Session).
    pub tls: Option<Arc<Keyring>>,
    /// True if the kernel gets the keys of TLS where it takes them, and seals and opens the records.
    pub kernel_tls: bool,
    /// The number of records that the kernel sends with one key, if the cipher bears no fewer. Then the connection is
    /// closed, and the client makes another one.
    pub kernel_tls_records: u64,
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
            shared_inflight: 65_536,
            idle_timeout: Some(Duration::from_secs(15 * 60)),
            stall_timeout: Duration::from_secs(30),
            busy_poll: Duration::from_micros(50),
            tls: None,
            kernel_tls: true,
            kernel_tls_records: u64::MAX,
        }
    }
}

impl Config {
    /// Returns the number of event-loop threads after `0 = one per core` is resolved.
    pub(crate) fn loops(&self) -> usize {
        match self.threads {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            n => n,
        }
    }
}
