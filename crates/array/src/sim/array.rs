//! The controller: takes requests, moves bytes over the host link, hands work to the disks and collects it.

use super::Nanos;
use super::geometry::{Extent, Geometry};
use super::spindle::{Command, Mechanics, Spindle};
use super::streams::{PieceKey, Streams};
use super::stripes::Stripe;
use crate::model::{CacheKind, Model};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};

/// Requests of at most this many bytes are interleaved with long transfers instead of waiting for their end.
const SHORT: u64 = 64 * 1024;

/// What a request asks for. Offsets and lengths in bytes, multiples of [`crate::model::BLOCK`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// Read a range.
    Read {
        /// First byte.
        offset: u64,
        /// Number of bytes, at least one block.
        length: u64,
    },
    /// Write a range.
    Write {
        /// First byte.
        offset: u64,
        /// Number of bytes, at least one block.
        length: u64,
    },
    /// Everything acknowledged so far must survive a power cut.
    Flush,
}

/// What happened, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Output {
    /// The request with this tag is complete since `at`.
    Done {
        /// As given to [`Array::submit`].
        tag: u64,
        /// Virtual time of the completion, not later than the time advanced to.
        at: Nanos,
    },
    /// The disks begin to write the present content of this range.
    Started {
        /// First byte.
        offset: u64,
        /// Number of bytes.
        length: u64,
    },
    /// That content is on the platters.
    Durable {
        /// First byte.
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
    /// Bytes asked for by reads.
    pub read_bytes: u64,
    /// Bytes brought by writes.
    pub written_bytes: u64,
    /// Requests not yet complete.
    pub in_flight: u64,
    /// Stripes written without reading anything.
    pub full_stripes: u64,
    /// Stripes for which old data or parity had to be read first.
    pub partial_stripes: u64,
    /// Bytes of write cache in use, whole lines.
    pub cache_used_bytes: u64,
}

/// Totals of one disk since the start.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct DiskCounters {
    /// Commands served.
    pub served: u64,
    /// Nanoseconds of service, the command in service counted whole.
    pub busy_ns: u64,
    /// Commands queued or in service.
    pub depth: u64,
}

/// What a disk command is part of.
#[derive(Debug, Clone, Copy)]
pub(super) enum Token {
    Request(usize),
    Piece(PieceKey),
    Stripe(u64),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Event {
    /// The command in service on a disk ends.
    Disk(usize),
    /// A request reaches the controller, a write with its data.
    Arrived(usize),
    /// The last byte of the answer has left.
    Done(usize),
    /// A stripe's time of waiting for the rest is over.
    Stripe(u64),
    /// The oldest dirty stripe has come of age.
    Age,
}

#[derive(Debug)]
pub(super) struct Request {
    pub(super) tag: u64,
    pub(super) op: Op,
    /// Disk commands, pieces or stripes it waits for.
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
    /// Dirty stripes, oldest first; entries may be out of date.
    pub(super) order: VecDeque<u64>,
    /// Writes that wait for room in the cache.
    pub(super) admission: VecDeque<usize>,
    pub(super) lines_used: u32,
    /// Partial stripes under way.
    pub(super) rounds: u32,
    pub(super) flushing: u32,
    pub(super) age_timer: Option<Nanos>,
    /// Flushes are acknowledged and not done: the control that a crash test must catch.
    pub(super) ignore_flushes: bool,
    pub(super) counters: Counters,
    pub(super) outputs: VecDeque<Output>,
}

impl Array {
    /// An idle array of at most `size` bytes: whole stripes of all spans.
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

    /// Bytes of data the array holds.
    pub fn size(&self) -> u64 {
        self.geometry.size()
    }

    /// The model it was made from.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Whether writes are acknowledged before they are on the platters.
    pub fn cached(&self) -> bool {
        self.model.cache.kind != CacheKind::None
    }

    /// Makes every disk, or one, `factor` times slower than healthy; 1 heals. Disks that do not exist are ignored.
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

    /// Hands in a request that arrived at `now`; its completion carries `tag`. The range must lie in the array.
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

    /// The time of the next event, when there is one.
    pub fn next_event(&self) -> Option<Nanos> {
        self.events.peek().map(|Reverse((at, ..))| *at)
    }

    /// Lets everything happen that happens up to `now`.
    pub fn advance(&mut self, now: Nanos) {
        while let Some(Reverse((at, _, event))) = self.events.peek().copied() {
            if at > now {
                break;
            }
            self.events.pop();
            self.handle(at, event);
        }
    }

    /// The next thing that happened, in order.
    pub fn output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// Totals since the start.
    pub fn counters(&self) -> Counters {
        let line = u64::from(self.model.cache.line_kib) * 1024;
        Counters { cache_used_bytes: u64::from(self.lines_used) * line, ..self.counters.clone() }
    }

    /// Totals of each disk since the start.
    pub fn disks(&self) -> Vec<DiskCounters> {
        let counters =
            |s: &Spindle<Token>| DiskCounters { served: s.served, busy_ns: s.busy, depth: s.depth() as u64 };
        self.spindles.iter().map(counters).collect()
    }

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

    /// One of the things a request waits for is there.
    pub(super) fn part_done(&mut self, at: Nanos, request: usize) {
        let Some(waiting) = self.requests[request].as_mut() else { return };
        waiting.pending -= 1;
        if waiting.pending == 0 {
            self.answer(at, request);
        }
    }

    /// Everything for the answer is there: a read's data goes over the link, the rest is complete.
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

    /// Sends `bytes` over the link from `at` on; returns the time of the last one.
    fn link(&mut self, at: Nanos, bytes: u64) -> Nanos {
        let took = (bytes as f64 * 1e3 / self.model.controller.link_mb_s) as Nanos;
        let free = self.link_free.max(at) + took;
        self.link_free = free;
        if bytes <= SHORT { at + took } else { free }
    }
}
