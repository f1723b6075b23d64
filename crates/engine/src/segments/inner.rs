//! The segment table under its lock.

use super::{Inner, Order, Reach, Segment, SegmentId};
use crate::format::{Place, SegmentKind};
use crate::planted_bugs;

/// The condition under which a given-up leg may be used again.
#[derive(Debug)]
pub(super) enum Until {
    /// The segment has left the log.
    Tail(u64),
    /// The segment was freed.
    Oldest(Order),
}

impl Until {
    /// Returns true if the log has come so far that the place may be reused.
    pub(super) fn is_past(&self, reach: Reach) -> bool {
        match self {
            Until::Tail(seq) => *seq < reach.tail,
            Until::Oldest(order) => *order < reach.oldest,
        }
    }
}

pub(super) fn order(segment: &Segment) -> Order {
    (segment.position, segment.kind == SegmentKind::Log, segment.seq)
}

impl Inner {
    pub(super) fn has_two_legs(&self, id: SegmentId) -> bool {
        self.table.get(&id).is_some_and(|segment| segment.legs.len() > 1)
    }

    pub(super) fn get(&mut self, id: SegmentId) -> Option<&mut Segment> {
        self.table.get_mut(&id)
    }

    /// Adds a segment to the table and to the order of eviction.
    pub(super) fn insert(&mut self, segment: Segment) -> SegmentId {
        let id = self.unused_id();
        self.next_seq = self.next_seq.max(segment.seq + 1);
        if segment.kind == SegmentKind::Log {
            self.last_log = self.last_log.max(segment.seq);
        }
        let other = self.fifo.insert(order(&segment), id);
        assert!(other.is_none(), "two segments at one place of the order: {segment:?}");
        self.table.insert(id, segment);
        id
    }

    /// Returns a number that no segment in use has. After 2^32 segments the numbers start again, without those in
    /// use. Numbers are in memory only, and a pool has far fewer segments.
    fn unused_id(&mut self) -> SegmentId {
        loop {
            let id = self.next_id;
            self.next_id = id.wrapping_add(1);
            // The highest number stands for no segment (`request/no_device.rs`).
            if id != SegmentId::MAX && !self.table.contains_key(&id) {
                return id;
            }
        }
    }

    /// Records that a segment of the log has `legs` legs. It is newer than all segments recorded before.
    pub(super) fn has_lone_leg(&mut self, legs: usize, seq: u64) {
        if legs < 2 && !planted_bugs::active("lone legs are taken for mirrored") {
            self.lone = seq;
        }
    }

    pub(super) fn give_up(&mut self, place: Place, until: Until) {
        self.pending.push((place, until));
    }

    /// Frees a segment; see [`Segments::free_segment`].
    pub(super) fn free_segment(&mut self, id: SegmentId) {
        let Some(segment) = self.table.remove(&id) else { return };
        self.live -= u64::from(segment.live);
        self.dirty -= u64::from(segment.dirty);
        self.damaged -= u64::from(segment.damaged);
        let order = order(&segment);
        let freed = self.fifo.remove(&order);
        assert_eq!(freed, Some(id), "the order has another segment in place of {segment:?}");
        segment.legs.iter().for_each(|place| self.give_up(*place, Until::Oldest(order)));
    }

    /// Moves the log tail; see [`Segments::advance`].
    pub(super) fn advance(&mut self) {
        while let Some(id) = self.log.front().copied() {
            let Some(segment) = self.get(id) else { break };
            let dirty = segment.dirty > 0 && !planted_bugs::active("the tail does not wait for dirty blocks");
            if !segment.sealed || dirty || segment.holds > 0 {
                break;
            }
            let (seq, legs) = (segment.seq, segment.legs.clone());
            if legs.len() > 1
                && let Some(place) = self.fullest(&legs)
            {
                self.get(id).into_iter().for_each(|segment| segment.legs.retain(|leg| *leg != place));
                self.give_up(place, Until::Tail(seq));
            }
            self.log.pop_front();
            self.left += 1;
        }
    }

    /// Returns the part of the log's oldest segment that does not keep it any more. It grows as dirty blocks become
    /// fewer.
    pub(super) fn leaving(&mut self) -> f64 {
        let Some((id, dirty)) = self.log.front().and_then(|id| Some((*id, self.table.get(id)?.dirty))) else {
            return 0.0;
        };
        if self.oldest.0 != id {
            self.oldest = (id, dirty);
        }
        // Until the segment is sealed, more of its blocks may become dirty.
        1.0 - f64::from(dirty) / f64::from(self.oldest.1.max(dirty).max(1))
    }

    /// Returns the leg whose device is being removed, or else has the fewest unused segments. Clean segments are to
    /// fill all devices.
    fn fullest(&self, legs: &[Place]) -> Option<Place> {
        let given_up = |device| self.pending.iter().filter(|(place, _)| place.device == device).count();
        let unused = |device: u16| self.free[usize::from(device)].len() + given_up(device);
        legs.iter().rev().min_by_key(|leg| (self.stays(leg.device.into()), unused(leg.device))).copied()
    }

    /// Returns the number of segments that the log should have at most. The rest is for clean blocks.
    pub(super) fn log_share(&self) -> usize {
        let devices = (0..self.totals.len()).filter(|device| self.takes_log(*device));
        let totals = devices.map(|device| self.totals[device]);
        let (sum, largest) = totals.fold((0, 0), |(sum, max), n| (sum + n, max.max(n)));
        // Both legs are never on one device, unless there is only one device.
        let pairs = if sum == largest { sum } else { (sum / 2).min(sum - largest) };
        pairs as usize * 7 / 10
    }

    /// Returns the number of free places on each device. With `given_up`, places that wait only for the log count.
    pub(super) fn free_now(&self, given_up: bool) -> Vec<usize> {
        let reach = self.reach();
        let mut free: Vec<usize> = self.free.iter().map(Vec::len).collect();
        for (place, until) in self.pending.iter().filter(|_| given_up) {
            free[usize::from(place.device)] += usize::from(until.is_past(reach) && !self.is_repaired(*place));
        }
        free
    }

    /// Returns the fewest unused segments of any device that takes log segments. Given-up segments that become unused
    /// once that is durable are counted.
    pub(super) fn least_free(&self) -> usize {
        let free = self.free_now(true).into_iter().enumerate();
        free.filter(|(device, _)| self.takes_log(*device)).map(|(_, free)| free).min().unwrap_or(0)
    }

    /// Returns true if the segment keeps clean segments from being evicted; see [`Segments::blocks_eviction`].
    pub(super) fn blocks_eviction(&self, id: SegmentId, spare: usize) -> bool {
        self.fifo.values().next() == Some(&id) && self.least_free() < spare
    }

    /// Returns the tail of the log and the oldest segment.
    pub(super) fn reach(&self) -> Reach {
        let tail = self.log.front().and_then(|id| self.table.get(id)).map_or(self.next_seq, |s| s.seq);
        let oldest = self.fifo.keys().next().copied().unwrap_or((self.next_seq, false, 0));
        Reach { tail, oldest }
    }
}
