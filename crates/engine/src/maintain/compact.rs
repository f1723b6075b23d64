//! Compaction: makes room in a log that is full of overwritten blocks.
//!
//! Segments leave the log strictly oldest first. If clients overwrite the same blocks often, the oldest segment holds
//! few live blocks. Destaging them at the rate of the backing store would delay all writers. Instead they are
//! reappended at the log head, as if a client had written the same contents. Then the segment can leave.
//!
//! The dirty blocks of a volume in trouble (`volume/`) are moved as well, whatever else is in the segment. So are
//! truncations that it has not carried out.

use std::sync::Arc;
use std::time::Duration;

use crate::buffer::{BLOCK, Buffer};
use crate::engine::Engine;
use crate::format::{Body, Record};
use crate::index::leaf::{Entry, Page, SegmentId};
use crate::index::object::Object;
use crate::log::reappend::Again;
use crate::request::read::Rescued;
use crate::segments::Segment;
use crate::wait::before;
use crate::{Error, Result, Seq};

/// The number of slots read at once, and of blocks appended before the next wait for a frame. Clients' writes share
/// the frames.
const CHUNK: u16 = 128;

/// The pause before a segment that could not be emptied is tried again.
const PAUSE: Duration = Duration::from_secs(1);

/// A dirty block of the log's oldest segment.
struct Live {
    object: Arc<Object>,
    block: u64,
    copy: Entry,
}

impl Engine {
    /// Reappends the live blocks of the oldest segment whenever that makes room, until the engine closes.
    pub(crate) async fn run_compact(self: Arc<Self>) {
        let volumes = &self.destager.volumes;
        let mut stuck = None;
        loop {
            let ready = || {
                if self.closing() {
                    return Some(None);
                }
                let oldest = if volumes.any_troubled() {
                    self.segments.worth_passing(self.slots(), self.spare_segments())
                } else if self.is_mirrored() && !volumes.any_flushing() {
                    self.segments.worth_compacting(self.slots())
                } else {
                    None
                };
                oldest.filter(|(id, _)| stuck != Some(*id)).map(Some)
            };
            let Some((id, segment)) = self.space.until(ready).await else { return };
            // An error means that the log is broken, and nothing is appended any more.
            let Ok(room) = self.compact(id, &segment).await else { return };
            self.segments.advance();
            self.destager.throttle.changed.wake();
            // Unreadable blocks are left to destaging. A block of a volume in trouble may only have been in flight.
            stuck = (room && !volumes.any_troubled()).then_some(id);
            if stuck.is_none() {
                // A segment that left the log is free once a frame says so. Perhaps no other task can write a frame.
                self.log.kick();
                let left = || (self.closing() || !self.segments.is_tail(id)).then_some(());
                before(self.env.clock.sleep(PAUSE), self.space.until(left)).await;
            }
        }
    }

    /// Reappends the live blocks of a segment. Returns false if there was no room for all of them.
    async fn compact(&self, id: SegmentId, segment: &Segment) -> Result<bool> {
        let Some(body) = self.read_footer(segment).await else { return Ok(true) };
        let _moving = self.moving();
        if segment.holds > 0 {
            self.move_cuts(id, &body).await?;
        }
        let live = self.live_in(id, &body);
        for chunk in live.chunk_by(|a, b| a.copy.slot / CHUNK == b.copy.slot / CHUNK) {
            let (last, room) = self.move_chunk(segment, chunk).await?;
            self.commit(last).await?;
            if !room {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Returns the dirty blocks of a segment that may be moved, by slot.
    fn live_in(&self, id: SegmentId, body: &Body) -> Vec<Live> {
        let mut live = Vec::new();
        for record in &body.records {
            let Record::Data { object, block, slot, checksums } = record else { continue };
            let facts = body.objects.get(usize::from(*object));
            let Some(object) = facts.and_then(|facts| self.objects.find(&facts.key)) else { continue };
            if !object.volume.is_movable() {
                continue;
            }
            let state = object.lock();
            for (block, slot) in (*block..).zip(*slot..).take(checksums.len()) {
                let copy = state.entry(block).filter(|e| e.dirty && (e.segment, e.slot) == (id, slot));
                live.extend(copy.map(|copy| Live { object: object.clone(), block, copy: *copy }));
            }
        }
        live.sort_unstable_by_key(|live| live.copy.slot);
        live
    }

    /// Reappends blocks of neighbouring slots. Returns the last frame that has any of them, and true if there was
    /// room for all.
    async fn move_chunk(&self, segment: &Segment, chunk: &[Live]) -> Result<(Seq, bool)> {
        let (first, last) = match chunk {
            [] => return Ok((0, true)),
            [first, .., last] => (first.copy.slot, last.copy.slot),
            [only] => (only.copy.slot, only.copy.slot),
        };
        let in_memory = |live: &Live| live.object.lock().page(live.block).is_some();
        let read: Option<Buffer> = match segment.legs.first() {
            Some(place) if !chunk.iter().all(in_memory) => {
                self.read_leg(*place, first, usize::from(last - first) + 1).await.ok()
            }
            _ => None,
        };
        let mut frame = 0;
        for live in chunk {
            let at = usize::from(live.copy.slot - first) * BLOCK;
            let contents = read.as_ref().map(|read| &read[at..at + BLOCK]);
            let in_memory = live.object.lock().page(live.block).cloned();
            let good = contents.filter(|c| self.is_right(&live.object, live.block, &live.copy, c));
            let page = match in_memory.or_else(|| good.map(Page::from)) {
                Some(page) => page,
                None => match self.rescue(&live.object, live.block, &live.copy, false).await {
                    Ok(Rescued { page: Some(page), .. }) => page,
                    Ok(_) | Err(Error::Damaged | Error::Backing(_)) => continue,
                    Err(error) => return Err(error),
                },
            };
            match self.append_again(&live.object, live.block, &live.copy, Some(page)).await? {
                Again::Appended(seq) => {
                    self.totals.compacted.add(1);
                    self.destager.throttle.moved(1);
                    frame = frame.max(seq);
                }
                Again::Outdated => {}
                Again::NoRoom => return Ok((frame, false)),
            }
        }
        Ok((frame, true))
    }

    /// Reappends the segment's truncations that volumes in trouble have not carried out.
    async fn move_cuts(&self, id: SegmentId, body: &Body) -> Result<()> {
        for record in &body.records {
            let Record::Truncate { object, .. } = record else { continue };
            let facts = body.objects.get(usize::from(*object));
            let Some(object) = facts.and_then(|facts| self.objects.find(&facts.key)) else { continue };
            if object.volume.is_troubled() {
                let last = self.log_cut_again(&object, id).await?;
                self.commit(last).await?;
            }
        }
        Ok(())
    }
}
