//! Says in the process's log which connections were closed, and no more often than a log can bear: clients decide how many those are.

use std::time::{Duration, Instant};

use crate::service::Peer;
use crate::stats::CloseReason;

/// At most one warning in this time.
const EVERY: Duration = Duration::from_secs(10);

/// The warnings of one event loop about closed connections.
#[derive(Default)]
pub(crate) struct Closings {
    warned: Option<Instant>,
    /// Warnings left out since.
    more: u64,
}

impl Closings {
    /// Logs that a connection is closed at `now`. A reason that says something of the client or the server is a warning, others
    /// and the warnings too many are for debugging.
    pub(crate) fn log(&mut self, peer: &Peer, reason: CloseReason, now: Instant) {
        use CloseReason::{Idle, PeerClosed, Shutdown, SocketError};
        let (client, connection) = (peer.addr, peer.id);
        let ordinary = matches!(reason, PeerClosed | Idle | Shutdown | SocketError);
        match if ordinary { None } else { self.warn(now) } {
            None => tracing::debug!(%client, connection, "connection closed: {}", reason.as_str()),
            Some(0) => tracing::warn!(%client, connection, "connection closed: {}", reason.as_str()),
            Some(more) => tracing::warn!(
                %client,
                connection,
                "connection closed: {}; {more} more were closed since the last such message",
                reason.as_str()
            ),
        }
    }

    /// Returns how many warnings were left out if there may be one at `now`.
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
