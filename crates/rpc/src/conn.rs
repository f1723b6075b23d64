//! The event loop's side of a connection: receiving, handing records to the service, sending inline replies.

use std::collections::VecDeque;
use std::io::IoSliceMut;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvFlags, recv, recvmsg};

use crate::assemble::{Assembler, EARLY, Next};
use crate::batch::{Batch, finish};
use crate::config::Config;
use crate::home::Home;
use crate::link::{Link, SLICES, Wire, drive};
use crate::pool::{Charge, Pool, SMALL};
use crate::reply::Reply;
use crate::service::{Body, Message, Outcome, Service};
use crate::stall::Stall;
use crate::stats::CloseReason;

/// Received at once where many small records are expected.
const SCRATCH: usize = 256 << 10;
/// Received behind, or as the start of, a large record: all that is ever copied of it.
const TAIL: usize = 2 * EARLY;
/// A head vector that grew beyond this is not kept.
const HEAD_KEPT: usize = 64 << 10;

/// What one event loop's connections share.
pub(crate) struct Io<S> {
    pub(crate) service: Arc<S>,
    pub(crate) config: Arc<Config>,
    pub(crate) pool: Arc<Pool>,
    pub(crate) home: Arc<Home>,
    pub(crate) now: Instant,
    scratch: Box<[u8]>,
    batch: Batch,
    head: Vec<u8>,
    records: u64,
}

impl<S: Service> Io<S> {
    pub(crate) fn new(service: Arc<S>, config: Arc<Config>, pool: Arc<Pool>, home: Arc<Home>) -> Self {
        Self {
            service,
            config,
            pool,
            home,
            now: Instant::now(),
            scratch: vec![0; SCRATCH].into_boxed_slice(),
            batch: Batch::new(),
            head: Vec::with_capacity(1024),
            records: 0,
        }
    }
}

/// What the loop does with a connection after its turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Turn {
    /// Wait for readiness or a post.
    Wait,
    /// Another turn after the others had theirs.
    Again,
    /// Another turn soon: the memory limit of all connections is reached.
    Starved,
}

pub(crate) struct Conn {
    pub(crate) link: Arc<Link>,
    assembler: Assembler,
    /// Received, not taken in yet because a limit was reached.
    backlog: Vec<u8>,
    backlog_charge: Option<Charge>,
    pub(crate) readable: bool,
    pub(crate) writable: bool,
    pub(crate) hung_up: bool,
    /// The peer sends no more; the end of the stream is still to be received.
    pub(crate) ended: bool,
    /// In the loop's list of connections to look at.
    pub(crate) queued: bool,
    /// Closed for this reason as soon as everything in flight is answered and sent.
    pub(crate) closing: Option<CloseReason>,
    /// The last record was large; the next is probably too.
    large: bool,
    starved: bool,
    out_bytes: usize,
    pub(crate) last_active: Instant,
    pub(crate) input: Stall,
    pub(crate) output: Stall,
}

impl Conn {
    pub(crate) fn new(link: Arc<Link>, now: Instant) -> Self {
        Self {
            link,
            assembler: Assembler::default(),
            backlog: Vec::new(),
            backlog_charge: None,
            readable: false,
            writable: false,
            hung_up: false,
            ended: false,
            queued: false,
            closing: None,
            large: false,
            starved: false,
            out_bytes: 0,
            last_active: now,
            input: Stall::default(),
            output: Stall::default(),
        }
    }

    /// Sends what waits, then handles what was received and receives once.
    pub(crate) fn turn<S: Service>(&mut self, io: &mut Io<S>) -> Result<Turn, CloseReason> {
        if self.hung_up {
            return Err(CloseReason::SocketError);
        }
        self.send_queued();
        let result = self.input_turn(io);
        let flushed = self.flush(io);
        if io.records > 0 {
            io.home.stats.records.fetch_add(std::mem::take(&mut io.records), Relaxed);
        }
        let turn = result?;
        flushed?;
        if self.closing.is_some() { self.drain() } else { Ok(turn) }
    }

    fn send_queued(&mut self) {
        let mut queued = VecDeque::new();
        let writable = std::mem::take(&mut self.writable);
        let writer = self.link.with_outlet(|outlet| {
            self.out_bytes = outlet.bytes();
            writable && outlet.writable() && outlet.take(&mut queued, SLICES / 2)
        });
        if writer {
            drive(&*self.link, queued, true);
            self.out_bytes = self.link.with_outlet(|outlet| outlet.bytes());
        }
    }

    fn input_turn<S: Service>(&mut self, io: &mut Io<S>) -> Result<Turn, CloseReason> {
        if self.closing.is_some() {
            return Ok(Turn::Wait);
        }
        self.starved = false;
        if !self.backlog.is_empty() {
            let backlog = std::mem::take(&mut self.backlog);
            let mut input = &backlog[..];
            self.consume(&mut input, io)?;
            if input.len() == backlog.len() {
                self.backlog = backlog;
            } else {
                self.keep(input, io);
            }
        } else if self.readable && self.may_read(io) {
            self.receive(io)?;
        }
        if self.starved {
            return Ok(Turn::Starved);
        }
        if self.backlog.is_empty() && !self.readable {
            return Ok(Turn::Wait);
        }
        if self.may_read(io) { Ok(Turn::Again) } else { Ok(self.pause(io)) }
    }

    /// Keeps what a limit left unhandled.
    fn keep<S: Service>(&mut self, rest: &[u8], io: &Io<S>) {
        self.backlog_charge = (!rest.is_empty()).then(|| io.pool.charge(rest.len()));
        self.backlog = rest.to_vec();
    }

    fn receive<S: Service>(&mut self, io: &mut Io<S>) -> Result<(), CloseReason> {
        let mut scratch = std::mem::take(&mut io.scratch);
        let result = self.receive_into(&mut scratch, io);
        io.scratch = scratch;
        result
    }

    fn receive_into<S: Service>(&mut self, scratch: &mut [u8], io: &mut Io<S>) -> Result<(), CloseReason> {
        let direct = self.assembler.direct();
        let missing = direct.len();
        let (asked, received) = if missing > 0 {
            let slices = &mut [IoSliceMut::new(direct), IoSliceMut::new(&mut scratch[..TAIL])];
            let message =
                recvmsg(self.link.fd(), slices, &mut RecvAncillaryBuffer::default(), RecvFlags::DONTWAIT);
            (missing + TAIL, message.map(|message| message.bytes))
        } else {
            let size = if self.large || self.assembler.large() { TAIL } else { scratch.len() };
            (size, recv(self.link.fd(), &mut scratch[..size], RecvFlags::DONTWAIT).map(|(n, _)| n))
        };
        let received = match received {
            Ok(0) => {
                self.closing = Some(CloseReason::PeerClosed);
                return Ok(());
            }
            Ok(n) => n,
            Err(Errno::AGAIN) => {
                self.readable = false;
                return Ok(());
            }
            Err(Errno::INTR) => return Ok(()),
            Err(_) => return Err(CloseReason::SocketError),
        };
        // A short receive emptied the socket: edge-triggered readiness tells of what comes next. Only an end
        // that arrived together with the data is not told again.
        self.readable = received == asked || self.ended;
        self.last_active = io.now;
        io.home.stats.bytes_in.fetch_add(received as u64, Relaxed);
        let before = io.records;
        if missing > 0
            && let Some(record) = self.assembler.received(received)
        {
            self.handle(Body::Assembled(record), io)?;
        }
        let mut input = &scratch[..received.saturating_sub(missing)];
        self.consume(&mut input, io)?;
        self.keep(input, io);
        self.input.moved(self.assembler.arrived() as u64, io.records > before, io.now);
        Ok(())
    }

    fn consume<S: Service>(&mut self, input: &mut &[u8], io: &mut Io<S>) -> Result<(), CloseReason> {
        while !input.is_empty() && self.closing.is_none() && self.may_read(io) {
            match self.assembler.next(input, io.config.max_record, &io.pool)? {
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

    fn handle<S: Service>(&mut self, body: Body<'_>, io: &mut Io<S>) -> Result<(), CloseReason> {
        let message = Message { body, link: &self.link };
        self.large = message.bytes().len() > SMALL;
        io.records += 1;
        let head = std::mem::take(&mut io.head);
        let mut reply = Reply::on_loop(head, io.batch.region(), &io.pool);
        let outcome = io.service.handle(message, &mut reply);
        let (mut head, payload) = reply.into_parts();
        let payload = finish(payload);
        match outcome {
            Outcome::Reply => io.batch.push(&mut head, payload),
            Outcome::Silent => {}
            Outcome::Deferred => {
                io.home.stats.deferred.fetch_add(1, Relaxed);
            }
            Outcome::Close => return Err(CloseReason::Service),
        }
        if head.capacity() <= HEAD_KEPT {
            io.head = head;
        }
        if io.batch.has_room() { Ok(()) } else { self.flush(io) }
    }

    /// Whether limits allow another record.
    fn may_read<S: Service>(&self, io: &Io<S>) -> bool {
        let inflight = self.link.inflight();
        let waiting = inflight > 0 || self.out_bytes > 0;
        inflight < io.config.max_inflight
            && self.link.held() + self.out_bytes < io.config.conn_memory
            && !(waiting && io.pool.full())
    }

    /// Stops reading until something becomes fewer.
    fn pause<S: Service>(&mut self, io: &Io<S>) -> Turn {
        if io.pool.full() {
            return Turn::Starved;
        }
        let link = Arc::clone(&self.link);
        let paused = link.with_outlet(|outlet| {
            self.out_bytes = outlet.bytes();
            let paused = !self.may_read(io);
            outlet.watch(paused);
            paused
        });
        if !paused {
            return Turn::Again;
        }
        self.input.restart(io.now);
        io.home.stats.pauses.fetch_add(1, Relaxed);
        Turn::Wait
    }

    /// Sends the gathered replies, or queues them if somebody else writes or the socket is full.
    fn flush<S: Service>(&mut self, io: &mut Io<S>) -> Result<(), CloseReason> {
        if io.batch.is_empty() {
            return Ok(());
        }
        let mut queued = VecDeque::new();
        let more = if self.link.with_outlet(|outlet| outlet.begin()) {
            let Ok((sent, all)) = io.batch.send(self.link.fd()) else {
                io.batch.clear();
                return Err(CloseReason::SocketError);
            };
            io.home.stats.bytes_out.fetch_add(sent as u64, Relaxed);
            let mut rest = if all { VecDeque::new() } else { io.batch.rest(sent, &io.pool) };
            self.link.with_outlet(|outlet| {
                outlet.wrote(sent, 0);
                outlet.count(&rest);
                let go_on = all || outlet.blocked(&mut rest);
                let more = go_on && outlet.take(&mut queued, SLICES / 2);
                self.out_bytes = outlet.bytes();
                more
            })
        } else {
            let rest = io.batch.rest(0, &io.pool);
            self.link.with_outlet(|outlet| {
                let mut writer = false;
                for chunk in rest {
                    writer |= outlet.push(chunk);
                }
                let more = writer && outlet.take(&mut queued, SLICES / 2);
                self.out_bytes = outlet.bytes();
                more
            })
        };
        io.batch.clear();
        if more {
            drive(&*self.link, queued, true);
            self.out_bytes = self.link.with_outlet(|outlet| outlet.bytes());
        }
        Ok(())
    }

    /// Closes if nothing is in flight or unsent, else asks to be told.
    fn drain(&mut self) -> Result<Turn, CloseReason> {
        let reason = self.closing.unwrap_or(CloseReason::PeerClosed);
        let drained = self.link.with_outlet(|outlet| {
            let drained = self.link.inflight() == 0 && outlet.idle();
            outlet.watch(!drained);
            drained
        });
        if drained { Err(reason) } else { Ok(Turn::Wait) }
    }

    /// Whether nothing is under way in either direction.
    pub(crate) fn quiet(&self) -> bool {
        self.backlog.is_empty()
            && !self.assembler.partial()
            && self.link.inflight() == 0
            && self.link.with_outlet(|outlet| outlet.bytes()) == 0
    }

    /// What the passing of time alone makes of the connection.
    pub(crate) fn overdue(&mut self, config: &Config, now: Instant) -> Option<CloseReason> {
        let (bytes, written) = self.link.with_outlet(|outlet| (outlet.bytes(), outlet.written()));
        if bytes == 0 {
            self.output.restart(now);
        }
        self.output.moved(written, false, now);
        if self.output.stalled(config.stall_timeout, now) {
            return Some(CloseReason::StalledOutput);
        }
        // Backlog, or readiness not used: it is the server that does not go on.
        if !self.assembler.partial() || !self.backlog.is_empty() || self.readable {
            self.input.restart(now);
        }
        if self.input.stalled(config.stall_timeout, now) {
            return Some(CloseReason::StalledInput);
        }
        let idle = config.idle_timeout.is_some_and(|limit| now.duration_since(self.last_active) >= limit);
        (idle && self.quiet()).then_some(CloseReason::Idle)
    }
}
