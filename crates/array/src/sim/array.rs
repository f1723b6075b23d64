//! The controller: takes requests, moves bytes over the host link, and passes work to the disks.

use super::Nanos;
use super::geometry::{Extent, Geometry};
use super::spindle::{Command, Mechanics, Spindle};
use super::streams::{PieceKey, Streams};
use super::stripes::Stripe;
use crate::model::{CacheKind, Model};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};

/// Longest request in bytes that is interleaved with long transfers. A longer request waits for the end of earlier
/// transfers.
const SHORT: u64 = 64 * 1024;

/// A request. Offsets and lengths are in bytes, multiples of [`crate::model::BLOCK`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// Reads a range.
    Read {
        /// Offset of the first byte.
        offset: u64,
        /// Number of bytes, at least one block.
        length: u64,
    },
    /// Writes a range.
    Write {
        /// Offset of the first byte.
        offset: u64,
        /// Number of bytes, at least one block.
        length: u64,
    },
    /// Makes all acknowledged writes survive a power cut.
    Flush,
}

/// An occurrence in the array, reported in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Output {
    /// A request is complete.
    Done {
        /// The tag given to [`Array::submit`].
        tag: u64,
        /// Virtual time of the completion, not later than the time that the array was advanced to.
        at: Nanos,
    },
    /// The disks begin to write the present content of a range.
    Started {
        /// Offset of the first byte.
        offset: u64,
        /// Number of bytes.
        length: u64,
    },
    /// The content that the disks began to write is on the platters.
    Durable {
        /// Offset of the first byte.
        offset: u64,
        /// Number of bytes.
        length: u64,
    },
}

/// Totals since the start.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Counters {
    /// Read requests accepted.
    pub reads: u64,
    /// Write requests accepted.
    pub writes: u64,
    /// Flush requests accepted.
    pub flushes: u64,
    /// Bytes in read requests.
    pub read_bytes: u64,
    /// Bytes in write requests.
    pub written_bytes: u64,
    /// Requests that are not complete.
    pub in_flight: u64,
    /// Stripes that were written without reading.
    pub full_stripes: u64,
    /// Stripes for which old data or parity was read first.
    pub partial_stripes: u64,
    /// Bytes of write cache in use, in whole lines.
    pub cache_used_bytes: u64,
}

/// Totals of one disk since the start.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct DiskCounters {
    /// Commands served.
    pub served: u64,
    /// Time in service in nanoseconds, including the whole command in service.
    pub busy_ns: u64,
    /// Commands queued or in service.
    pub depth: u64,
}

/// The owner of a disk command.
#[derive(Debug, Clone, Copy)]
pub(super) enum Token {
    Request(usize),
    Piece(PieceKey),
    Stripe(u64),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Event {
    /// The command in service on this disk ends.
    Disk(usize),
    /// A request reaches the controller; a write arrives with its data.
    Arrived(usize),
    /// The last byte of the answer has been sent.
    Done(usize),
    /// The time for which this stripe waits for further data is over.
    Stripe(u64),
    /// The oldest dirty stripe has reached its age limit.
    Age,
}

#[derive(Debug)]
pub(super) struct Request {
    pub(super) tag: u64,
    pub(super) op: Op,
    /// Disk commands, pieces or stripes that the request waits for.
    pub(super) pending: u32,
}

/// An array in virtual time.
#[derive(Debug)]
pub struct Array {
    pub(super) model: Model,
    pub(super) geometry: Geometry,
    mechanics: Mechanics,
    spindles: Vec<Spindle<Token>>,
    events: BinaryHeap<Reverse<(Nanos, u64, Event)>>,
    sequence: u64,
    pub(super) requests: Vec<Option<Request>>,
    free: Vec<usize>,
    link_free: Nanos,
    pub(super) readers: Streams,
    pub(super) writers: Streams,
    pub(super) stripes: BTreeMap<u64, Stripe>,
    /// Dirty stripes, oldest first. Entries may be out of date.
    pub(super) order: VecDeque<u64>,
    /// Writes that wait for room in the cache.
    pub(super) admission: VecDeque<usize>,
    pub(super) lines_used: u32,
    /// Rounds of partial stripes in progress.
    pub(super) rounds: u32,
    pub(super) flushing: u32,
    pub(super) age_timer: Option<Nanos>,
    /// True if flushes are acknowledged without being done: the control that a crash test must catch.
    pub(super) ignore_flushes: bool,
    pub(super) counters: Counters,
    pub(super) outputs: VecDeque<Output>,
}

impl Array {
    /// Returns an idle array of at most `size` bytes, rounded down to whole stripes of all spans.
    pub fn new(model: &Model, size: u64) -> Self {
        let geometry = Geometry::new(model, size);
        let streams = model.controller.streams as usize;
        Self {
            mechanics: Mechanics::new(&model.disk, geometry.disk_bytes()),
            spindles: (0..geometry.disks()).map(|_| Spindle::new()).collect(),
            geometry,
            events: BinaryHeap::new(),
            sequence: 0,
            requests: Vec::new(),
            free: Vec::new(),
            link_free: 0,
            readers: Streams::new(streams),
            writers: Streams::new(streams),
            stripes: BTreeMap::new(),
            order: VecDeque::new(),
            admission: VecDeque::new(),
            lines_used: 0,
            rounds: 0,
            flushing: 0,
            age_timer: None,
            ignore_flushes: false,
            counters: Counters::default(),
            outputs: VecDeque::new(),
            model: model.clone(),
        }
    }

    /// Returns the bytes of data that the array holds.
    pub fn size(&self) -> u64 {
        self.geometry.size()
    }

    /// Returns the model of the array.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Returns true if writes are acknowledged before they are on the platters.
    pub fn cached(&self) -> bool {
        self.model.cache.kind != CacheKind::None
    }

    /// Multiplies the service times of one disk, or of all, by `factor`; 1 is a healthy disk. A disk number that does
    /// not exist is ignored.
    pub fn slow(&mut self, disk: Option<usize>, factor: f64) {
        for (index, spindle) in self.spindles.iter_mut().enumerate() {
            if disk.is_none_or(|d| d == index) {
                spindle.slowness = factor;
            }
        }
    }

    /// Makes flushes do nothing, or work again.
    pub fn ignore_flushes(&mut self, ignore: bool) {
        self.ignore_flushes = ignore;
    }

    /// Submits a request that arrived at `now`. Its completion carries `tag`. The range must be inside the array.
    pub fn submit(&mut self, now: Nanos, tag: u64, op: Op) {
        let counters = &mut self.counters;
        let length = match op {
            Op::Read { length, .. } => {
                counters.reads += 1;
                counters.read_bytes += length;
                0
            }
            Op::Write { length, .. } => {
                counters.writes += 1;
                counters.written_bytes += length;
                length
            }
            Op::Flush => {
                counters.flushes += 1;
                0
            }
        };
        counters.in_flight += 1;
        let request = Some(Request { tag, op, pending: 0 });
        let index = match self.free.pop() {
            Some(index) => {
                self.requests[index] = request;
                index
            }
            None => {
                self.requests.push(request);
                self.requests.len() - 1
            }
        };
        let at = now + (self.model.controller.command_us * 1e3) as Nanos;
        let at = if length > 0 { self.link(at, length) } else { at };
        self.schedule(at, Event::Arrived(index));
    }

    /// Returns the time of the next event; `None` if there is none.
    pub fn next_event(&self) -> Option<Nanos> {
        self.events.peek().map(|Reverse((at, ..))| *at)
    }

    /// Handles all events up to and including `now`.
    pub fn advance(&mut self, now: Nanos) {
        while let Some(Reverse((at, _, event))) = self.events.peek().copied() {
            if at > now {
                break;
            }
            self.events.pop();
            self.handle(at, event);
        }
    }

    /// Returns the next output in order; `None` if there is none.
    pub fn output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// Returns the totals since the start.
    pub fn counters(&self) -> Counters {
        let line = u64::from(self.model.cache.line_kib) * 1024;
        Counters { cache_used_bytes: u64::from(self.lines_used) * line, ..self.counters.clone() }
    }

    /// Returns the totals of each disk since the start.
    pub fn disks(&self) -> Vec<DiskCounters> {
        let counters =
            |s: &Spindle<Token>| DiskCounters { served: s.served, busy_ns: s.busy, depth: s.depth() as u64 };
        self.spindles.iter().map(counters).collect()
    }

    /// Handles an event at its time: the end of a disk's command, a request that has crossed the link, a finished
    /// request, or a timer.
    fn handle(&mut self, at: Nanos, event: Event) {
        match event {
            Event::Disk(disk) => {
                let (token, next) = self.spindles[disk].finish(&self.mechanics, at);
                if let Some(next) = next {
                    self.schedule(next, Event::Disk(disk));
                }
                match token {
                    Some(Token::Request(request)) => self.part_done(at, request),
                    Some(Token::Piece(key)) => {
                        for request in self.readers.arrived(key) {
                            self.part_done(at, request);
                        }
                    }
                    Some(Token::Stripe(stripe)) => self.stripe_command_done(at, stripe),
                    None => {}
                }
            }
            Event::Arrived(request) => match self.requests[request].as_ref().map(|r| r.op) {
                Some(Op::Read { offset, length }) => self.read_arrived(at, request, offset, length),
                Some(Op::Write { offset, length }) => self.write_arrived(at, request, offset, length),
                Some(Op::Flush) => self.flush_arrived(at, request),
                None => {}
            },
            Event::Done(request) => {
                if let Some(done) = self.requests[request].take() {
                    self.free.push(request);
                    self.counters.in_flight -= 1;
                    self.outputs.push_back(Output::Done { tag: done.tag, at });
                }
            }
            Event::Stripe(stripe) => self.consider(at, stripe),
            Event::Age => {
                self.age_timer = None;
                self.destage(at);
            }
        }
    }

    /// Schedules an event. Events of one time happen in the order in which they were scheduled, so that runs are
    /// equal.
    pub(super) fn schedule(&mut self, at: Nanos, event: Event) {
        self.sequence += 1;
        self.events.push(Reverse((at, self.sequence, event)));
    }

    /// Queues a disk command for every extent.
    pub(super) fn command(&mut self, at: Nanos, extents: &[Extent], write: bool, token: Token) {
        for e in extents {
            let command = Command { position: e.position, length: e.length, write, arrival: at, token };
            if let Some(end) = self.spindles[e.disk].push(&self.mechanics, command) {
                self.schedule(end, Event::Disk(e.disk));
            }
        }
    }

    /// Notes that a disk command, piece or stripe that the request waits for is done.
    pub(super) fn part_done(&mut self, at: Nanos, request: usize) {
        let Some(waiting) = self.requests[request].as_mut() else { return };
        waiting.pending -= 1;
        if waiting.pending == 0 {
            self.answer(at, request);
        }
    }

    /// Answers a request whose parts are all done. The data of a read goes over the link; other requests complete at
    /// once.
    pub(super) fn answer(&mut self, at: Nanos, request: usize) {
        let end = match self.requests[request].as_ref().map(|r| r.op) {
            Some(Op::Read { length, .. }) => self.link(at, length),
            Some(Op::Flush) => {
                self.flushing -= 1;
                at
            }
            _ => at,
        };
        self.schedule(end, Event::Done(request));
    }

    /// Sends `bytes` over the link from `at` on. Returns the time at which the last byte arrives.
    fn link(&mut self, at: Nanos, bytes: u64) -> Nanos {
        let took = (bytes as f64 * 1e3 / self.model.controller.link_mb_s) as Nanos;
        let free = self.link_free.max(at) + took;
        self.link_free = free;
        if bytes <= SHORT { at + took } else { free }
    }
}
