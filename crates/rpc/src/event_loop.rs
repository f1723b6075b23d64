//! The loop of one thread: waits for readiness and posts, gives connections their turns, closes overdue connections.

mod closing;
mod opening;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;

use crate::accept::Acceptor;
use crate::closings::Closings;
use crate::conn::{Conn, Io, Turn};
use crate::handshake::Stepped;
use crate::home::Post;
use crate::service::{Service, batch};
use crate::shares::{Shares, TURN};
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
/// The shortest and the longest time without a look at a connection beyond its rate. A shorter one would wake the loop
/// for each request. After the longest one, the limit may have changed in service.
const DELAYS: (Duration, Duration) = (Duration::from_millis(1), Duration::from_secs(1));

pub(crate) struct EventLoop<S> {
    io: Io<S>,
    epoll: OwnedFd,
    acceptor: Option<Acceptor>,
    conns: Slab<Conn>,
    ready: VecDeque<u64>,
    shares: Shares,
    closings: Closings,
    starved: Vec<u64>,
    /// Connections that wait for the rate of their address, with the times of their next turns.
    delayed: BinaryHeap<Reverse<(Instant, u64)>>,
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
    /// Returns an event loop without connections. One loop of the server has the acceptor, and accepts for all loops.
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
            delayed: BinaryHeap::new(),
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
        let Self { conns, ready, shares, io, .. } = self;
        let waiting = ready.iter().filter_map(|token| conns.get_mut(*token).map(|conn| conn.address()));
        io.quantum = shares.begin_round(waiting);
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
        self.io.addresses.contenders().review(now);
        if now >= self.next_sweep {
            self.sweep();
        }
        self.close_overdue();
        if self.retry_at.is_some_and(|at| now >= at) {
            self.retry_at = None;
            std::mem::take(&mut self.starved).into_iter().for_each(|token| self.enqueue(token));
        }
        self.resume_delayed();
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

    /// Gives a turn to the connections whose address is within its rate again.
    fn resume_delayed(&mut self) {
        while let Some(Reverse((at, token))) = self.delayed.peek().copied()
            && at <= self.io.now
        {
            self.delayed.pop();
            if let Some(conn) = self.conns.get_mut(token) {
                conn.delayed = false;
                self.enqueue(token);
            }
        }
    }

    /// Delays a connection beyond its rate.
    fn delay(&mut self, token: u64, wait: Duration) {
        let (wait, now) = (wait.clamp(DELAYS.0, DELAYS.1), self.io.now);
        if let Some(conn) = self.conns.get_mut(token)
            && !std::mem::replace(&mut conn.delayed, true)
        {
            conn.link.count_delay(now, wait);
            self.delayed.push(Reverse((now + wait, token)));
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
        let delayed = self.delayed.peek().map(|Reverse((at, _))| *at);
        let review = self.io.addresses.contenders().next_review();
        let first = [self.retry_at, sweep, accept, self.deadline, service, delayed, review]
            .into_iter()
            .flatten()
            .min()?;
        Some(first.saturating_duration_since(Instant::now()))
    }

    /// Notes an event of epoll. A connection with news gets its turn after the other events of this wake-up.
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

    /// Puts a connection in the queue for a turn, unless it waits there already or has ended.
    fn enqueue(&mut self, token: u64) {
        if let Some(conn) = self.conns.get_mut(token)
            && !std::mem::replace(&mut conn.queued, true)
        {
            self.ready.push_back(token);
        }
    }

    /// Carries out a message from another thread. A shutdown closes the listening sockets at once, and each
    /// connection when its requests are answered.
    fn receive_post(&mut self, post: Post) {
        match post {
            Post::Adopt { fd, peer, seat, evict } => self.adopt(fd, peer, seat, evict),
            Post::Resume(token) => self.enqueue(token),
            Post::Admit(token) => {
                if let Some(conn) = self.conns.get_mut(token) {
                    conn.held_back = false;
                }
                self.enqueue(token);
            }
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

    /// Gives a connection one turn, and charges its address for the work. Then the connection is queued again, waits
    /// for news, memory or its rate, or is closed.
    fn turn(&mut self, token: u64) {
        let Some(conn) = self.conns.get_mut(token) else { return };
        conn.queued = false;
        let (turn, address) = (conn.turn(&mut self.io), conn.address());
        // A connection that waits may have been resumed for a request that this one did not have.
        conn.link.account().admission.resume(1);
        self.shares.charge(address, TURN + std::mem::take(&mut self.io.work));
        match turn {
            Ok(Turn::Wait) => {}
            Ok(Turn::Again) => self.enqueue(token),
            Ok(Turn::Starved) => {
                self.starved.push(token);
                self.next_sweep = self.next_sweep.min(self.io.now + self.sweep_interval());
                self.retry_at.get_or_insert(self.io.now + STARVED_RETRY);
            }
            Ok(Turn::Delayed(wait)) => self.delay(token, wait),
            Err(reason) => self.close(token, reason),
        }
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
