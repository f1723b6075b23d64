//! Segments that are put into the index behind the start of service.

use forebay_common::lock::atomic::Ordering;

use smallvec::SmallVec;

use super::{Inner, Segments, Warmth};
use crate::format::Place;
use crate::index::leaf::SegmentId;

impl Segments {
    /// Whether the devices hold clean copies that the index does not know of yet.
    pub(crate) fn is_warming(&self) -> bool {
        self.warming.load(Ordering::Acquire)
    }

    pub(crate) fn set_warming(&self, warming: bool) {
        self.warming.store(warming, Ordering::Release);
    }

    /// The copies of a segment to be loaded, first the one to be kept if it can be read: on the device with most `unused`
    /// segments, of which there will be one more on the other's.
    pub(crate) fn legs_to_load(&self, id: SegmentId, unused: &mut [usize]) -> SmallVec<[Place; 2]> {
        let mut legs = self.get(id).map(|segment| segment.legs).unwrap_or_default();
        legs.sort_by_key(|leg| std::cmp::Reverse(unused[usize::from(leg.device)]));
        if let [_, other] = legs[..] {
            unused[usize::from(other.device)] += 1;
        }
        legs
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
            inner.free_place(other);
        }
    }

    /// Whether a segment is being loaded.
    pub(crate) fn is_loading(&self, id: SegmentId) -> bool {
        let inner = self.inner.lock();
        inner.table.get(&id).is_some_and(|segment| segment.warmth == Warmth::Loading)
    }

    /// Frees one of two copies of a segment of which the index has nothing, on a device without unused segments; false if
    /// there is none.
    pub(crate) fn free_cold_leg(&self) -> bool {
        let mut inner = self.inner.lock();
        let Inner { table, log, free, repairs, .. } = &mut *inner;
        let is_wanted = |leg: &Place| free[usize::from(leg.device)].is_empty() && !repairs.contains(leg);
        let cold =
            table.iter_mut().filter(|(id, segment)| segment.warmth == Warmth::Cold && !log.contains(id));
        let mut doubled = cold.map(|(_, segment)| &mut segment.legs).filter(|legs| legs.len() > 1);
        let found = doubled.find_map(|legs| Some((legs.iter().position(is_wanted)?, legs)));
        let Some(place) = found.map(|(at, legs)| legs.remove(at)) else { return false };
        // Given up before the restart, as in `end_load`.
        free[usize::from(place.device)].push(place.segment);
        true
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
}
