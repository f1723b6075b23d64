//! The lease of a client, which each of its sessions renews without touching any other state.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};

use crate::Now;

/// The lease and the alarms of a client. SEQUENCE reads and writes this alone, besides its session.
#[derive(Debug, Default)]
pub struct Lease {
    renewed: AtomicU64,
    /// True when the client's record is gone; its sessions then answer `BadSession`.
    gone: AtomicBool,
    /// Back channels that work, of all sessions.
    pub(crate) back_channels: AtomicU32,
    /// Delegations that were revoked, and that the client has not freed yet.
    pub(crate) revoked_delegations: AtomicU32,
    /// Opens and locks that an administrator has revoked, and that the client has not freed yet.
    pub(crate) admin_revoked: AtomicU32,
}

impl Lease {
    pub(crate) fn new(now: Now) -> Self {
        Lease { renewed: now.into(), ..Lease::default() }
    }

    pub(crate) fn renew(&self, now: Now) {
        self.renewed.fetch_max(now, Relaxed);
    }

    /// Returns the time of the last renewal.
    pub fn renewed(&self) -> Now {
        self.renewed.load(Relaxed)
    }

    pub(crate) fn is_expired(&self, now: Now, lease: u64) -> bool {
        now.saturating_sub(self.renewed()) > lease
    }

    pub(crate) fn end(&self) {
        self.gone.store(true, Relaxed);
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.gone.load(Relaxed)
    }

    /// Returns true if call-backs can reach the client.
    pub fn has_back_channel(&self) -> bool {
        self.back_channels.load(Relaxed) > 0
    }
}
