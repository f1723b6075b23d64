//! Bounds on memory and times.

use crate::SECOND;

/// The longest reply that a slot keeps and a record holds, in bytes. A record of the cache's log has 4,000 bytes.
pub const REPLY_MAX: usize = 3_900;

/// Replies up to this length, in bytes, are kept although the client did not ask for it.
pub const SMALL_REPLY: usize = 256;

/// Bounds on memory and times. At a bound on numbers, expired clients lose their state first. Then the request gets
/// [`Delay`](crate::Error::Delay), or the error named below. A request of NLM gets `DeniedNoLocks`.
#[derive(Clone, Debug)]
pub struct Limits {
    /// The time without a request after which a client is expired, in nanoseconds.
    pub lease: u64,
    /// The time that an expired client keeps state without a conflict, in nanoseconds.
    pub courtesy: u64,
    /// Client records.
    pub clients: usize,
    /// Sessions of a client; a further CREATE_SESSION gets `Nospc`.
    pub sessions_per_client: usize,
    /// Connections of a session that the server remembers; a further one replaces the oldest.
    pub connections_per_session: usize,
    /// Slots of a session.
    pub slots: u32,
    /// Slots of all sessions. When they are granted, a further session gets `slots_under_pressure`; when there is no
    /// room for these, and no client is expired, it gets `Nospc`.
    pub total_slots: u32,
    /// Slots of a session whose client keeps many bytes of replies.
    pub slots_under_pressure: u32,
    /// The longest request and reply of a channel, in bytes.
    pub message: u32,
    /// The longest reply that a slot keeps, in bytes; at most [`REPLY_MAX`].
    pub cached_reply: u32,
    /// Bytes of the kept replies of all sessions. A client gets further ones while it has fewer than there is room for.
    /// Before that it is asked for fewer slots. The first slot of each session is not bounded by this.
    pub kept_replies: u64,
    /// Operations of a request.
    pub operations: u32,
    /// Opens, lock states and delegations of all clients. A client gets a further one while it has fewer than there is
    /// room for.
    pub states: usize,
    /// Byte-range locks of all owners. A client or NLM host gets a further one while it has fewer than there is room
    /// for.
    pub locks: usize,
    /// NLM hosts.
    pub hosts: usize,
    /// Byte-range locks of an NLM host. One address has at most 64 hosts, so it cannot reach `locks`.
    pub locks_per_host: u32,
    /// Shares of NLM hosts.
    pub shares: usize,
    /// Shares of an NLM host.
    pub shares_per_host: u32,
    /// Blocked requests for locks, and grants that are not acknowledged. A client or NLM host gets a further one while
    /// it has fewer than there is room for.
    pub waiters: usize,
    /// Blocked requests of an NLM host.
    pub waiters_per_host: u32,
    /// Blocked requests for locks of one file.
    pub waiters_per_file: usize,
    /// Delegations of all clients. A client gets a further one while it has fewer than there is room for. So one client
    /// holds at most half of them.
    pub delegations: usize,
    /// Copies that go on after the reply to their COPY, of all clients. At the bound a COPY is synchronous.
    pub copies: usize,
    /// The share of `copies` that one client may have.
    pub copies_per_client: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            lease: 90 * SECOND,
            courtesy: 24 * 3600 * SECOND,
            clients: 20_000,
            sessions_per_client: 16,
            connections_per_session: 64,
            slots: 1024,
            total_slots: 1 << 20,
            slots_under_pressure: 16,
            message: 2 << 20,
            cached_reply: REPLY_MAX as u32,
            kept_replies: 256 << 20,
            operations: 64,
            // A million opens and a million lock states, and room for one client more.
            states: 2_500_000,
            locks: 2_000_000,
            hosts: 20_000,
            locks_per_host: 20_000,
            shares: 1_000_000,
            shares_per_host: 10_000,
            waiters: 100_000,
            waiters_per_host: 1_000,
            waiters_per_file: 1_000,
            delegations: 200_000,
            copies: 64,
            copies_per_client: 8,
        }
    }
}
