//! Logs closed connections at a limited rate, because clients decide the number of closed connections.

use std::time::{Duration, Instant};

use crate::service::Peer;
use crate::stats::CloseReason;

/// The time in which at most one warning is logged.
const EVERY: Duration = Duration::from_secs(10);

/// The warnings of one event loop about closed connections.
#[derive(Default)]
pub(crate) struct Closings {
    warned: Option<Instant>,
    /// Warnings left out since the last one.
    more: u64,
}

impl Closings {
    /// Logs that a connection is closed at `now`. The level is warning if the reason indicates a fault of the client or
    /// the server, and the rate allows a warning. Otherwise the level is debug. `fault` is
    /// the cause in words, if the reason alone does not say it.
    pub(crate) fn log(&mut self, peer: &Peer, reason: CloseReason, fault: Option<&str>, now: Instant) {
        use CloseReason::{Idle, KeysUsedUp, PeerClosed, Shutdown, SocketError};
        let (client, connection) = (peer.addr, peer.id);
        let ordinary = matches!(reason, PeerClosed | Idle | Shutdown | SocketError | KeysUsedUp);
        let why = fault.map_or(reason.as_str().to_owned(), |fault| format!("{}: {fault}", reason.as_str()));
        match if ordinary { None } else { self.warn(now) } {
            None => tracing::debug!(%client, connection, "connection closed: {why}"),
            Some(0) => tracing::warn!(%client, connection, "connection closed: {why}"),
            Some(more) => tracing::warn!(
                %client,
                connection,
                "connection closed: {why}; {more} more were closed since the last such message",
            ),
        }
    }

    /// Returns the number of warnings left out if a warning is allowed at `now`.
    fn warn(&mut self, now: Instant) -> Option<u64> {
        if self.warned.is_some_and(|at| now.duration_since(at) < EVERY) {
            self.more += 1;
            return None;
        }
        self.warned = Some(now);
        Some(std::mem::take(&mut self.more))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_that_is_closed_again_and_again_fills_no_log() {
        let (mut closings, begun) = (Closings::default(), Instant::now());
        let minute = (0..60_000).filter_map(|ms| closings.warn(begun + Duration::from_millis(ms)));
        assert_eq!(minute.collect::<Vec<_>>(), [0, 9999, 9999, 9999, 9999, 9999]);
    }
}
