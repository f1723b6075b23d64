//! Which segment is where, what it holds, and when its space may be used again.
//!
//! Invariants:
//! - `log` lists the segments from the tail (the oldest that may hold dirty blocks) to the head (being written).
//! - `fifo` lists every segment by (position, clean before log): they are let go in this order and no other, so a
//!   record that says "older copies do not count" outlives those copies.
//! - A leg that was given up is free only once a durable frame says so: its `tail` and `oldest` are past it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};

use smallvec::SmallVec;

use crate::format::{Place, SegmentKind};
use crate::leaf::SegmentId;
use crate::lock::Mutex;
use crate::plant;

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

fn order(segment: &Segment) -> Order {
    (segment.position, segment.kind == SegmentKind::Log, segment.seq)
}

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

/// What lets a given-up leg be used again.
#[derive(Debug)]
enum Until {
    /// The segment left the log.
    Tail(u64),
    /// The segment was let go.
    Oldest(Order),
}

impl Until {
    fn is_past(&self, reach: Reach) -> bool {
        match self {
            Until::Tail(seq) => *seq < reach.tail,
            Until::Oldest(order) => *order < reach.oldest,
        }
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
    /// Devices in use that take no new segments.
    retired: Vec<u16>,
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
    /// Segments that have left it since start.
    pub(crate) left: u64,
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

impl Inner {
    /// False for one that is only about to join.
    fn takes_segments(&self, device: usize) -> bool {
        let there = self.totals.get(device).is_some_and(|total| *total > 0);
        there && !self.retired.contains(&(device as u16))
    }

    fn has_two_legs(&self, id: SegmentId) -> bool {
        self.table.get(&id).is_some_and(|segment| segment.legs.len() > 1)
    }

    fn get(&mut self, id: SegmentId) -> Option<&mut Segment> {
        self.table.get_mut(&id)
    }

    fn insert(&mut self, segment: Segment) -> SegmentId {
        let id = self.next_id;
        self.next_id += 1;
        self.next_seq = self.next_seq.max(segment.seq + 1);
        if segment.kind == SegmentKind::Log {
            self.last_log = self.last_log.max(segment.seq);
        }
        self.fifo.insert(order(&segment), id);
        self.table.insert(id, segment);
        id
    }

    /// A segment of the log, newer than all that were told of before, has so many legs.
    fn has_lone_leg(&mut self, legs: usize, seq: u64) {
        if legs < 2 && !plant::active("lone legs are taken for mirrored") {
            self.lone = seq;
        }
    }

    fn give_up(&mut self, place: Place, until: Until) {
        if plant::active("legs given up are used at once") {
            self.free[usize::from(place.device)].push(place.segment);
        } else {
            self.pending.push((place, until));
        }
    }

    /// See [`Segments::let_go`].
    fn let_go(&mut self, id: SegmentId) {
        let Some(segment) = self.table.remove(&id) else { return };
        self.live -= u64::from(segment.live);
        self.dirty -= u64::from(segment.dirty);
        self.damaged -= u64::from(segment.damaged);
        let order = order(&segment);
        self.fifo.remove(&order);
        segment.legs.iter().for_each(|place| self.give_up(*place, Until::Oldest(order)));
    }

    /// See [`Segments::advance`].
    fn advance(&mut self) {
        while let Some(id) = self.log.front().copied() {
            let Some(segment) = self.get(id) else { break };
            let dirty = segment.dirty > 0 && !plant::active("the tail does not wait for dirty blocks");
            if !segment.sealed || dirty || segment.holds > 0 {
                break;
            }
            let seq = segment.seq;
            let second = (segment.legs.len() > 1).then(|| segment.legs.pop()).flatten();
            if let Some(place) = second {
                self.give_up(place, Until::Tail(seq));
            }
            self.log.pop_front();
            self.left += 1;
        }
    }

    /// Segments the log should have at most: the rest is for clean blocks.
    fn log_share(&self) -> usize {
        let devices = (0..self.totals.len()).filter(|device| self.takes_segments(*device));
        let totals = devices.map(|device| self.totals[device]);
        let (sum, largest) = totals.fold((0, 0), |(sum, max), n| (sum + n, max.max(n)));
        // Both legs are never on one device, unless there is only one.
        let pairs = if sum == largest { sum } else { (sum / 2).min(sum - largest) };
        pairs as usize * 7 / 10
    }

    fn free_now(&self, given_up: bool) -> Vec<usize> {
        let reach = self.reach();
        let mut free: Vec<usize> = self.free.iter().map(Vec::len).collect();
        for (place, until) in self.pending.iter().filter(|_| given_up) {
            free[usize::from(place.device)] += usize::from(until.is_past(reach));
        }
        free
    }

    fn reach(&self) -> Reach {
        let tail = self.log.front().and_then(|id| self.table.get(id)).map_or(self.next_seq, |s| s.seq);
        let oldest = self.fifo.keys().next().copied().unwrap_or((self.next_seq, false, 0));
        Reach { tail, oldest }
    }
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

    /// Opens a segment with `legs` copies on different devices, those with most room first, if on each of them more
    /// than `spare` segments are unused.
    pub(crate) fn open(&self, kind: SegmentKind, legs: usize, spare: usize) -> Option<Opened> {
        let mut inner = self.inner.lock();
        let mut devices: Vec<usize> = (0..inner.free.len())
            .filter(|d| inner.takes_segments(*d) && inner.free[*d].len() > spare)
            .collect();
        devices.sort_by_key(|d| std::cmp::Reverse(inner.free[*d].len()));
        if devices.len() < legs {
            return None;
        }
        let places = |inner: &mut Inner| {
            let take = devices.iter().take(legs);
            take.filter_map(|d| Some(Place { device: *d as u16, segment: inner.free[*d].pop()? })).collect()
        };
        let legs: SmallVec<[Place; 2]> = places(&mut inner);
        let seq = inner.next_seq;
        let head = inner.log.back().and_then(|id| inner.table.get(id)).map(|s| s.seq);
        let position = if kind == SegmentKind::Log { seq } else { head.unwrap_or(seq) };
        let segment = Segment {
            seq,
            position,
            kind,
            legs: legs.clone(),
            live: 0,
            dirty: 0,
            damaged: 0,
            holds: 0,
            durable: 0,
            sealed: false,
            warmth: Warmth::Warm,
        };
        let previous = inner.last_log;
        let id = inner.insert(segment);
        if kind == SegmentKind::Log {
            inner.log.push_back(id);
            inner.has_lone_leg(legs.len(), seq);
        }
        Some(Opened { id, seq, position, previous, legs })
    }

    /// Whether [`Segments::open`] would find `legs` devices with an unused segment; with `given_up`, counting those
    /// that are unused once it is durable.
    pub(crate) fn could_open(&self, legs: usize, given_up: bool) -> bool {
        let inner = self.inner.lock();
        let free = inner.free_now(given_up).into_iter().enumerate();
        free.filter(|(device, free)| *free > 0 && inner.takes_segments(*device)).count() >= legs
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

    /// Whether recovery could still find a segment of this position.
    pub(crate) fn may_be_found(&self, position: u64) -> bool {
        position >= self.inner.lock().durable_oldest
    }

    /// Whether the devices hold clean copies that the index does not know of yet.
    pub(crate) fn is_warming(&self) -> bool {
        self.warming.load(Ordering::Acquire)
    }

    pub(crate) fn set_warming(&self, warming: bool) {
        self.warming.store(warming, Ordering::Release);
    }

    /// A segment is being put into the index. None if it was let go.
    pub(crate) fn begin_load(&self, id: SegmentId) -> Option<()> {
        let mut inner = self.inner.lock();
        let segment = inner.get(id)?;
        segment.warmth = Warmth::Loading;
        Some(())
    }

    /// The index has the segment. Of two legs that were found the one at `place` counts, if it is given.
    pub(crate) fn end_load(&self, id: SegmentId, place: Option<Place>) {
        let mut inner = self.inner.lock();
        let Some(segment) = inner.get(id) else { return };
        segment.warmth = Warmth::Warm;
        let Some(kept) = place.filter(|place| segment.legs.contains(place)) else { return };
        let legs = std::mem::replace(&mut segment.legs, smallvec::smallvec![kept]);
        // Given up before the restart: that the segment left the log is durable.
        for other in legs.into_iter().filter(|place| *place != kept) {
            inner.free[usize::from(other.device)].push(other.segment);
        }
    }

    /// Lets go of a segment of which the index has nothing; false if it has some of it.
    pub(crate) fn let_go_cold(&self, id: SegmentId) -> bool {
        let mut inner = self.inner.lock();
        let cold = inner.get(id).is_some_and(|segment| segment.warmth == Warmth::Cold);
        if cold {
            inner.let_go(id);
        }
        cold
    }

    /// Lets go of all segments of which the index has nothing; false if there are none.
    pub(crate) fn let_go_all_cold(&self) -> bool {
        let mut inner = self.inner.lock();
        let cold = inner.table.iter().filter(|(_, segment)| segment.warmth == Warmth::Cold);
        let cold: Vec<_> = cold.map(|(id, _)| *id).collect();
        cold.iter().for_each(|id| inner.let_go(*id));
        !cold.is_empty()
    }

    /// Whether a segment is being loaded.
    pub(crate) fn is_loading(&self, id: SegmentId) -> bool {
        let inner = self.inner.lock();
        inner.table.get(&id).is_some_and(|segment| segment.warmth == Warmth::Loading)
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

    /// A block became clean.
    pub(crate) fn clean(&self, id: SegmentId) {
        let mut inner = self.inner.lock();
        if let Some(segment) = inner.get(id) {
            segment.dirty -= 1;
            inner.dirty -= 1;
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

    /// Lets segments leave the log, strictly oldest first; their second legs are given up. Returns where the log
    /// now reaches.
    pub(crate) fn advance(&self) -> Reach {
        let mut inner = self.inner.lock();
        inner.advance();
        inner.reach()
    }

    /// A frame with `reach` is durable: legs given up before it may be used again. Returns whether any became free, or
    /// the log was rid of its lone legs.
    pub(crate) fn reached(&self, reach: Reach) -> bool {
        let mut inner = self.inner.lock();
        let lone = inner.lone >= inner.durable_tail;
        inner.durable_tail = inner.durable_tail.max(reach.tail);
        inner.durable_oldest = inner.durable_oldest.max(reach.oldest.0);
        let rid = lone && inner.lone < inner.durable_tail;
        let pending = std::mem::take(&mut inner.pending);
        let before = pending.len();
        for (place, until) in pending {
            if inner.totals[usize::from(place.device)] == 0 {
                continue;
            }
            if until.is_past(reach) {
                inner.free[usize::from(place.device)].push(place.segment);
            } else {
                inner.pending.push((place, until));
            }
        }
        rid || inner.pending.len() < before
    }

    /// The next segment to let go, though it may still be being filled; `None` if it is part of the log.
    pub(crate) fn first(&self) -> Option<(SegmentId, Segment)> {
        let inner = self.inner.lock();
        let id = *inner.fifo.values().next()?;
        let segment = inner.table.get(&id)?;
        (!inner.log.contains(&id)).then(|| (id, segment.clone()))
    }

    /// Lets go of a segment; its legs become free in time.
    pub(crate) fn let_go(&self, id: SegmentId) {
        self.inner.lock().let_go(id);
    }

    /// A device is gone, and every leg on it.
    pub(crate) fn lose(&self, device: u16) {
        let mut inner = self.inner.lock();
        for segment in inner.table.values_mut() {
            segment.legs.retain(|place| place.device != device);
        }
        let is_lone = |id: &&SegmentId| inner.table.get(id).is_some_and(|segment| segment.legs.len() < 2);
        let newest = inner.log.iter().rev().find(is_lone).and_then(|id| inner.table.get(id));
        if let Some((legs, seq)) = newest.map(|segment| (segment.legs.len(), segment.seq)) {
            inner.has_lone_leg(legs, seq);
        }
        inner.pending.retain(|(place, _)| place.device != device);
        if let Some(free) = inner.free.get_mut(usize::from(device)) {
            free.clear();
        }
        if let Some(total) = inner.totals.get_mut(usize::from(device)) {
            *total = 0;
        }
    }

    /// Nothing more is put on a device; or (`false`) it is as before.
    pub(crate) fn retire(&self, device: u16, retired: bool) {
        let mut inner = self.inner.lock();
        inner.retired.retain(|other| *other != device);
        if retired {
            inner.retired.push(device);
        }
    }

    /// Whether a segment of the log has a leg on the device.
    pub(crate) fn log_is_on(&self, device: u16) -> bool {
        let inner = self.inner.lock();
        let mut segments = inner.log.iter().filter_map(|id| inner.table.get(id));
        segments.any(|segment| segment.legs.iter().any(|place| place.device == device))
    }

    /// Devices that take new segments.
    pub(crate) fn devices(&self) -> usize {
        let inner = self.inner.lock();
        (0..inner.totals.len()).filter(|device| inner.takes_segments(*device)).count()
    }

    /// A device came: all its segments are free.
    pub(crate) fn gain(&self, device: u16, segments: u32) {
        let mut inner = self.inner.lock();
        let index = usize::from(device);
        if inner.free.len() <= index {
            inner.free.resize_with(index + 1, Vec::new);
            inner.totals.resize(index + 1, 0);
        }
        inner.totals[index] = segments;
        inner.retired.retain(|other| *other != device);
        inner.free[index] = (0..segments).rev().collect();
    }

    /// The fewest unused segments of any of `devices`; with `given_up`, counting those that are unused once it is
    /// durable.
    pub(crate) fn least_free(&self, devices: &[u16], given_up: bool) -> usize {
        let inner = self.inner.lock();
        let free = inner.free_now(given_up);
        let devices = devices.iter().map(|device| usize::from(*device));
        let takes = devices.filter(|device| inner.takes_segments(*device));
        takes.map(|device| free.get(device).copied().unwrap_or(0)).min().unwrap_or(0)
    }

    /// How full the log is.
    pub(crate) fn log_use(&self) -> LogUse {
        let mut inner = self.inner.lock();
        inner.advance();
        LogUse { segments: inner.log.len(), share: inner.log_share(), dirty: inner.dirty, left: inner.left }
    }

    /// The oldest segment of the log, if the log has nearly outgrown its share and a quarter of it is of no use any more.
    /// Not earlier: what will soon be destaged need not be written again.
    pub(crate) fn worth_compacting(&self, slots: usize) -> Option<(SegmentId, Segment)> {
        let mut inner = self.inner.lock();
        inner.advance();
        let (used, share) = (inner.log.len(), inner.log_share());
        let dirty = usize::try_from(inner.dirty).unwrap_or(usize::MAX);
        if used * 10 < share * 9 || dirty > used * slots / 4 * 3 {
            return None;
        }
        let id = *inner.log.front()?;
        let segment = inner.table.get(&id)?;
        (segment.sealed && segment.holds == 0 && segment.dirty > 0).then(|| (id, segment.clone()))
    }

    /// How many segments the log has from this one on.
    pub(crate) fn log_since(&self, id: SegmentId) -> usize {
        let log = &self.inner.lock().log;
        log.iter().position(|other| *other == id).map_or(0, |at| log.len() - at)
    }

    /// Whether nothing more will be written to the segment, or it was let go.
    pub(crate) fn is_sealed(&self, id: SegmentId) -> bool {
        self.inner.lock().table.get(&id).is_none_or(|segment| segment.sealed)
    }

    /// Blocks the index has on the devices, and how many of them are dirty.
    pub(crate) fn blocks(&self) -> (u64, u64) {
        let inner = self.inner.lock();
        (inner.live, inner.dirty)
    }

    /// Dirty blocks of which no copy can be read.
    pub(crate) fn damaged(&self) -> u64 {
        self.inner.lock().damaged
    }

    /// Whether the whole log is on two devices, durably, and so is what is written to `head` now.
    pub(crate) fn is_mirrored(&self, head: Option<SegmentId>) -> bool {
        let inner = self.inner.lock();
        let lone = inner.lone >= inner.durable_tail;
        head.is_some_and(|head| inner.has_two_legs(head)) && !lone
    }

    /// Whether no segment with fewer than two legs is in the log any more, but this is not durable yet.
    pub(crate) fn lone_left(&self) -> bool {
        let inner = self.inner.lock();
        inner.lone >= inner.durable_tail && inner.reach().tail > inner.lone
    }

    /// Whether the segment has to leave the log before everything in it is on two devices again.
    pub(crate) fn keeps_lone(&self, id: SegmentId) -> bool {
        let inner = self.inner.lock();
        inner.reach().tail <= inner.lone
            && inner.table.get(&id).is_some_and(|segment| segment.seq <= inner.lone)
    }

    /// The log's oldest segment, if its dirty blocks have to be written to the log again: it or a later one has fewer
    /// than two legs (all before that one have to go as well: only records in it may say that they are out of date), or
    /// only blocks that cannot be destaged keep it. None if `head`, where they would go, has fewer than two legs.
    pub(crate) fn to_rewrite(&self, head: SegmentId) -> Option<(SegmentId, Segment)> {
        let inner = self.inner.lock();
        let tail = *inner.log.front().filter(|_| inner.has_two_legs(head))?;
        let segment = inner.table.get(&tail)?;
        let stuck = segment.dirty == segment.damaged;
        let wanted = segment.sealed && segment.dirty > 0 && (stuck || segment.seq <= inner.lone);
        wanted.then(|| (tail, segment.clone()))
    }

    /// Every segment in use.
    pub(crate) fn all(&self) -> Vec<(SegmentId, Segment)> {
        self.inner.lock().table.iter().map(|(id, segment)| (*id, segment.clone())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two devices of `each` segments.
    fn segments(each: u32) -> Segments {
        let free = || (0..each).rev().collect();
        Segments::new(1, vec![free(), free()], vec![each, each])
    }

    fn reach_of(segments: &Segments) -> Reach {
        segments.advance()
    }

    #[test]
    fn a_second_leg_is_free_only_once_a_later_tail_is_durable() {
        let segments = segments(4);
        let old = segments.open(SegmentKind::Log, 2, 0).unwrap();
        segments.place(old.id, true);
        let before = reach_of(&segments);
        segments.seal(old.id);
        segments.open(SegmentKind::Log, 2, 0).unwrap();
        assert_eq!(reach_of(&segments), before, "it holds a dirty block");
        segments.clean(old.id);
        let after = reach_of(&segments);
        assert!(after.tail > before.tail);
        assert!(!segments.reached(before), "an earlier frame says nothing of it");
        assert!(segments.reached(after));
        assert_eq!(segments.get(old.id).unwrap().legs.len(), 1, "the first leg goes on as clean cache");
    }

    #[test]
    fn segments_leave_the_log_oldest_first() {
        let segments = segments(8);
        let opened: Vec<_> = (0..3).map(|_| segments.open(SegmentKind::Log, 2, 0).unwrap()).collect();
        segments.place(opened[0].id, true);
        opened.iter().for_each(|opened| segments.seal(opened.id));
        assert_eq!(reach_of(&segments).tail, opened[0].seq, "clean ones wait for the oldest");
        segments.clean(opened[0].id);
        assert!(reach_of(&segments).tail > opened[2].seq);
    }

    #[test]
    fn a_cut_not_carried_out_holds_its_segment() {
        let segments = segments(8);
        let opened = segments.open(SegmentKind::Log, 2, 0).unwrap();
        segments.hold(opened.id);
        segments.seal(opened.id);
        assert_eq!(reach_of(&segments).tail, opened.seq);
        segments.release(opened.id);
        assert!(reach_of(&segments).tail > opened.seq);
    }

    #[test]
    fn clean_segments_are_let_go_before_the_log_segment_they_were_opened_beside() {
        let segments = segments(8);
        let log = segments.open(SegmentKind::Log, 2, 0).unwrap();
        let clean = segments.open(SegmentKind::Clean, 1, 0).unwrap();
        assert!(clean.seq > log.seq);
        assert_eq!(segments.first().unwrap().0, clean.id);
        segments.let_go(clean.id);
        assert!(segments.first().is_none(), "the log is not let go");
        let reach = reach_of(&segments);
        assert!(segments.reached(reach), "no later record is needed to kill it");
    }

    #[test]
    fn what_is_let_go_is_free_only_once_that_is_durable() {
        let segments = segments(1);
        let clean = segments.open(SegmentKind::Clean, 1, 0).unwrap();
        segments.seal(clean.id);
        segments.let_go(clean.id);
        assert!(!segments.could_open(2, false) && segments.could_open(2, true));
        let reach = reach_of(&segments);
        segments.reached(reach);
        assert!(segments.could_open(2, false));
    }

    #[test]
    fn a_lost_device_takes_its_legs_with_it() {
        let segments = segments(4);
        let opened = segments.open(SegmentKind::Log, 2, 0).unwrap();
        segments.lose(opened.legs[0].device);
        assert_eq!(segments.get(opened.id).unwrap().legs.as_slice(), &opened.legs[1..]);
        assert!(segments.open(SegmentKind::Log, 2, 0).is_none());
        assert_eq!(segments.open(SegmentKind::Log, 1, 0).unwrap().legs[0].device, opened.legs[1].device);
    }
}
