//! The lease of a client, which each of its sessions renews without touching any other state.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};

use crate::Now;

/// A renewal less than this time in nanoseconds after the last one changes nothing: each request renews twice, and
/// requests of one client may come from several threads.
const GRAIN: u64 = 1_000_000;

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
    /// Bytes of kept replies, of all sessions.
    pub(crate) kept: AtomicU64,
}

impl Lease {
    pub(crate) fn new(now: Now) -> Self {
        Lease { renewed: now.into(), ..Lease::default() }
    }

    /// Renews the lease at `now`, to within [`GRAIN`].
    pub(crate) fn renew(&self, now: Now) {
        if now.saturating_sub(self.renewed()) >= GRAIN {
            self.renewed.fetch_max(now, Relaxed);
        }
    }

    /// Returns the time of the last renewal.
    pub fn renewed(&self) -> Now {
        self.renewed.load(Relaxed)
    }

    pub(crate) fn is_expired(&self, now: Now, lease: u64) -> bool {
        now.saturating_sub(self.renewed()) > lease + GRAIN
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_lease_ends_earlier_than_its_time_after_any_renewal() {
        let lease = Lease::new(0);
        let renewals = [GRAIN - 1, GRAIN, GRAIN + 1, 2 * GRAIN - 1, 2 * GRAIN, 5 * GRAIN];
        for now in renewals {
            lease.renew(now);
            assert!(lease.renewed() <= now && now - lease.renewed() < GRAIN, "{now}");
            assert!(!lease.is_expired(now + 90 * GRAIN, 90 * GRAIN), "{now}");
        }
        assert!(lease.is_expired(5 * GRAIN + 91 * GRAIN + 1, 90 * GRAIN));
    }
}
