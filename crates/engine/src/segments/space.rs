//! Segments are opened, freed and reused. Devices are added and lost.

use smallvec::SmallVec;

use super::{Inner, Opened, Reach, Segment, SegmentId, Segments};
use crate::format::{Place, SegmentKind};
use crate::planted_bugs;

/// The highest number of segments whose blocks may be written again to make room. Each start opens segments that it
/// hardly uses, and these come later in the order. In larger pools such segments cost too little to matter.
pub(super) const MOVABLE: u64 = 128;

impl Segments {
    /// Opens a segment with `legs` copies on different devices, if each of them has more than `spare` unused
    /// segments. Devices with most room come first.
    pub(crate) fn open(&self, kind: SegmentKind, legs: usize, spare: usize) -> Option<Opened> {
        let mut inner = self.inner.lock();
        let mut devices: Vec<usize> =
            (0..inner.free.len()).filter(|d| inner.takes(kind, *d) && inner.free[*d].len() > spare).collect();
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
        let previous = inner.last_log;
        let id = inner.insert(Segment::new(seq, position, kind, legs.clone()));
        if kind == SegmentKind::Log {
            assert!(head.is_none_or(|head| head < seq), "segment {seq} is older than the head of the log");
            inner.log.push_back(id);
            inner.has_lone_leg(legs.len(), seq);
        }
        Some(Opened { id, seq, position, previous, legs })
    }

    /// Returns true if [`Segments::open`] would find `legs` devices with more than `spare` unused segments. With
    /// `given_up`, given-up segments that become unused once that is durable count as well.
    pub(crate) fn could_open(&self, legs: usize, spare: usize, given_up: bool) -> bool {
        let inner = self.inner.lock();
        let free = inner.free_now(given_up).into_iter().enumerate();
        free.filter(|(device, free)| *free > spare && inner.takes_log(*device)).count() >= legs
    }

    /// Returns true if [`Segments::open`] would find a device with more than `spare` unused segments for clean blocks.
    /// `given_up` is that of [`Segments::could_open`].
    pub(crate) fn could_open_clean(&self, spare: usize, given_up: bool) -> bool {
        let inner = self.inner.lock();
        let mut free = inner.free_now(given_up).into_iter().enumerate();
        free.any(|(device, free)| free > spare && inner.takes(SegmentKind::Clean, device))
    }

    /// Frees the legs that were given up before `reach`, since a frame with it is durable. Returns true if any leg
    /// became free, or if the log lost its last lone leg.
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
            let early =
                planted_bugs::active("legs are used again before it is durable that they are given up");
            if (until.is_past(reach) || early) && !inner.is_repaired(place) {
                inner.free[usize::from(place.device)].push(place.segment);
            } else {
                inner.pending.push((place, until));
            }
        }
        rid || inner.pending.len() < before
    }

    /// Returns the next segment to free, even if it is still being filled; `None` if it is part of the log.
    pub(crate) fn first(&self) -> Option<(SegmentId, Segment)> {
        let inner = self.inner.lock();
        let id = *inner.fifo.values().next()?;
        let segment = inner.table.get(&id)?;
        (!inner.log.contains(&id)).then(|| (id, segment.clone()))
    }

    /// Returns true if live blocks fill less than half of the devices, and are few enough to write them all again.
    pub(crate) fn is_sparse(&self, slots: usize) -> bool {
        let inner = self.inner.lock();
        let segments: u32 = inner.totals.iter().sum();
        let slots = slots as u64;
        (inner.live + inner.dirty) * 2 < u64::from(segments) * slots && inner.live < MOVABLE * slots
    }

    /// Returns true if segments outside of the log take more than half of the devices, but less than a quarter of
    /// their blocks are live. The live blocks must be few enough to write them all again.
    pub(crate) fn is_wasteful(&self, slots: usize) -> bool {
        let inner = self.inner.lock();
        let slots = slots as u64;
        // Until all segments are loaded, the number of live blocks is unknown.
        if inner.live >= MOVABLE * slots || self.is_warming() {
            return false;
        }
        let segments: u32 = inner.totals.iter().sum();
        let unused: usize = inner.free_now(true).into_iter().sum();
        let used = u64::from(segments).saturating_sub((unused + 2 * inner.log.len()) as u64);
        used * 2 > u64::from(segments) && inner.live * 4 < used * slots
    }

    /// Frees a segment. Its legs become free once that is durable.
    pub(crate) fn free_segment(&self, id: SegmentId) {
        self.inner.lock().free_segment(id);
    }

    /// Removes a lost device, and every leg on it. Returns true if dirty blocks have no copy any more.
    pub(crate) fn lose(&self, device: u16) -> bool {
        let mut inner = self.inner.lock();
        let mut data_lost = false;
        for segment in inner.table.values_mut() {
            let before = segment.legs.len();
            segment.legs.retain(|place| place.device != device);
            data_lost |= segment.dirty > 0 && before > 0 && segment.legs.is_empty();
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
        data_lost
    }

    /// Adds a device, whose segments are all free.
    pub(crate) fn gain(&self, device: u16, segments: u32) {
        let mut inner = self.inner.lock();
        let index = usize::from(device);
        if inner.free.len() <= index {
            inner.free.resize_with(index + 1, Vec::new);
            inner.totals.resize(index + 1, 0);
        }
        inner.totals[index] = segments;
        inner.free[index] = (0..segments).rev().collect();
    }

    /// Returns the number of devices that take new segments of the log.
    pub(crate) fn devices(&self) -> usize {
        let inner = self.inner.lock();
        (0..inner.totals.len()).filter(|device| inner.takes_log(*device)).count()
    }

    /// Returns the number of devices in use, and of all their segments.
    pub(crate) fn sizes(&self) -> (u64, u64) {
        let inner = self.inner.lock();
        let devices = inner.totals.iter().filter(|segments| **segments > 0).count();
        (devices as u64, inner.totals.iter().map(|segments| u64::from(*segments)).sum())
    }

    /// Returns the number of unused segments of every device.
    pub(crate) fn unused(&self) -> Vec<usize> {
        self.inner.lock().free.iter().map(Vec::len).collect()
    }

    /// Returns the fewest unused segments of any of `devices`. With `given_up`, given-up segments that become unused
    /// once that is durable count as well.
    pub(crate) fn least_free(&self, devices: &[u16], given_up: bool) -> usize {
        let inner = self.inner.lock();
        let free = inner.free_now(given_up);
        let devices = devices.iter().map(|device| usize::from(*device));
        let takes = devices.filter(|device| inner.takes_log(*device));
        takes.map(|device| free.get(device).copied().unwrap_or(0)).min().unwrap_or(0)
    }
}
