//! Refused clients of NBD, reported to the administrator at a limited rate.

use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

use forebay_rpc::{CloseReason, Reported};

/// The reason why a client was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// Its address has as many connections as one address may have.
    Crowded,
    /// The door has as many connections as it may have, and all of them use a volume.
    Full,
}

/// A function called for a refusal that is worth an event, with the reason and the client's address. Clients of Unix
/// sockets have none.
pub type Tell = Box<dyn Fn(Refusal, Option<IpAddr>) + Send + Sync>;

/// The receiver of refusals.
pub(crate) struct Refusals {
    reported: Reported,
    tell: Tell,
}

impl Refusals {
    pub(crate) fn new(tell: Tell) -> Self {
        Self { reported: Reported::default(), tell }
    }

    /// Tells of a refused connection, unless its address was reported lately.
    pub(crate) fn add(&self, from: SocketAddr, reason: CloseReason) {
        let why = match reason {
            CloseReason::Crowded => Refusal::Crowded,
            _ => Refusal::Full,
        };
        if self.reported.is_due(from.ip(), Instant::now()) {
            // Only clients of Unix sockets have the unspecified address.
            (self.tell)(why, Some(from.ip()).filter(|address| !address.is_unspecified()));
        }
    }
}
