//! The loop of one thread: waits for readiness and posts, gives connections their turns, closes overdue connections.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{Shutdown, shutdown};

use crate::accept::{Acceptor, Door};
use crate::addresses::Seat;
use crate::closings::Closings;
use crate::conn::{Conn, Io, Turn};
use crate::drive::Wire;
use crate::handshake::Stepped;
use crate::home::Post;
use crate::link::{Link, Negotiated};
use crate::outlet::Outlet;
use crate::service::{Peer, Replies, Service, batch};
use crate::shares::{CLOSING, OPENING, Shares, TURN};
use crate::slab::Slab;
use crate::spinner::Spinner;
use crate::stats::CloseReason;

/// Token of the loop's eventfd.
const WAKE: u64 = u64::MAX;
/// Token of all listening sockets.
const LISTEN: u64 = u64::MAX - 1;
/// Token of the service's descriptor.
const SERVICE: u64 = u64::MAX - 2;
/// Pause before a connection that lacks memory has another turn.
const STARVED_RETRY: Duration = Duration::from_millis(5);
/// The divisor of the tolerated stall time while connections wait for memory that other connections hold.
const PRESSED: u32 = 8;
/// The number of overdue connections closed before the served connections get their turn.
const CLOSED_AT_ONCE: usize = 8;
/// The idle time below which a connection is not closed to make room.
const EVICTABLE: Duration = Duration::from_secs(1);

pub(crate) struct EventLoop<S> {
    io: Io<S>,
    epoll: OwnedFd,
    acceptor: Option<Acceptor>,
    conns: Slab<Conn>,
    ready: VecDeque<u64>,
    shares: Shares,
    closings: Closings,
    starved: Vec<u64>,
    /// The time when connections without memory have another turn.
    retry_at: Option<Instant>,
    spinner: Spinner,
    next_sweep: Instant,
    /// Connections that the last sweep found overdue.
    overdue: VecDeque<u64>,
    /// The time when everything is closed, once the server shuts down.
    deadline: Option<Instant>,
}

impl<S: Service> EventLoop<S> {
    pub(crate) fn new(io: Io<S>, acceptor: Option<Acceptor>) -> Result<Self, Errno> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, io.home.event(), EventData::new_u64(WAKE), EventFlags::IN | EventFlags::ET)?;
        let mut new = Self {
            spinner: Spinner::new(io.config.busy_poll),
            next_sweep: io.now,
            io,
            epoll,
            acceptor,
            conns: Slab::new(),
            ready: VecDeque::new(),
            shares: Shares::default(),
            closings: Closings::default(),
            starved: Vec::new(),
            overdue: VecDeque::new(),
            retry_at: None,
            deadline: None,
        };
        new.listen()?;
        Ok(new)
    }

    /// Runs until the server shuts down.
    pub(crate) fn run(&mut self) {
        let _attached = self.attach();
        let mut events = Vec::with_capacity(256);
        loop {
            self.wait(&mut events);
            self.io.now = Instant::now();
            for event in events.drain(..) {
                self.dispatch(event);
            }
            for post in self.io.home.take() {
                self.receive_post(post);
            }
            self.round();
            batch(|| self.io.service.turn());
            self.keep_time();
            if let Some(deadline) = self.deadline
                && (self.conns.len() == 0 || self.io.now >= deadline)
            {
                self.close_all();
                return;
            }
        }
    }

    /// Gives each ready connection a turn, except those whose address has used its share.
    fn round(&mut self) {
        let Self { conns, ready, shares, .. } = self;
        shares.begin_round(ready.iter().filter_map(|token| conns.get_mut(*token).map(|conn| conn.address())));
        for _ in 0..self.ready.len() {
            let Some(token) = self.ready.pop_front() else { return };
            match self.conns.get_mut(token) {
                Some(conn) if !self.shares.has_turn(conn.address()) => self.ready.push_back(token),
                _ => self.turn(token),
            }
        }
    }

    /// Attaches the service to this thread for as long as the returned value lives.
    fn attach(&self) -> Attached<S> {
        let service = Arc::clone(&self.io.service);
        let fd = service.attach();
        let flags = EventFlags::IN | EventFlags::ET;
        let watched = fd.as_ref().map(|fd| epoll::add(&self.epoll, fd, EventData::new_u64(SERVICE), flags));
        if let Some(Err(_)) = watched {
            // The service's descriptor is not watched, so the service could never get a turn.
            service.detach();
        }
        Attached { service, _fd: fd }
    }

    /// Carries out the work that is due by the clock.
    fn keep_time(&mut self) {
        let now = self.io.now;
        if now >= self.next_sweep {
            self.sweep();
        }
        self.close_overdue();
        if self.retry_at.is_some_and(|at| now >= at) {
            self.retry_at = None;
            std::mem::take(&mut self.starved).into_iter().for_each(|token| self.enqueue(token));
        }
        if let Some(acceptor) = &mut self.acceptor
            && acceptor.paused_until().is_some_and(|until| now >= until)
        {
            acceptor.go_on();
            self.evict(1);
            // Listening worked when the loop started. If there is no memory for it now, the next pause tries again.
            if self.listen().is_err() {
                self.accept();
            }
        }
    }

    /// Fills `events`. Polls first, and sleeps if the poll finds nothing and no other work exists.
    fn wait(&mut self, events: &mut Vec<Event>) {
        let (epoll, home) = (&self.epoll, &self.io.home);
        if !self.ready.is_empty() || !self.overdue.is_empty() {
            poll(epoll, events, Some(Duration::ZERO));
        } else if !self.spinner.spin(|| home.has_posts() || poll(epoll, events, Some(Duration::ZERO))) {
            let timeout = if home.fall_asleep() { self.timeout() } else { Some(Duration::ZERO) };
            poll(epoll, events, timeout);
            home.wake_up();
        }
        home.stats.wakeups.fetch_add(1, Relaxed);
    }

    /// Returns the time until the next work that is due by the clock; none if there is no such work.
    fn timeout(&self) -> Option<Duration> {
        let trim = self.acceptor.is_some() && self.io.pool.has_cached();
        let sweep = (self.conns.len() > 0 || trim).then_some(self.next_sweep);
        let accept = self.acceptor.as_ref().and_then(Acceptor::paused_until);
        let service = self.io.service.wake_at();
        let first = [self.retry_at, sweep, accept, self.deadline, service].into_iter().flatten().min()?;
        Some(first.saturating_duration_since(Instant::now()))
    }

    fn dispatch(&mut self, event: Event) {
        match event.data.u64() {
            WAKE | SERVICE => {}
            LISTEN => self.accept(),
            token => {
                let flags = event.flags;
                if let Some(conn) = self.conns.get_mut(token) {
                    conn.readable |= flags.contains(EventFlags::IN);
                    conn.writable |= flags.contains(EventFlags::OUT);
                    conn.ended |= flags.contains(EventFlags::RDHUP);
                    conn.hung_up |= flags.intersects(EventFlags::HUP | EventFlags::ERR);
                }
                self.enqueue(token);
            }
        }
    }

    fn enqueue(&mut self, token: u64) {
        if let Some(conn) = self.conns.get_mut(token)
            && !std::mem::replace(&mut conn.queued, true)
        {
            self.ready.push_back(token);
        }
    }

    fn receive_post(&mut self, post: Post) {
        match post {
            Post::Adopt { fd, peer, seat, evict } => self.adopt(fd, peer, seat, evict),
            Post::Resume(token) => self.enqueue(token),
            Post::Stepped(token, stepped) => self.stepped(token, *stepped),
            Post::Shutdown(deadline) => {
                self.acceptor = None;
                self.deadline = Some(deadline);
                let tokens: Vec<_> = self
                    .conns
                    .iter_mut()
                    .map(|(token, conn)| {
                        conn.closing.get_or_insert(CloseReason::Shutdown);
                        token
                    })
                    .collect();
                tokens.into_iter().for_each(|token| self.enqueue(token));
            }
        }
    }

    /// Continues a TLS handshake after a worker's step.
    fn stepped(&mut self, token: u64, stepped: Stepped) {
        let Some(conn) = self.conns.get_mut(token) else { return };
        match conn.stepped(stepped, &self.io) {
            Ok(()) => self.enqueue(token),
            Err(reason) => self.close(token, reason),
        }
    }

    fn turn(&mut self, token: u64) {
        let Some(conn) = self.conns.get_mut(token) else { return };
        conn.queued = false;
        let (turn, address) = (conn.turn(&mut self.io), conn.address());
        self.shares.charge(address, TURN + std::mem::take(&mut self.io.work));
        match turn {
            Ok(Turn::Wait) => {}
            Ok(Turn::Again) => self.enqueue(token),
            Ok(Turn::Starved) => {
                self.starved.push(token);
                self.next_sweep = self.next_sweep.min(self.io.now + self.sweep_interval());
                self.retry_at.get_or_insert(self.io.now + STARVED_RETRY);
            }
            Err(reason) => self.close(token, reason),
        }
    }

    fn close(&mut self, token: u64, reason: CloseReason) {
        let Some(conn) = self.conns.remove(token) else { return };
        let link = &conn.link;
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

    fn close_all(&mut self) {
        let tokens: Vec<_> = self.conns.iter_mut().map(|(token, _)| token).collect();
        tokens.into_iter().for_each(|token| self.close(token, CloseReason::Shutdown));
    }

    /// Starts serving an accepted socket.
    fn adopt(&mut self, fd: OwnedFd, peer: Arc<Peer>, seat: Seat, evict: bool) {
        self.io.home.stats.accepted.fetch_add(1, Relaxed);
        self.shares.charge(peer.addr.ip(), OPENING);
        let full = evict && !self.evict(seat.connections());
        if self.deadline.is_some() || full || !self.io.service.connected(&peer) {
            let _ = shutdown(&fd, Shutdown::Both);
            self.io.home.load.fetch_sub(1, Relaxed);
            self.io.home.stats.closed[CloseReason::Refused as usize].fetch_add(1, Relaxed);
            self.closings.log(&peer, CloseReason::Refused, None, self.io.now);
            self.io.service.refused(peer.addr, CloseReason::Refused);
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
        let account = Arc::clone(seat.account());
        let token = self.conns.insert_with(|token| {
            let link = Link::new(fd, peer, token, Arc::clone(home), account, session);
            Conn::new(link, seat, now)
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

    /// Closes a connection to make room for one of an address that then has `connections`. Chooses the one idle for
    /// longest of an address that has as many. Otherwise chooses a connection that only ever sent parts of records, of
    /// an address that has more. Returns false if there is none. So an address with many connections takes no place
    /// from one with few.
    fn evict(&mut self, connections: usize) -> bool {
        let now = self.io.now;
        let idle = |conn: &Conn| {
            conn.quiet() && !conn.is_settled() && now.duration_since(conn.last_active) >= EVICTABLE
        };
        let quiet =
            self.conns.iter_mut().filter(|(_, conn)| conn.seat.connections() >= connections && idle(conn));
        let mut found = quiet.min_by_key(|(_, conn)| conn.last_active).map(|(token, _)| token);
        if found.is_none() {
            let useless = self.conns.iter_mut().filter_map(|(token, conn)| {
                let since = conn.without_request(now).filter(|since| *since >= EVICTABLE)?;
                (conn.seat.connections() > connections).then_some((token, since))
            });
            found = useless.max_by_key(|(_, since)| *since).map(|(token, _)| token);
        }
        let Some(token) = found else { return false };
        self.close(token, CloseReason::Evicted);
        true
    }

    fn sweep(&mut self) {
        let (config, now, patience) = (&self.io.config, self.io.now, self.patience());
        let conns = self.conns.iter_mut();
        let overdue = conns.filter_map(|(token, conn)| conn.overdue(config, patience, now).map(|_| token));
        self.overdue = overdue.collect();
        // Only one loop trims the pool: with several, buffers would seem unneeded too soon.
        if self.acceptor.is_some() {
            self.io.pool.trim();
        }
        self.next_sweep = now + self.sweep_interval();
    }

    /// Closes some of the overdue connections; the loop returns for the remaining ones at once.
    fn close_overdue(&mut self) {
        for _ in 0..CLOSED_AT_ONCE {
            let Some(token) = self.overdue.pop_front() else { return };
            let (patience, now) = (self.patience(), self.io.now);
            let conn = self.conns.get_mut(token);
            if let Some(reason) = conn.and_then(|conn| conn.overdue(&self.io.config, patience, now)) {
                self.close(token, reason);
            }
        }
    }

    /// Returns how long a stalled transfer is tolerated.
    fn patience(&self) -> Duration {
        let stall = self.io.config.stall_timeout;
        if self.starved.is_empty() { stall } else { stall / PRESSED }
    }

    /// Returns a quarter of the shortest timeout: an overdue connection is closed at most this much late.
    fn sweep_interval(&self) -> Duration {
        let shortest = self.io.config.idle_timeout.map_or(self.patience(), |idle| idle.min(self.patience()));
        (shortest / 4).max(Duration::from_millis(1))
    }

    fn accept(&mut self) {
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

    fn listen(&mut self) -> Result<(), Errno> {
        for socket in self.acceptor.iter().flat_map(|acceptor| acceptor.sockets()) {
            match epoll::add(&self.epoll, socket.as_fd(), EventData::new_u64(LISTEN), EventFlags::IN) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// A service that is attached to this thread.
struct Attached<S: Service> {
    service: Arc<S>,
    _fd: Option<Arc<OwnedFd>>,
}

impl<S: Service> Drop for Attached<S> {
    fn drop(&mut self) {
        self.service.detach();
    }
}

/// Waits for readiness; returns true if there is any.
fn poll(epoll: &OwnedFd, events: &mut Vec<Event>, timeout: Option<Duration>) -> bool {
    let timeout =
        timeout.map(|left| Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() });
    // An interrupted wait is an empty one. Other errors cannot happen to an epoll set of our own.
    let _ = epoll::wait(epoll, spare_capacity(events), timeout.as_ref());
    !events.is_empty()
}
