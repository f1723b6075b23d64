//! The time that a connection may take.

use std::time::{Duration, Instant};

use super::Conn;
use crate::bounds::Bounds;
use crate::drive::Wire;
use crate::stats::CloseReason;

/// The time for a record from its first byte to its last, in multiples of the stall timeout.
const RECORD: u32 = 4;

impl Conn {
    /// Returns true if nothing is in progress in either direction, and no request waits for the rate of its address or
    /// for its other requests.
    pub(crate) fn quiet(&self) -> bool {
        !self.delayed
            && !self.held_back
            && self.backlog.is_none()
            && !self.is_within_record()
            && self.link.inflight() == 0
            && self.link.with_outlet(|outlet| outlet.bytes()) == 0
    }

    /// Returns the time since the last request if nothing except a part of a record is in progress.
    pub(crate) fn without_request(&self, now: Instant) -> Option<Duration> {
        let nothing = self.link.inflight() == 0 && self.link.with_outlet(|outlet| outlet.bytes()) == 0;
        (nothing && !self.is_settled()).then(|| now.duration_since(self.last_record))
    }

    /// Returns the reason to close a connection that has exceeded a timeout. `patience` is the tolerated length of a
    /// stall.
    pub(crate) fn overdue(
        &mut self,
        bounds: &Bounds,
        patience: Duration,
        now: Instant,
    ) -> Option<CloseReason> {
        if self.handshake.as_ref().is_some_and(|handshake| now.duration_since(handshake.begun) >= patience) {
            self.fault = Some("the peer did not finish the handshake in time".to_owned());
            return Some(CloseReason::Tls);
        }
        let (bytes, written) = self.link.with_outlet(|outlet| (outlet.bytes(), outlet.written()));
        if bytes == 0 {
            self.output.restart(now);
        }
        self.output.moved(written, false, now);
        if self.output.stalled(patience, now) {
            return Some(CloseReason::StalledOutput);
        }
        // With a backlog or unused readiness, the delay is the server's, not the client's.
        if !self.is_within_record() || self.backlog.is_some() || self.readable {
            self.input.restart(now);
            self.begun = self.begun.map(|_| now);
        }
        let late = self.begun.is_some_and(|begun| now.duration_since(begun) >= RECORD * patience);
        if late || self.input.stalled(patience, now) {
            return Some(CloseReason::StalledInput);
        }
        if let Some(opened) = self.link.opened() {
            let late = !self.is_settled() && now.duration_since(opened) >= patience;
            return late.then_some(CloseReason::Idle);
        }
        let idle = bounds.idle_timeout().is_some_and(|limit| now.duration_since(self.last_active) >= limit);
        (idle && self.quiet()).then_some(CloseReason::Idle)
    }
}
