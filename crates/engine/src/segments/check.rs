//! The invariants of the segment table, for tests and the simulator.

use super::inner::order;
use super::{Inner, Segment, Segments};
use crate::format::{Place, SegmentKind};

impl Segments {
    /// Checks the invariants of the table. The time is proportional to the number of segments of the pool.
    ///
    /// # Errors
    /// One sentence about the first invariant that does not hold.
    pub(crate) fn check(&self) -> Result<(), String> {
        let inner = self.inner.lock();
        inner.check_log()?;
        inner.check_order()?;
        inner.check_counts()?;
        inner.check_places()
    }
}

fn holds(is_true: bool, says: impl FnOnce() -> String) -> Result<(), String> {
    if is_true { Ok(()) } else { Err(says()) }
}

impl Inner {
    /// Checks that `log` lists segments of the log, oldest first, and every segment that has to stay in the log.
    fn check_log(&self) -> Result<(), String> {
        let stays = |segment: &Segment| segment.dirty > 0 || segment.holds > 0;
        let (mut newest, mut staying) = (0, 0);
        for id in &self.log {
            let segment =
                self.table.get(id).ok_or_else(|| format!("segment {id} of the log is not in use"))?;
            holds(segment.kind == SegmentKind::Log && segment.seq > newest, || {
                format!("the log has {segment:?} behind sequence number {newest}")
            })?;
            newest = segment.seq;
            staying += usize::from(stays(segment));
        }
        let all = self.table.values().filter(|segment| stays(segment)).count();
        holds(staying == all, || {
            format!("{all} segments have dirty blocks or holds, and {staying} of them are in the log")
        })
    }

    /// Checks that `fifo` lists every segment once, at its place in the order.
    fn check_order(&self) -> Result<(), String> {
        holds(self.fifo.len() == self.table.len(), || {
            format!("{} segments are in the order of {} in use", self.fifo.len(), self.table.len())
        })?;
        self.table.iter().try_for_each(|(id, segment)| {
            holds(self.fifo.get(&order(segment)) == Some(id), || {
                format!("segment {id} is not at its place in the order: {segment:?}")
            })
        })
    }

    /// Checks the running counts against the segments.
    fn check_counts(&self) -> Result<(), String> {
        let sum = |count: fn(&Segment) -> u32| self.table.values().map(|s| u64::from(count(s))).sum::<u64>();
        let counted = [sum(|s| s.live), sum(|s| s.dirty), sum(|s| s.damaged)];
        let said = [self.live, self.dirty, self.damaged];
        holds(counted == said, || {
            format!(
                "the segments have {counted:?} live, dirty and damaged blocks, and their sums say {said:?}"
            )
        })
    }

    /// Checks that each place of a device is a leg of one segment, or given up, or unused.
    fn check_places(&self) -> Result<(), String> {
        let unused = self.free.iter().enumerate().flat_map(|(device, free)| {
            free.iter().map(move |segment| Place { device: device as u16, segment: *segment })
        });
        let legs = self.table.values().flat_map(|segment| segment.legs.iter().copied());
        let given_up = self.pending.iter().map(|(place, _)| *place);
        let mut places: Vec<Place> = legs.chain(given_up).chain(unused).collect();
        places.sort_unstable();
        for (at, place) in places.iter().enumerate() {
            let segments = self.totals.get(usize::from(place.device)).copied().unwrap_or(0);
            holds(place.segment < segments, || format!("{place:?} is not on a device in use"))?;
            holds(places.get(at + 1) != Some(place), || format!("{place:?} is used twice"))?;
        }
        Ok(())
    }
}
