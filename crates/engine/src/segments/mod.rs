//! Which segment is where, what it holds, and when its space may be used again.
//!
//! Invariants:
//! - `log` lists the segments from the tail (the oldest that may hold dirty blocks) to the head (being written).
//! - `fifo` lists every segment by (position, clean before log): they are let go in this order and no other, so a
//!   record that says "older copies do not count" outlives those copies.
//! - A leg that was given up is free only once a durable frame says so: its `tail` and `oldest` are past it; and not while
//!   a repair of it is on its way to the device.

mod inner;
mod log;
mod repair;
mod retire;
mod space;
#[cfg(test)]
mod tests;
mod warm;

use forebay_common::lock::atomic::AtomicBool;
use std::collections::{BTreeMap, VecDeque};

use smallvec::SmallVec;

use crate::format::{Place, SegmentKind};
use crate::index::leaf::SegmentId;
use crate::plant;
use forebay_common::lock::Mutex;

use inner::Until;
use retire::Retiring;

/// A segment in use.
#[derive(Clone, Debug)]
pub(crate) struct Segment {
    pub(crate) seq: u64,
    pub(crate) position: u64,
    pub(crate) kind: SegmentKind,
    /// Where its copies are; none if every device that held one is gone.
    pub(crate) legs: SmallVec<[Place; 2]>,
    /// Blocks the index has here.
    pub(crate) live: u32,
    /// Blocks the backing store does not have yet.
    pub(crate) dirty: u32,
    /// Of these, blocks of which no copy can be read.
    pub(crate) damaged: u32,
    /// Truncations the backing store has not carried out yet.
    pub(crate) holds: u32,
    /// Slots below this are durable.
    pub(crate) durable: u16,
    /// Nothing more will be written to it.
    pub(crate) sealed: bool,
    pub(crate) warmth: Warmth,
}

/// Whether the index has what a segment holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Warmth {
    /// Nothing of it yet.
    Cold,
    /// Some of it: it is being loaded.
    Loading,
    Warm,
}

/// The order in which segments are let go: by position; clean ones before the log segment that was open when they were
/// opened, because a record in that one may be about them.
pub(crate) type Order = (u64, bool, u64);

/// How far back a pool reaches; every frame carries it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reach {
    /// The oldest segment of the log, by its seq.
    pub(crate) tail: u64,
    /// Segments before this are not in use.
    pub(crate) oldest: Order,
}

impl Reach {
    /// From the form it has on the devices.
    pub(crate) fn new(tail: u64, position: u64, seq: u64) -> Self {
        // There is one log segment of a position, and it is not dead: nothing may come between.
        let oldest = if seq == u64::MAX { (position, true, 0) } else { (position, false, seq) };
        Reach { tail, oldest }
    }
}

#[derive(Debug, Default)]
struct Inner {
    table: BTreeMap<SegmentId, Segment>,
    next_id: SegmentId,
    next_seq: u64,
    /// The newest log segment there ever was; 0 for none.
    last_log: u64,
    log: VecDeque<SegmentId>,
    /// Segments that have left the log since start.
    left: u64,
    /// The log's oldest segment, and how many dirty blocks it had when it became that.
    oldest: (SegmentId, u32),
    fifo: BTreeMap<Order, SegmentId>,
    /// Segments not in use, by device; the last is used first.
    free: Vec<Vec<u32>>,
    /// All segments, by device in use.
    totals: Vec<u32>,
    /// Blocks the index has on the devices, and how many of them are dirty.
    live: u64,
    dirty: u64,
    /// Dirty blocks of which no copy can be read.
    damaged: u64,
    pending: Vec<(Place, Until)>,
    /// Copies that are being repaired: their places are not used for anything else until that has ended.
    repairs: Vec<Place>,
    /// The device that is being removed.
    retiring: Option<Retiring>,
    /// The newest segment (its `seq`) that had fewer than two legs while it was in the log; 0 for none.
    lone: u64,
    /// The newest tail that is durable.
    durable_tail: u64,
    /// Segments before this position are not in use, durably.
    durable_oldest: u64,
}

/// The segment table of a pool.
#[derive(Debug, Default)]
pub(crate) struct Segments {
    inner: Mutex<Inner>,
    /// Some segments are not in the index yet.
    warming: AtomicBool,
}

/// How full the log is.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LogUse {
    /// Segments in it.
    pub(crate) segments: usize,
    /// Segments it should have at most.
    pub(crate) share: usize,
    /// Blocks that the backing store does not have yet.
    pub(crate) dirty: u64,
    /// Segments that have left it since start, and the part of the oldest one that keeps it no longer.
    pub(crate) left: f64,
}

/// A segment just opened.
#[derive(Clone, Debug)]
pub(crate) struct Opened {
    pub(crate) id: SegmentId,
    pub(crate) seq: u64,
    pub(crate) position: u64,
    /// Of a log segment: the one before it.
    pub(crate) previous: u64,
    pub(crate) legs: SmallVec<[Place; 2]>,
}

impl Segments {
    /// A table of `next_seq..` with nothing in it; `free[device]` lists the unused segments.
    pub(crate) fn new(next_seq: u64, free: Vec<Vec<u32>>, totals: Vec<u32>) -> Self {
        let inner = Inner { next_seq, free, totals, durable_tail: 1, ..Inner::default() };
        Segments { inner: Mutex::new(inner), warming: AtomicBool::new(false) }
    }

    /// Adds a segment found by recovery; those of the log come in order.
    pub(crate) fn restore(&self, segment: Segment, in_log: bool) -> SegmentId {
        let mut inner = self.inner.lock();
        let (seq, legs) = (segment.seq, segment.legs.len());
        let id = inner.insert(segment);
        if in_log {
            inner.log.push_back(id);
            inner.has_lone_leg(legs, seq);
        }
        id
    }

    /// A copy of what is known about a segment.
    pub(crate) fn get(&self, id: SegmentId) -> Option<Segment> {
        self.inner.lock().table.get(&id).cloned()
    }

    /// The index refers to one more block of the segment. Returns the segment's position.
    pub(crate) fn place(&self, id: SegmentId, dirty: bool) -> u64 {
        let mut inner = self.inner.lock();
        let Some(segment) = inner.get(id) else { return 0 };
        segment.live += 1;
        segment.dirty += u32::from(dirty);
        let position = segment.position;
        inner.live += 1;
        inner.dirty += u64::from(dirty);
        position
    }

    /// The index refers to one block less.
    pub(crate) fn unplace(&self, id: SegmentId, dirty: bool) {
        let mut inner = self.inner.lock();
        if let Some(segment) = inner.get(id) {
            segment.live -= 1;
            segment.dirty -= u32::from(dirty);
            inner.live -= u64::from(!plant::active("counters drift"));
            inner.dirty -= u64::from(dirty);
        }
    }

    /// A block became clean.
    pub(crate) fn clean(&self, id: SegmentId) {
        let mut inner = self.inner.lock();
        if let Some(segment) = inner.get(id) {
            segment.dirty -= 1;
            inner.dirty -= 1;
        }
    }

    /// No copy of a dirty block can be read; or (`false`) it does not matter any more.
    pub(crate) fn damage(&self, id: SegmentId, damaged: bool) {
        let mut inner = self.inner.lock();
        if let Some(segment) = inner.get(id) {
            if damaged {
                segment.damaged += 1;
                inner.damaged += 1;
            } else {
                segment.damaged -= 1;
                inner.damaged -= 1;
            }
        }
    }

    /// Keeps the segment in the log until [`Segments::release`].
    pub(crate) fn hold(&self, id: SegmentId) {
        if let Some(segment) = self.inner.lock().get(id) {
            segment.holds += 1;
        }
    }

    /// Undoes one hold.
    pub(crate) fn release(&self, id: SegmentId) {
        if let Some(segment) = self.inner.lock().get(id) {
            segment.holds -= 1;
        }
    }

    /// Everything below `slot` is durable.
    pub(crate) fn durable(&self, id: SegmentId, slot: u16) {
        if let Some(segment) = self.inner.lock().get(id) {
            segment.durable = segment.durable.max(slot);
        }
    }

    /// Nothing more will be written to the segment.
    pub(crate) fn seal(&self, id: SegmentId) {
        if let Some(segment) = self.inner.lock().get(id) {
            segment.sealed = true;
        }
    }

    /// Whether nothing more will be written to the segment, or it was let go.
    pub(crate) fn is_sealed(&self, id: SegmentId) -> bool {
        self.inner.lock().table.get(&id).is_none_or(|segment| segment.sealed)
    }

    /// Whether recovery could still find a segment of this position.
    pub(crate) fn may_be_found(&self, position: u64) -> bool {
        position >= self.inner.lock().durable_oldest
    }

    /// Blocks the index has on the devices, and how many of them are dirty.
    pub(crate) fn blocks(&self) -> (u64, u64) {
        let inner = self.inner.lock();
        (inner.live, inner.dirty)
    }

    /// The fewest unused segments of any device that takes some, counting those that are once it is durable.
    pub(crate) fn unused_everywhere(&self) -> usize {
        self.inner.lock().least_free()
    }

    /// Dirty blocks of which no copy can be read.
    pub(crate) fn damaged(&self) -> u64 {
        self.inner.lock().damaged
    }

    /// Every segment in use.
    pub(crate) fn all(&self) -> Vec<(SegmentId, Segment)> {
        self.inner.lock().table.iter().map(|(id, segment)| (*id, segment.clone())).collect()
    }
}
