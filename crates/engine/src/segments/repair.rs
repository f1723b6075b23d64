//! Repair of copies in place. A repair looks at a copy and then writes it. Meanwhile the copy's segment may be
//! destaged, leave the log and be freed. The place must not be reused before the write has ended.

use super::{Inner, SegmentId, Segments, Until};
use crate::format::Place;
use crate::planted_bugs::threads;

/// A repair in progress. Its place is not reused until this is dropped.
pub(crate) struct Repairing<'a> {
    segments: &'a Segments,
    place: Place,
}

impl Drop for Repairing<'_> {
    fn drop(&mut self) {
        let repairs = &mut self.segments.inner.lock().repairs;
        if let Some(at) = repairs.iter().position(|place| *place == self.place) {
            repairs.swap_remove(at);
        }
    }
}

impl Segments {
    /// Begins a repair of the copy at `place`. Returns `None` if the segment has no copy there any more.
    pub(crate) fn begin_repair(&self, id: SegmentId, place: Place) -> Option<Repairing<'_>> {
        let mut inner = self.inner.lock();
        let is_leg = inner.table.get(&id).is_some_and(|segment| segment.legs.contains(&place));
        let is_leg = is_leg || threads::active("a repair does not ask whether its place is still a leg");
        is_leg.then(|| {
            inner.repairs.push(place);
            Repairing { segments: self, place }
        })
    }
}

impl Inner {
    pub(super) fn is_repaired(&self, place: Place) -> bool {
        self.repairs.contains(&place) && !threads::active("a place is used again before its repair has ended")
    }

    /// Frees a given-up leg: at once, or when its repair has ended and the next frame is durable.
    pub(super) fn free_place(&mut self, place: Place) {
        match self.is_repaired(place) {
            true => self.pending.push((place, Until::Tail(0))),
            false => self.free[usize::from(place.device)].push(place.segment),
        }
    }
}
