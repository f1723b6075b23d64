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
use crate::core::Core;
use crate::format::{Body, Record};
use crate::index::leaf::Entry;
use crate::index::object::CachedObject;
use crate::index::page::Page;
use crate::log::footers::read_footer;
use crate::log::mirror_io::read_leg;
use crate::log::reappend::{Again, append_again};
use crate::log::writer::moving;
use crate::request::truncate::log_cut_again;
use crate::segments::{Segment, SegmentId};
use crate::tiers::copies::{OtherCopy, is_right, read_other_copy};
use crate::wait::before;
use crate::{Error, Result, Seq};

/// The number of slots read at once, and of blocks appended before the next wait for a frame. Clients' writes share
/// the frames.
const CHUNK: u16 = 128;
/// The pause before a segment that could not be emptied is tried again.
const PAUSE: Duration = Duration::from_secs(1);

/// A dirty block of the log's oldest segment.
struct Live {
    object: Arc<CachedObject>,
    block: u64,
    copy: Entry,
}

/// Reappends the live blocks of the oldest segment whenever that makes room, until the engine closes.
pub(crate) async fn run_compact(core: Arc<Core>) {
    let volumes = &core.destager.volumes;
    let mut stuck = None;
    loop {
        let ready = || {
            if core.closing() {
                return Some(None);
            }
            let oldest = if volumes.any_troubled() {
                core.segments.worth_passing(core.slots(), core.spare_segments())
            } else if core.is_mirrored() && !volumes.any_flushing() {
                core.segments.worth_compacting(core.slots())
            } else {
                None
            };
            oldest.filter(|(id, _)| stuck != Some(*id)).map(Some)
        };
        let Some((id, segment)) = core.space.until(ready).await else { return };
        // An error means that the log is broken, and nothing is appended any more.
        let Ok(room) = compact(&core, id, &segment).await else { return };
        core.segments.advance();
        core.destager.throttle.changed.wake();
        // Unreadable blocks are left to destaging. A block of a volume in trouble may only have been in flight.
        stuck = (room && !volumes.any_troubled()).then_some(id);
        if stuck.is_none() {
            // A segment that left the log is free once a frame says so. Perhaps no other task can write a frame.
            core.log.request_frame();
            let left = || (core.closing() || !core.segments.is_tail(id)).then_some(());
            before(core.env.clock.sleep(PAUSE), core.space.until(left)).await;
        }
    }
}

/// Reappends the live blocks of a segment. Returns false if there was no room for all of them.
async fn compact(core: &Core, id: SegmentId, segment: &Segment) -> Result<bool> {
    let Some(body) = read_footer(core, segment).await else { return Ok(true) };
    let _moving = moving(core);
    if segment.holds > 0 {
        move_cuts(core, id, &body).await?;
    }
    let live = live_in(core, id, &body);
    for chunk in live.chunk_by(|a, b| a.copy.slot / CHUNK == b.copy.slot / CHUNK) {
        let (last, room) = move_chunk(core, segment, chunk).await?;
        core.commit(last).await?;
        if !room {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Returns the dirty blocks of a segment that may be moved, by slot.
fn live_in(core: &Core, id: SegmentId, body: &Body) -> Vec<Live> {
    let mut live = Vec::new();
    for record in &body.records {
        let Record::Data { object, block, slot, checksums } = record else { continue };
        let facts = body.objects.get(usize::from(*object));
        let Some(object) = facts.and_then(|facts| core.objects.find(&facts.key)) else { continue };
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
async fn move_chunk(core: &Core, segment: &Segment, chunk: &[Live]) -> Result<(Seq, bool)> {
    let (first, last) = match chunk {
        [] => return Ok((0, true)),
        [first, .., last] => (first.copy.slot, last.copy.slot),
        [only] => (only.copy.slot, only.copy.slot),
    };
    let in_memory = |live: &Live| live.object.lock().page(live.block).is_some();
    let read: Option<Buffer> = match segment.legs.first() {
        Some(place) if !chunk.iter().all(in_memory) => {
            read_leg(core, *place, first, usize::from(last - first) + 1).await.ok()
        }
        _ => None,
    };
    let mut frame = 0;
    for live in chunk {
        let at = usize::from(live.copy.slot - first) * BLOCK;
        let contents = read.as_ref().map(|read| &read[at..at + BLOCK]);
        let in_memory = live.object.lock().page(live.block).cloned();
        let good = contents.filter(|c| is_right(core, &live.object, live.block, &live.copy, c));
        let page = match in_memory.or_else(|| good.map(Page::from)) {
            Some(page) => page,
            None => match read_other_copy(core, &live.object, live.block, &live.copy, false).await {
                Ok(OtherCopy { page: Some(page), .. }) => page,
                Ok(_) | Err(Error::Damaged | Error::Backing(_)) => continue,
                Err(error) => return Err(error),
            },
        };
        match append_again(core, &live.object, live.block, &live.copy, Some(page)).await? {
            Again::Appended(seq) => {
                core.totals.compacted.add(1);
                core.destager.throttle.moved(1);
                frame = frame.max(seq);
            }
            Again::Outdated => {}
            Again::NoRoom => return Ok((frame, false)),
        }
    }
    Ok((frame, true))
}

/// Reappends the segment's truncations that volumes in trouble have not carried out.
async fn move_cuts(core: &Core, id: SegmentId, body: &Body) -> Result<()> {
    for record in &body.records {
        let Record::Truncate { object, .. } = record else { continue };
        let facts = body.objects.get(usize::from(*object));
        let Some(object) = facts.and_then(|facts| core.objects.find(&facts.key)) else { continue };
        if object.volume.is_troubled() {
            let last = log_cut_again(core, &object, id).await?;
            core.commit(last).await?;
        }
    }
    Ok(())
}
