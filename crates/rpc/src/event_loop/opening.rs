//! The beginning of connections: listening, accepting, and taking over an accepted socket.

use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{Shutdown, shutdown};

use super::{EventLoop, LISTEN};
use crate::accept::Door;
use crate::addresses::Seat;
use crate::conn::Conn;
use crate::link::{Link, Negotiated};
use crate::service::{Peer, Service};
use crate::shares::OPENING;
use crate::stats::CloseReason;

impl<S: Service> EventLoop<S> {
    /// Starts serving an accepted socket.
    pub(super) fn adopt(&mut self, fd: OwnedFd, peer: Arc<Peer>, seat: Seat, evict: bool) {
        self.io.home.stats.accepted.fetch_add(1, Relaxed);
        self.shares.charge(peer.addr.ip(), OPENING);
        let is_full = |this: &mut Self| evict && !this.evict(seat.connections());
        let refused = if self.deadline.is_some() {
            Some(CloseReason::Shutdown)
        } else {
            (is_full(self) || !self.io.service.connected(&peer)).then_some(CloseReason::Refused)
        };
        if let Some(reason) = refused {
            let _ = shutdown(&fd, Shutdown::Both);
            self.io.home.load.fetch_sub(1, Relaxed);
            self.io.home.stats.closed[reason as usize].fetch_add(1, Relaxed);
            self.closings.log(&peer, reason, None, self.io.now);
            if reason == CloseReason::Refused {
                self.io.service.refused(peer.addr, reason);
            }
            return;
        }
        if self.conns.len() == 0 {
            // No sweep ran while no client was connected.
            self.next_sweep = self.io.now + self.sweep_interval();
        }
        let (home, now) = (&self.io.home, self.io.now);
        let session = self.io.service.session(&peer);
        let greeting = session.as_ref().map(|session| session.greeting()).unwrap_or_default();
        let session = session.map(|session| Box::new(Negotiated { session, opened: now }));
        let token = self.conns.insert_with(|token| {
            let link = Link::new(fd, peer, token, Arc::clone(home), seat, session);
            Conn::new(link, now)
        });
        home.stats.connections.fetch_add(1, Relaxed);
        let Some(conn) = self.conns.get_mut(token) else { return };
        if !greeting.is_empty() {
            conn.link.send_unsealed(greeting);
        }
        let flags = EventFlags::IN | EventFlags::RDHUP | EventFlags::OUT | EventFlags::ET;
        if epoll::add(&self.epoll, conn.link.fd(), EventData::new_u64(token), flags).is_err() {
            self.close(token, CloseReason::SocketError);
        }
    }

    /// Accepts the connections that wait. Stops watching the listening sockets if the acceptor has to pause, for lack
    /// of descriptors for example.
    pub(super) fn accept(&mut self) {
        let (service, stats) = (&self.io.service, &self.io.home.stats);
        let refused = |from: SocketAddr, reason: CloseReason| {
            stats.accepted.fetch_add(1, Relaxed);
            stats.closed[reason as usize].fetch_add(1, Relaxed);
            tracing::debug!(client = %from, "connection {}", reason.as_str());
            service.refused(from, reason);
        };
        let door = Door { admits: &|address| service.admits(address), refused: &refused };
        if let Some(acceptor) = &mut self.acceptor
            && !acceptor.accept(self.io.now, &door)
        {
            for socket in acceptor.sockets() {
                let _ = epoll::delete(&self.epoll, socket);
            }
        }
    }

    /// Watches the listening sockets for connections. Calling this again while they are watched does no harm.
    pub(super) fn listen(&mut self) -> Result<(), Errno> {
        for socket in self.acceptor.iter().flat_map(|acceptor| acceptor.sockets()) {
            match epoll::add(&self.epoll, socket.as_fd(), EventData::new_u64(LISTEN), EventFlags::IN) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}
