//! The segments of the log, and the number of devices that hold them.

use super::{LogUse, Reach, Segment, SegmentId, Segments};

impl Segments {
    /// Lets segments leave the log, strictly oldest first, and gives up their second legs. Returns the new reach of
    /// the log.
    pub(crate) fn advance(&self) -> Reach {
        let mut inner = self.inner.lock();
        inner.advance();
        inner.reach()
    }

    /// Returns how full the log is.
    pub(crate) fn log_use(&self) -> LogUse {
        let mut inner = self.inner.lock();
        inner.advance();
        let left = inner.left as f64 + inner.leaving();
        LogUse { segments: inner.log.len(), share: inner.log_share(), dirty: inner.dirty, left }
    }

    /// Returns the position of the log's oldest segment. Data that is only in segments before it is not in the log.
    pub(crate) fn tail_position(&self) -> Option<u64> {
        let inner = self.inner.lock();
        inner.log.front().and_then(|id| inner.table.get(id)).map(|segment| segment.position)
    }

    /// Returns the number of segments of the log from `id` on.
    pub(crate) fn log_since(&self, id: SegmentId) -> usize {
        let log = &self.inner.lock().log;
        log.iter().position(|other| *other == id).map_or(0, |at| log.len() - at)
    }

    /// Returns the oldest segment of the log, if the log has outgrown its share and a sixth of it is not dirty any
    /// more. Compaction does not begin earlier: the longer the log, the fewer blocks of its oldest segment are still
    /// dirty and must be reappended.
    pub(crate) fn worth_compacting(&self, slots: usize) -> Option<(SegmentId, Segment)> {
        let segment = self.worth_moving(23, slots, 6, 0)?;
        Some(segment).filter(|(_, segment)| segment.holds == 0 && segment.dirty > 0)
    }

    /// Returns the oldest segment of the log to be emptied while some of its blocks will not be destaged for long.
    /// Then a sixteenth that is not dirty is enough: more than the part of other contents in a segment full of dirty
    /// blocks. It is also enough that the segment keeps all clean segments from being evicted, while fewer than
    /// `spare` segments of a device are unused.
    pub(crate) fn worth_passing(&self, slots: usize, spare: usize) -> Option<(SegmentId, Segment)> {
        self.worth_moving(18, slots, 16, spare)
    }

    /// Returns the oldest segment of a log of at least `from` twentieths of its share, of which one part in `part` is
    /// not dirty.
    fn worth_moving(
        &self,
        from: usize,
        slots: usize,
        part: usize,
        spare: usize,
    ) -> Option<(SegmentId, Segment)> {
        let mut inner = self.inner.lock();
        inner.advance();
        let (used, share) = (inner.log.len(), inner.log_share());
        let dirty = usize::try_from(inner.dirty).unwrap_or(usize::MAX);
        let id = *inner.log.front()?;
        let outgrown = used * 20 >= share * from && dirty <= used * slots / part * (part - 1);
        if !outgrown && !inner.blocks_eviction(id, spare) {
            return None;
        }
        let segment = inner.table.get(&id).filter(|segment| segment.sealed)?;
        Some((id, segment.clone()))
    }

    /// Returns true if this segment of the log keeps all clean segments from being evicted, while fewer than `spare`
    /// segments of a device are unused.
    pub(crate) fn blocks_eviction(&self, id: SegmentId, spare: usize) -> bool {
        let inner = self.inner.lock();
        inner.blocks_eviction(id, spare) && inner.table.get(&id).is_some_and(|segment| segment.sealed)
    }

    /// Returns true if a segment is the log's oldest.
    pub(crate) fn is_tail(&self, id: SegmentId) -> bool {
        self.inner.lock().log.front() == Some(&id)
    }

    /// Returns true if the whole log is durably on two devices that stay, and data written to `head` now goes to two
    /// such devices.
    pub(crate) fn is_mirrored(&self, head: Option<SegmentId>) -> bool {
        let inner = self.inner.lock();
        let lone = inner.lone >= inner.durable_tail;
        head.is_some_and(|head| inner.has_two_legs(head)) && !lone && !inner.leaves_one()
    }

    /// Returns the number of dirty blocks in the part of the log that has to leave before the whole log is on two
    /// devices.
    pub(crate) fn dirty_until_mirrored(&self) -> u64 {
        let inner = self.inner.lock();
        let segments = inner.log.iter().filter_map(|id| inner.table.get(id));
        segments.filter(|segment| segment.seq <= inner.lone).map(|segment| u64::from(segment.dirty)).sum()
    }

    /// Returns true if no segment with fewer than two legs is in the log any more, but that is not durable yet.
    pub(crate) fn lone_left(&self) -> bool {
        let inner = self.inner.lock();
        inner.lone >= inner.durable_tail && inner.reach().tail > inner.lone
    }

    /// Returns true if the segment must leave the log before all dirty data is on two devices again.
    pub(crate) fn keeps_lone(&self, id: SegmentId) -> bool {
        let inner = self.inner.lock();
        inner.reach().tail <= inner.lone
            && inner.table.get(&id).is_some_and(|segment| segment.seq <= inner.lone)
    }

    /// Returns the log's oldest segment, if its dirty blocks must be written to the log again. That is so if it or a
    /// later segment has fewer than two legs. All segments before that one must leave as well, since only records in
    /// it may invalidate their copies. It is also so if only blocks that cannot be destaged keep the segment. Returns
    /// `None` if `head`, the destination, has fewer than two legs.
    pub(crate) fn to_rewrite(&self, head: SegmentId) -> Option<(SegmentId, Segment)> {
        let inner = self.inner.lock();
        let tail = *inner.log.front().filter(|_| inner.has_two_legs(head))?;
        let segment = inner.table.get(&tail)?;
        let stuck = segment.dirty == segment.damaged;
        let wanted = segment.sealed && segment.dirty > 0 && (stuck || segment.seq <= inner.lone);
        wanted.then(|| (tail, segment.clone()))
    }
}
