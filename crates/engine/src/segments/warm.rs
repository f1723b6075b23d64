//! Segments that are loaded into the index after service has started.

use forebay_common::lock::atomic::Ordering;

use smallvec::SmallVec;

use super::{Inner, SegmentId, Segments, Warmth};
use crate::format::Place;

/// A segment of two copies that the index has no block of.
pub(crate) struct DoubledCold {
    pub(crate) id: SegmentId,
    pub(crate) seq: u64,
    /// The copy on a device without unused segments.
    pub(crate) wanted: Place,
    pub(crate) other: Place,
}

impl Segments {
    /// Returns true if the devices hold clean copies that are not in the index yet.
    pub(crate) fn is_warming(&self) -> bool {
        self.warming.load(Ordering::Acquire)
    }

    pub(crate) fn set_warming(&self, warming: bool) {
        self.warming.store(warming, Ordering::Release);
    }

    /// Returns the copies of a segment to be loaded. The first copy is kept if it can be read: it is on the device
    /// with most `unused` segments. The other copy's device gains an unused segment.
    pub(crate) fn legs_to_load(&self, id: SegmentId, unused: &mut [usize]) -> SmallVec<[Place; 2]> {
        let mut legs = self.get(id).map(|segment| segment.legs).unwrap_or_default();
        legs.sort_by_key(|leg| std::cmp::Reverse(unused[usize::from(leg.device)]));
        if let [_, other] = legs[..] {
            unused[usize::from(other.device)] += 1;
        }
        legs
    }

    /// Marks a segment as being loaded. Returns `None` if it was freed.
    pub(crate) fn begin_load(&self, id: SegmentId) -> Option<()> {
        let mut inner = self.inner.lock();
        let segment = inner.get(id)?;
        segment.warmth = Warmth::Loading;
        Some(())
    }

    /// Marks a segment as loaded. If it has two legs and `place` is given, the leg at `place` is kept.
    pub(crate) fn end_load(&self, id: SegmentId, place: Option<Place>) {
        let mut inner = self.inner.lock();
        let Some(segment) = inner.get(id) else { return };
        segment.warmth = Warmth::Warm;
        let Some(kept) = place.filter(|place| segment.legs.contains(place)) else { return };
        let legs = std::mem::replace(&mut segment.legs, smallvec::smallvec![kept]);
        // These legs were given up before the restart: it is durable that the segment left the log.
        for other in legs.into_iter().filter(|place| *place != kept) {
            inner.free_place(other);
        }
    }

    /// Returns true if a segment is being loaded.
    pub(crate) fn is_loading(&self, id: SegmentId) -> bool {
        let inner = self.inner.lock();
        inner.table.get(&id).is_some_and(|segment| segment.warmth == Warmth::Loading)
    }

    /// Returns a segment that the index has no block of and that has two copies, one of them on a device without unused
    /// segments. Leaves out the segments in `but`. Returns `None` if there is none.
    pub(crate) fn doubled_cold(&self, but: &[SegmentId]) -> Option<DoubledCold> {
        let inner = self.inner.lock();
        let Inner { table, log, free, repairs, .. } = &*inner;
        let is_wanted = |leg: &Place| free[usize::from(leg.device)].is_empty() && !repairs.contains(leg);
        let cold = table.iter().filter(|(id, segment)| segment.warmth == Warmth::Cold && !log.contains(id));
        let mut doubled = cold.filter(|(id, segment)| segment.legs.len() == 2 && !but.contains(id));
        doubled.find_map(|(id, segment)| {
            let at = segment.legs.iter().position(is_wanted)?;
            let (id, seq) = (*id, segment.seq);
            Some(DoubledCold { id, seq, wanted: segment.legs[at], other: segment.legs[1 - at] })
        })
    }

    /// Frees the wanted copy of a segment. Returns false if the segment has been loaded or freed meanwhile.
    pub(crate) fn free_cold_leg(&self, doubled: &DoubledCold) -> bool {
        let mut inner = self.inner.lock();
        let Inner { table, free, .. } = &mut *inner;
        let cold = table.get_mut(&doubled.id).filter(|segment| segment.warmth == Warmth::Cold);
        let has_both = |legs: &[Place]| legs.contains(&doubled.wanted) && legs.contains(&doubled.other);
        let Some(segment) = cold.filter(|segment| has_both(&segment.legs)) else { return false };
        segment.legs.retain(|leg| *leg != doubled.wanted);
        // The leg was given up before the restart, as in `end_load`.
        free[usize::from(doubled.wanted.device)].push(doubled.wanted.segment);
        true
    }

    /// Frees a segment that the index has no block of. Returns false if the index has some.
    pub(crate) fn free_cold(&self, id: SegmentId) -> bool {
        let mut inner = self.inner.lock();
        let cold = inner.get(id).is_some_and(|segment| segment.warmth == Warmth::Cold);
        if cold {
            inner.free_segment(id);
        }
        cold
    }

    /// Frees all segments that the index has no block of. Returns false if there are none.
    pub(crate) fn free_all_cold(&self) -> bool {
        let mut inner = self.inner.lock();
        let cold = inner.table.iter().filter(|(_, segment)| segment.warmth == Warmth::Cold);
        let cold: Vec<_> = cold.map(|(id, _)| *id).collect();
        cold.iter().for_each(|id| inner.free_segment(*id));
        !cold.is_empty()
    }
}
