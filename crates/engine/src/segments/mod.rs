//! The segment table: where each segment is, which blocks it holds, and when its space may be used again.
//!
//! Invariants:
//! - `log` lists the segments from the tail (the oldest that may hold dirty blocks) to the head (being written).
//! - `fifo` lists every segment by (position, clean before log). Segments are freed in this order and no other, so a
//!   record that invalidates older copies outlives those copies.
//! - A leg that was given up is free only once a durable frame says so, with `tail` and `oldest` past it. It is not
//!   free while a repair of it is in flight to the device.
//!
//! [`Segments::check`] looks through the table, and the simulator calls it after each operation of a client.
//! [`Segments::open`] and the insertion of a segment assert the order in every build.

mod check;
mod inner;
mod log;
mod repair;
mod retire;
mod space;
#[cfg(test)]
mod tests;
mod warm;

use forebay_common::lock::atomic::{AtomicBool, AtomicU64, Ordering};
use std::collections::{BTreeMap, VecDeque};

use smallvec::SmallVec;

use crate::format::{Place, SegmentKind};
use crate::index::policy::Standing;
use crate::planted_bugs;
use forebay_common::lock::Mutex;

use inner::Until;
use retire::Retiring;

/// The number of a segment in the segment table.
pub(crate) type SegmentId = u32;

/// A segment in use.
#[derive(Clone, Debug)]
pub(crate) struct Segment {
    pub(crate) seq: u64,
    pub(crate) position: u64,
    pub(crate) kind: SegmentKind,
    /// The places of the segment's copies; none if every device that held one is lost.
    pub(crate) legs: SmallVec<[Place; 2]>,
    /// Number of blocks of the segment in the index.
    pub(crate) live: u32,
    /// Number of blocks that the backing store does not have yet.
    pub(crate) dirty: u32,
    /// Number of dirty blocks of which no copy can be read.
    pub(crate) damaged: u32,
    /// Number of holds that keep the segment in the log, such as truncations that the backing store has not carried
    /// out.
    pub(crate) holds: u32,
    /// The first slot that is not known to be durable.
    pub(crate) durable: u16,
    /// True if nothing more will be written to the segment.
    pub(crate) sealed: bool,
    pub(crate) warmth: Warmth,
}

impl Segment {
    /// Returns an open segment without blocks.
    pub(crate) fn new(seq: u64, position: u64, kind: SegmentKind, legs: SmallVec<[Place; 2]>) -> Self {
        Segment {
            seq,
            position,
            kind,
            legs,
            live: 0,
            dirty: 0,
            damaged: 0,
            holds: 0,
            durable: 0,
            sealed: false,
            warmth: Warmth::Warm,
        }
    }

    /// Returns a sealed segment, whose blocks are still to be put into the index.
    pub(crate) fn found(self, warmth: Warmth) -> Self {
        Segment { durable: u16::MAX, sealed: true, warmth, ..self }
    }
}

/// The loading state of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Warmth {
    /// The index has no block of the segment yet.
    Cold,
    /// The segment is being loaded: the index has some of its blocks.
    Loading,
    Warm,
}

/// The order in which segments are freed: by position. Clean segments come before the log segment that was open when
/// they were opened, because a record in that one may be about them.
pub(crate) type Order = (u64, bool, u64);

/// How far back a pool reaches. Every frame carries its reach.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reach {
    /// The `seq` of the oldest segment of the log.
    pub(crate) tail: u64,
    /// Segments before this one are not in use.
    pub(crate) oldest: Order,
}

impl Reach {
    /// Returns the reach from its form on the devices.
    pub(crate) fn new(tail: u64, position: u64, seq: u64) -> Self {
        // A position has one log segment, which is not dead, so no clean segment may come between.
        let oldest = if seq == u64::MAX { (position, true, 0) } else { (position, false, seq) };
        Reach { tail, oldest }
    }
}

#[derive(Debug, Default)]
struct Inner {
    table: BTreeMap<SegmentId, Segment>,
    next_id: SegmentId,
    next_seq: u64,
    /// The newest log segment that ever existed; 0 for none.
    last_log: u64,
    log: VecDeque<SegmentId>,
    /// Number of segments that have left the log since the start.
    left: u64,
    /// The log's oldest segment, and its number of dirty blocks when it became the oldest.
    oldest: (SegmentId, u32),
    fifo: BTreeMap<Order, SegmentId>,
    /// Unused segments, by device; the last one is used first.
    free: Vec<Vec<u32>>,
    /// Number of all segments, by device in use.
    totals: Vec<u32>,
    /// Number of blocks that the index has on the devices, and of the dirty ones among them.
    live: u64,
    dirty: u64,
    /// Number of dirty blocks of which no copy can be read.
    damaged: u64,
    pending: Vec<(Place, Until)>,
    /// Copies that are being repaired. Their places are not reused until the repair has ended.
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
    /// True if some segments are not in the index yet.
    warming: AtomicBool,
    /// Number of blocks of pinned objects that the index has on the devices.
    pinned: AtomicU64,
    /// Number of blocks of other objects of high priority that the index has on the devices.
    high: AtomicU64,
}

/// How full the log is.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LogUse {
    /// Number of segments in the log.
    pub(crate) segments: usize,
    /// The highest number of segments that the log should have.
    pub(crate) share: usize,
    /// Number of blocks that the backing store does not have yet.
    pub(crate) dirty: u64,
    /// Number of segments that have left the log since the start, and the part of the oldest segment that is ready to
    /// leave.
    pub(crate) left: f64,
}

/// A segment that was just opened.
#[derive(Clone, Debug)]
pub(crate) struct Opened {
    pub(crate) id: SegmentId,
    pub(crate) seq: u64,
    pub(crate) position: u64,
    /// For a log segment: the log segment before it.
    pub(crate) previous: u64,
    pub(crate) legs: SmallVec<[Place; 2]>,
}

impl Segments {
    /// Returns an empty table whose next segment is `next_seq`. `free[device]` lists the unused segments.
    pub(crate) fn new(next_seq: u64, free: Vec<Vec<u32>>, totals: Vec<u32>) -> Self {
        let inner = Inner { next_seq, free, totals, durable_tail: 1, ..Inner::default() };
        Segments { inner: Mutex::new(inner), ..Segments::default() }
    }

    /// Adds a segment found by recovery. Segments of the log come in order.
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

    /// Returns a copy of the segment's entry in the table.
    pub(crate) fn get(&self, id: SegmentId) -> Option<Segment> {
        self.inner.lock().table.get(&id).cloned()
    }

    /// Counts a block of the segment that the index refers to. Returns the segment's position.
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

    /// Uncounts a block of the segment that the index does not refer to any more.
    pub(crate) fn unplace(&self, id: SegmentId, dirty: bool) {
        let mut inner = self.inner.lock();
        if let Some(segment) = inner.get(id) {
            segment.live -= 1;
            segment.dirty -= u32::from(dirty);
            inner.live -= u64::from(!planted_bugs::active("counters drift"));
            inner.dirty -= u64::from(dirty);
        }
    }

    /// Counts a dirty block that became clean.
    pub(crate) fn clean(&self, id: SegmentId) {
        let mut inner = self.inner.lock();
        if let Some(segment) = inner.get(id) {
            segment.dirty -= 1;
            inner.dirty -= 1;
        }
    }

    /// Counts a dirty block of which no copy can be read. With `false`, uncounts such a block.
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

    /// Counts blocks of objects with this standing.
    pub(crate) fn count(&self, standing: Standing, blocks: u64) {
        if let Some(count) = self.count_of(standing) {
            count.fetch_add(blocks, Ordering::Relaxed);
        }
    }

    /// Uncounts blocks of objects with this standing.
    pub(crate) fn uncount(&self, standing: Standing, blocks: u64) {
        if let Some(count) = self.count_of(standing) {
            count.fetch_sub(blocks, Ordering::Relaxed);
        }
    }

    fn count_of(&self, standing: Standing) -> Option<&AtomicU64> {
        match standing {
            Standing::Usual => None,
            Standing::Pinned => Some(&self.pinned),
            Standing::High => Some(&self.high),
        }
    }

    /// Returns the number of blocks of pinned objects that the index has on the devices.
    pub(crate) fn pinned(&self) -> u64 {
        self.pinned.load(Ordering::Relaxed)
    }

    /// Returns the number of blocks of objects of high priority, not pinned, that the index has on the devices.
    pub(crate) fn high(&self) -> u64 {
        self.high.load(Ordering::Relaxed)
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

    /// Marks everything below `slot` as durable.
    pub(crate) fn durable(&self, id: SegmentId, slot: u16) {
        if let Some(segment) = self.inner.lock().get(id) {
            segment.durable = segment.durable.max(slot);
        }
    }

    /// Marks the segment as sealed: nothing more will be written to it.
    pub(crate) fn seal(&self, id: SegmentId) {
        if let Some(segment) = self.inner.lock().get(id) {
            segment.sealed = true;
        }
    }

    /// Returns true if nothing more will be written to the segment, or it was freed.
    pub(crate) fn is_sealed(&self, id: SegmentId) -> bool {
        self.inner.lock().table.get(&id).is_none_or(|segment| segment.sealed)
    }

    /// Returns true if recovery could still find a segment of this position.
    pub(crate) fn may_be_found(&self, position: u64) -> bool {
        position >= self.inner.lock().durable_oldest
    }

    /// Returns the number of blocks that the index has on the devices, and of the dirty ones among them.
    pub(crate) fn blocks(&self) -> (u64, u64) {
        let inner = self.inner.lock();
        (inner.live, inner.dirty)
    }

    /// Returns the fewest unused segments of any device that takes log segments. Given-up segments that become unused
    /// once that is durable are counted.
    pub(crate) fn unused_everywhere(&self) -> usize {
        self.inner.lock().least_free()
    }

    /// Returns the number of dirty blocks of which no copy can be read.
    pub(crate) fn damaged(&self) -> u64 {
        self.inner.lock().damaged
    }

    /// Returns every segment in use.
    pub(crate) fn all(&self) -> Vec<(SegmentId, Segment)> {
        self.inner.lock().table.iter().map(|(id, segment)| (*id, segment.clone())).collect()
    }
}
