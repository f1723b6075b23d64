//! Counters, relaxed atomics that any thread may read while the server runs.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The reason why a connection ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub enum CloseReason {
    /// The peer closed it, and every request was answered.
    PeerClosed,
    /// The socket failed: reset by the peer, timed out, unreachable.
    SocketError,
    /// A record longer than `max_record` was announced.
    RecordTooLong,
    /// A record without any bytes, which no client sends.
    EmptyRecord,
    /// A record was begun and did not go on within `stall_timeout`.
    StalledInput,
    /// Replies were not read within `stall_timeout`.
    StalledOutput,
    /// No request within `idle_timeout`.
    Idle,
    /// An idle connection, closed to make room for a new one.
    Evicted,
    /// `max_connections` reached and nothing idle, or refused by the service.
    Refused,
    /// The connection came from an address whose clients may use no part of the service.
    Stranger,
    /// Its address has as many connections as one address may have.
    Crowded,
    /// The service answered `Handled::Close`.
    Service,
    /// The server is shutting down.
    Shutdown,
    /// A TLS handshake failed or took too long, or a sealed record was not valid.
    Tls,
    /// The connection needed new keys of TLS, which the kernel does not make. Clients connect again.
    KeysUsedUp,
}

impl CloseReason {
    /// All reasons, in the order of [`Stats::closed`].
    pub const ALL: [Self; 15] = [
        Self::PeerClosed,
        Self::SocketError,
        Self::RecordTooLong,
        Self::EmptyRecord,
        Self::StalledInput,
        Self::StalledOutput,
        Self::Idle,
        Self::Evicted,
        Self::Refused,
        Self::Stranger,
        Self::Crowded,
        Self::Service,
        Self::Shutdown,
        Self::Tls,
        Self::KeysUsedUp,
    ];

    /// Returns a few words for logs and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::PeerClosed => "closed by the peer",
            Self::SocketError => "socket error",
            Self::RecordTooLong => "record longer than the limit",
            Self::EmptyRecord => "empty record",
            Self::StalledInput => "record begun and not continued",
            Self::StalledOutput => "replies not read",
            Self::Idle => "idle",
            Self::Evicted => "idle, closed to make room",
            Self::Refused => "refused",
            Self::Stranger => "refused: no export is open to this address",
            Self::Crowded => "refused: this address has too many connections",
            Self::Service => "closed by the service",
            Self::Shutdown => "server shutting down",
            Self::Tls => "TLS failed",
            Self::KeysUsedUp => "new keys of TLS were due",
        }
    }
}

/// Counters of one event loop; on its own cache lines, since workers add to it too.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct LoopStats {
    pub(crate) accepted: AtomicU64,
    pub(crate) connections: AtomicU64,
    pub(crate) encrypted: AtomicU64,
    pub(crate) encrypted_in_kernel: AtomicU64,
    pub(crate) records: AtomicU64,
    pub(crate) deferred: AtomicU64,
    pub(crate) bytes_in: AtomicU64,
    pub(crate) bytes_out: AtomicU64,
    pub(crate) sends: AtomicU64,
    pub(crate) wakeups: AtomicU64,
    pub(crate) pauses: AtomicU64,
    pub(crate) held_back: AtomicU64,
    pub(crate) closed: [AtomicU64; CloseReason::ALL.len()],
}

/// A reading of the server's counters, summed over its loops.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Stats {
    /// Connections accepted since the start, those refused included.
    pub accepted: u64,
    /// Connections open now.
    pub connections: u64,
    /// Connections open now whose TLS handshake is complete.
    pub encrypted: u64,
    /// Those of them whose records the kernel seals and opens.
    pub encrypted_in_kernel: u64,
    /// Complete records delivered to the service.
    pub records: u64,
    /// Records the service took off the loop.
    pub deferred: u64,
    /// Bytes received, record marks included.
    pub bytes_in: u64,
    /// Bytes the sockets took, record marks included.
    pub bytes_out: u64,
    /// Times replies were handed to a socket; one may carry many.
    pub sends: u64,
    /// Times a loop came back from waiting with something to do.
    pub wakeups: u64,
    /// Times a connection stopped being read because a limit was reached.
    pub pauses: u64,
    /// How often a connection was not read because its address had too many requests in flight beside another one.
    pub held_back: u64,
    /// Bytes of buffers in use now.
    pub memory: u64,
    /// Connections closed, by reason, in the order of [`CloseReason::ALL`].
    pub closed: [u64; CloseReason::ALL.len()],
}

impl Stats {
    /// Returns the number of connections closed for `reason` since the start.
    pub fn closed_for(&self, reason: CloseReason) -> u64 {
        self.closed[reason as usize]
    }

    /// Adds the counters of one event loop, so that `self` becomes the sum of all loops.
    pub(crate) fn add(&mut self, from: &LoopStats) {
        self.accepted += from.accepted.load(Relaxed);
        self.connections += from.connections.load(Relaxed);
        self.encrypted += from.encrypted.load(Relaxed);
        self.encrypted_in_kernel += from.encrypted_in_kernel.load(Relaxed);
        self.records += from.records.load(Relaxed);
        self.deferred += from.deferred.load(Relaxed);
        self.bytes_in += from.bytes_in.load(Relaxed);
        self.bytes_out += from.bytes_out.load(Relaxed);
        self.sends += from.sends.load(Relaxed);
        self.wakeups += from.wakeups.load(Relaxed);
        self.pauses += from.pauses.load(Relaxed);
        self.held_back += from.held_back.load(Relaxed);
        for (sum, one) in self.closed.iter_mut().zip(&from.closed) {
            *sum += one.load(Relaxed);
        }
    }
}
