//! The end of connections: by themselves, when they are overdue, or to make room for others.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use rustix::event::epoll;

use super::EventLoop;
use crate::conn::Conn;
use crate::drive::Wire;
use crate::outlet::Outlet;
use crate::service::{Replies, Service};
use crate::shares::CLOSING;
use crate::stats::CloseReason;

/// The divisor of the tolerated stall time while connections wait for memory that other connections hold.
const PRESSED: u32 = 8;
/// The number of overdue connections closed before the served connections get their turn.
const CLOSED_AT_ONCE: usize = 8;
/// The idle time below which a connection is not closed to make room.
const EVICTABLE: Duration = Duration::from_secs(1);

impl<S: Service> EventLoop<S> {
    /// Closes a connection now. Replies that are not sent yet are lost, and the service learns if the peer may lack
    /// some.
    pub(super) fn close(&mut self, token: u64, reason: CloseReason) {
        let Some(conn) = self.conns.remove(token) else { return };
        let link = &conn.link;
        let admission = &link.account().admission;
        if conn.held_back {
            admission.forget(&self.io.home, token);
        }
        admission.resume(1);
        self.shares.charge(conn.address(), CLOSING);
        link.end_session();
        // The last descriptor of a socket leaves the epoll set when it is closed.
        if Arc::strong_count(link) > 1 {
            let _ = epoll::delete(&self.epoll, link.fd());
            link.close();
        } else {
            // A call-back that begins now finds the connection ended, or is ended by `disconnected`.
            link.with_outlet(Outlet::close);
        }
        let replies = if conn.received { Replies::Received } else { Replies::Unsure };
        self.io.service.disconnected(link.peer(), replies);
        self.io.home.load.fetch_sub(1, Relaxed);
        self.io.home.stats.connections.fetch_sub(1, Relaxed);
        self.closings.log(link.peer(), reason, conn.fault.as_deref(), self.io.now);
        self.io.home.stats.closed[reason as usize].fetch_add(1, Relaxed);
    }

    /// Closes all connections now, because the time for a shutdown has passed.
    pub(super) fn close_all(&mut self) {
        let tokens: Vec<_> = self.conns.iter_mut().map(|(token, _)| token).collect();
        tokens.into_iter().for_each(|token| self.close(token, CloseReason::Shutdown));
    }

    /// Closes a connection to make room for one of an address that then has `connections`. Chooses the one idle for
    /// longest of an address that has as many. Otherwise chooses a connection that only ever sent parts of records, of
    /// an address that has more. Returns false if there is none. So an address with many connections takes no place
    /// from one with few.
    pub(super) fn evict(&mut self, connections: usize) -> bool {
        let now = self.io.now;
        let idle = |conn: &Conn| {
            conn.quiet() && !conn.is_settled() && now.duration_since(conn.last_active) >= EVICTABLE
        };
        let quiet =
            self.conns.iter_mut().filter(|(_, conn)| conn.link.connections() >= connections && idle(conn));
        let mut found = quiet.min_by_key(|(_, conn)| conn.last_active).map(|(token, _)| token);
        if found.is_none() {
            let useless = self.conns.iter_mut().filter_map(|(token, conn)| {
                let since = conn.without_request(now).filter(|since| *since >= EVICTABLE)?;
                (conn.link.connections() > connections).then_some((token, since))
            });
            found = useless.max_by_key(|(_, since)| *since).map(|(token, _)| token);
        }
        let Some(token) = found else { return false };
        self.close(token, CloseReason::Evicted);
        true
    }

    /// Finds the connections that have been idle or stalled for too long. Later rounds close them, a few at a time.
    /// One loop also returns unneeded buffers to the system.
    pub(super) fn sweep(&mut self) {
        let (bounds, now, patience) = (&self.io.bounds, self.io.now, self.patience());
        let conns = self.conns.iter_mut();
        let overdue = conns.filter_map(|(token, conn)| conn.overdue(bounds, patience, now).map(|_| token));
        self.overdue = overdue.collect();
        // Only one loop trims the pool: with several, buffers would seem unneeded too soon.
        if self.acceptor.is_some() {
            self.io.pool.trim();
        }
        self.next_sweep = now + self.sweep_interval();
    }

    /// Closes some of the overdue connections; the loop returns for the remaining ones at once.
    pub(super) fn close_overdue(&mut self) {
        for _ in 0..CLOSED_AT_ONCE {
            let Some(token) = self.overdue.pop_front() else { return };
            let (patience, now) = (self.patience(), self.io.now);
            let conn = self.conns.get_mut(token);
            if let Some(reason) = conn.and_then(|conn| conn.overdue(&self.io.bounds, patience, now)) {
                self.close(token, reason);
            }
        }
    }

    /// Returns how long a stalled transfer is tolerated.
    pub(super) fn patience(&self) -> Duration {
        let stall = self.io.bounds.stall_timeout();
        if self.starved.is_empty() { stall } else { stall / PRESSED }
    }

    /// Returns a quarter of the shortest timeout: an overdue connection is closed at most this much late.
    pub(super) fn sweep_interval(&self) -> Duration {
        let shortest =
            self.io.bounds.idle_timeout().map_or(self.patience(), |idle| idle.min(self.patience()));
        (shortest / 4).max(Duration::from_millis(1))
    }
}
