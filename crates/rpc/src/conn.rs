//! The event loop's side of a connection: receiving, handing records to the service, sending inline replies.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use rustix::net::sockopt::socket_error;

use crate::addresses::Addresses;
use crate::assemble::{Assembler, Next};
use crate::batch::Batch;
use crate::bounds::Bounds;
use crate::config::Config;
use crate::drive::{Wire, drained, offer, resume};
use crate::handshake::Handshake;
use crate::home::Home;
use crate::link::Link;
use crate::pool::{Charge, Pool, SMALL};
use crate::reply::Reply;
use crate::service::{Body, Handled, Message, Service};
use crate::session::Session;
use crate::shares::{QUANTUM, REQUEST};
use crate::stall::Stall;
use crate::stats::CloseReason;

/// Bytes received at once if many small records are expected.
const SCRATCH: usize = 64 << 10;
/// The capacity beyond which a head vector is not reused.
const HEAD_KEPT: usize = 64 << 10;

mod overdue;
mod receive;
mod sealed;

/// The state that the connections of one event loop share.
pub(crate) struct Io<S> {
    pub(crate) service: Arc<S>,
    pub(crate) config: Arc<Config>,
    pub(crate) bounds: Arc<Bounds>,
    pub(crate) pool: Arc<Pool>,
    pub(crate) home: Arc<Home>,
    pub(crate) addresses: Arc<Addresses>,
    pub(crate) now: Instant,
    scratch: Box<[u8]>,
    /// Opened bytes of a TLS session.
    plain: Vec<u8>,
    batch: Batch,
    head: Vec<u8>,
    records: u64,
    /// Work done in this turn, in bytes ([`Shares`](crate::shares::Shares)).
    pub(crate) work: usize,
    /// The work after which a turn ends, in bytes.
    pub(crate) quantum: usize,
}

impl<S: Service> Io<S> {
    /// Returns the parts of an event loop that its connections share: buffers, limits, and the service.
    pub(crate) fn new(
        service: Arc<S>,
        config: Arc<Config>,
        (bounds, addresses): (Arc<Bounds>, Arc<Addresses>),
        home: Arc<Home>,
    ) -> Self {
        let pool = Arc::clone(bounds.pool());
        Self {
            service,
            config,
            bounds,
            pool,
            home,
            addresses,
            now: Instant::now(),
            scratch: vec![0; SCRATCH].into_boxed_slice(),
            plain: Vec::new(),
            batch: Batch::new(),
            head: Vec::with_capacity(1024),
            records: 0,
            work: 0,
            quantum: QUANTUM,
        }
    }
}

/// The next action of the loop on a connection after its turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Turn {
    /// Wait for readiness or a post.
    Wait,
    /// Another turn after the other connections had theirs.
    Again,
    /// Another turn soon: the memory limit of all connections is reached.
    Starved,
    /// Another turn after this time: the address or its export is beyond the limit on its rate.
    Delayed(Duration),
}

/// Bytes received but not handled yet, because a limit was reached or the turn has ended.
struct Backlog {
    bytes: Vec<u8>,
    done: usize,
    _charge: Charge,
}

pub(crate) struct Conn {
    pub(crate) link: Arc<Link>,
    assembler: Assembler,
    backlog: Option<Backlog>,
    /// A TLS handshake in progress.
    handshake: Option<Box<Handshake>>,
    /// The charge for the beginning of a sealed record, which the TLS session keeps.
    sealed: Option<Charge>,
    /// True if the peer has ended its TLS session properly. The end of the stream alone may be forged.
    took_leave: bool,
    /// The cause in words, if TLS fails.
    pub(crate) fault: Option<String>,
    pub(crate) readable: bool,
    pub(crate) writable: bool,
    pub(crate) hung_up: bool,
    /// True if the peer sends no more; the end of the stream is still to be received.
    pub(crate) ended: bool,
    /// True if a record has arrived.
    asked: bool,
    /// True if the connection is in the loop's list of connections to look at.
    pub(crate) queued: bool,
    /// True if the connection is in the loop's list of connections that wait for the rate of their address.
    pub(crate) delayed: bool,
    /// True if the connection waits until its address has fewer requests in flight.
    pub(crate) held_back: bool,
    /// The reason to close the connection as soon as everything in flight is answered and sent.
    pub(crate) closing: Option<CloseReason>,
    /// True if the peer has closed the connection and has every reply.
    pub(crate) received: bool,
    /// True if the last record was large; the next record probably is large too.
    large: bool,
    starved: bool,
    out_bytes: usize,
    pub(crate) last_active: Instant,
    /// The time when a record was last complete.
    last_record: Instant,
    /// The time when the record in progress began.
    begun: Option<Instant>,
    pub(crate) input: Stall,
    pub(crate) output: Stall,
}

impl Conn {
    /// Returns a connection that has received nothing yet.
    pub(crate) fn new(link: Arc<Link>, now: Instant) -> Self {
        Self {
            link,
            assembler: Assembler::default(),
            backlog: None,
            handshake: None,
            sealed: None,
            took_leave: false,
            fault: None,
            readable: false,
            writable: false,
            hung_up: false,
            ended: false,
            asked: false,
            queued: false,
            delayed: false,
            held_back: false,
            closing: None,
            received: false,
            large: false,
            starved: false,
            out_bytes: 0,
            last_active: now,
            last_record: now,
            begun: None,
            input: Stall::default(),
            output: Stall::default(),
        }
    }

    /// Returns true if the connection has a session whose negotiation has ended.
    pub(crate) fn is_settled(&self) -> bool {
        self.link.session().is_some_and(Session::is_settled)
    }

    /// Returns the address of the client.
    pub(crate) fn address(&self) -> IpAddr {
        self.link.peer().addr.ip()
    }

    /// Sends the waiting output, then handles the backlog and receives once.
    pub(crate) fn turn<S: Service>(&mut self, io: &mut Io<S>) -> Result<Turn, CloseReason> {
        if self.hung_up {
            // The kernel's TLS reports a record that is none by an error of the socket.
            let error = socket_error(self.link.fd()).ok().and_then(Result::err);
            return Err(error.map_or(CloseReason::SocketError, |error| self.refused(error)));
        }
        self.out_bytes = resume(&*self.link, std::mem::take(&mut self.writable));
        let taken = self.take_in(io);
        let flushed = self.flush(io);
        if io.records > 0 {
            io.home.stats.records.fetch_add(std::mem::take(&mut io.records), Relaxed);
        }
        taken?;
        flushed?;
        self.next_turn(io)
    }

    /// Handles the backlog, or else receives once.
    fn take_in<S: Service>(&mut self, io: &mut Io<S>) -> Result<(), CloseReason> {
        self.starved = false;
        if self.closing.is_some() {
            return Ok(());
        }
        if self.handshake.is_some() {
            return self.shake_hands(io);
        }
        if let Some(mut backlog) = self.backlog.take() {
            let mut input = &backlog.bytes[backlog.done..];
            self.consume(&mut input, io)?;
            if self.handshake.is_some() {
                self.keep(input);
                return Ok(());
            }
            backlog.done = backlog.bytes.len() - input.len();
            self.backlog = (backlog.done < backlog.bytes.len()).then_some(backlog);
        } else if self.readable && !self.took_leave && self.may_read(io) && self.is_within_rate(io) {
            self.receive(io)?;
        }
        Ok(())
    }

    /// Decides on the next turn after all sending of this turn, which may have ended the reason for a pause.
    fn next_turn<S: Service>(&mut self, io: &mut Io<S>) -> Result<Turn, CloseReason> {
        if self.took_leave && self.backlog.is_none() {
            self.closing.get_or_insert(CloseReason::PeerClosed);
        }
        if self.link.has_used_up_keys() {
            self.closing.get_or_insert(CloseReason::KeysUsedUp);
        }
        if let Some(reason) = self.closing {
            if !drained(&*self.link) {
                return Ok(Turn::Wait);
            }
            if reason == CloseReason::PeerClosed {
                // The socket is empty. A client that has sent no request lacks no reply.
                let whole = !self.is_within_record() && (!self.link.is_encrypted() || self.took_leave);
                self.received = whole && (!self.asked || self.link.received());
            } else {
                self.discard(io);
            }
            return Err(reason);
        }
        Ok(if self.handshake.is_some() {
            self.next_of_handshake()
        } else if self.starved {
            Turn::Starved
        } else if self.backlog.is_none() && !self.readable {
            Turn::Wait
        } else if let Some(wait) = self.link.wait_for_rate(io.now) {
            Turn::Delayed(wait)
        } else if self.may_read(io) {
            Turn::Again
        } else {
            self.pause(io)
        })
    }

    /// Handles the records in `input` until a limit stops the connection or the input ends. Takes handled bytes away
    /// from `input`; the caller keeps the rest.
    fn consume<S: Service>(&mut self, input: &mut &[u8], io: &mut Io<S>) -> Result<(), CloseReason> {
        while !input.is_empty() && self.may_handle(io) {
            match self.assembler.next(
                input,
                self.link.session(),
                io.config.max_record,
                self.link.account(),
            )? {
                Next::Whole(record) => self.handle(Body::InPlace(record), io)?,
                Next::Assembled(record) => self.handle(Body::Assembled(record), io)?,
                Next::More => break,
                Next::Starved => {
                    self.starved = true;
                    break;
                }
            }
        }
        Ok(())
    }

    /// Returns true if another record may be handled in this turn.
    fn may_handle<S: Service>(&self, io: &Io<S>) -> bool {
        self.closing.is_none()
            && self.handshake.is_none()
            && io.work < io.quantum
            && self.may_read(io)
            && self.is_within_rate(io)
    }

    /// Returns true if the limits on the rates of the address and of the export allow another record.
    fn is_within_rate<S: Service>(&self, io: &Io<S>) -> bool {
        self.link.wait_for_rate(io.now).is_none()
    }

    /// Gives a record to the service. Gathers its reply, if the service has answered at once.
    fn handle<S: Service>(&mut self, body: Body<'_>, io: &mut Io<S>) -> Result<(), CloseReason> {
        let message = Message { body, link: &self.link };
        let received = message.bytes().len();
        self.large = received > SMALL;
        self.asked = true;
        self.link.account().admission.ask();
        io.records += 1;
        self.last_record = io.now;
        let head = std::mem::take(&mut io.head);
        let kind @ (_, is_marked) = (self.link.secured().is_none(), self.link.session().is_none());
        let mut reply = Reply::on_loop(head, io.batch.region(), self.link.account(), kind);
        let outcome = io.service.handle(message, &mut reply);
        let (mut head, payload) = reply.into_parts();
        io.work += REQUEST + head.len() + payload.len();
        self.link.account().rate.charge(1, received + head.len() + payload.len(), || io.now);
        match outcome {
            Handled::Reply => io.batch.push(&mut head, payload, is_marked),
            Handled::StartTls => {
                io.batch.push(&mut head, payload, is_marked);
                self.begin_handshake(io)?;
            }
            Handled::Silent => {}
            Handled::Finish => {
                if !head.is_empty() {
                    io.batch.push(&mut head, payload, is_marked);
                }
                self.closing.get_or_insert(CloseReason::PeerClosed);
            }
            Handled::Deferred => {
                io.home.stats.deferred.fetch_add(1, Relaxed);
                // Deferred requests may have been answered since, and their replies wait to be sent.
                self.out_bytes = self.link.with_outlet(|outlet| outlet.bytes());
            }
            Handled::Close => return Err(CloseReason::Service),
        }
        if head.capacity() <= HEAD_KEPT {
            io.head = head;
        }
        if io.batch.has_room() { Ok(()) } else { self.flush(io) }
    }

    /// Returns true if the limits of the connection and of its address allow another record.
    fn may_read<S: Service>(&self, io: &Io<S>) -> bool {
        self.link.account().admission.has_room() && self.has_room(io)
    }

    /// Returns true if the limits of the connection allow another record.
    fn has_room<S: Service>(&self, io: &Io<S>) -> bool {
        let inflight = self.link.inflight();
        let waiting = inflight > 0 || self.out_bytes > 0;
        inflight < io.bounds.max_inflight()
            && self.link.held() + self.out_bytes < io.bounds.conn_memory()
            && !(waiting && self.link.account().full())
    }

    /// Stops reading until the memory or the requests in flight become fewer.
    fn pause<S: Service>(&mut self, io: &Io<S>) -> Turn {
        if self.link.account().full() {
            return Turn::Starved;
        }
        if !self.link.account().admission.has_room() {
            return self.hold_back(io);
        }
        let link = Arc::clone(&self.link);
        let paused = link.with_outlet(|outlet| {
            self.out_bytes = outlet.bytes();
            // Other connections of the address change the room of the address, and their replies do not wake this one.
            let paused = !self.has_room(io);
            // Half of the requests answered is worth a wake-up, a single one is not. Bytes become fewer in large steps.
            let full = self.link.inflight() >= io.bounds.max_inflight();
            outlet.watch(paused.then_some(if full { io.bounds.max_inflight() / 2 } else { usize::MAX }));
            paused
        });
        if !paused {
            return Turn::Again;
        }
        self.input.restart(io.now);
        io.home.stats.pauses.fetch_add(1, Relaxed);
        Turn::Wait
    }

    /// Stops reading until the address has fewer requests in flight.
    fn hold_back<S: Service>(&mut self, io: &Io<S>) -> Turn {
        if !self.held_back {
            if !self.link.wait_for_admission() {
                return Turn::Again;
            }
            self.held_back = true;
            io.home.stats.held_back.fetch_add(1, Relaxed);
        }
        self.input.restart(io.now);
        Turn::Wait
    }

    /// Sends the gathered replies. Queues them if another thread writes or the socket is full.
    fn flush<S: Service>(&mut self, io: &mut Io<S>) -> Result<(), CloseReason> {
        if io.batch.is_empty() {
            return Ok(());
        }
        let (link, batch) = (&*self.link, &mut io.batch);
        let waiting = offer(link, |may_write| {
            let (sent, all) = if may_write { batch.send(link).ok()? } else { (0, false) };
            io.home.stats.bytes_out.fetch_add(sent as u64, Relaxed);
            io.home.stats.sends.fetch_add(u64::from(may_write), Relaxed);
            Some((sent, if all { VecDeque::new() } else { batch.rest(sent, link.account()) }))
        });
        io.batch.clear();
        self.out_bytes = waiting.ok_or(CloseReason::SocketError)?;
        Ok(())
    }
}
