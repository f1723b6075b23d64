//! Remirroring: two copies of all dirty data. A log segment that lost a leg, or has only one copy after recovery,
//! holds data that the next fault would destroy. Until the segment has left the log, the mode in force is
//! write-through, and destaging goes at full speed. If two devices are present, the segment's dirty blocks are also
//! written to the log again.
//!
//! A block without a readable copy is reappended as well, when nothing else keeps the log's oldest segment. The
//! backing store has older contents, which no client must ever read. So the log records the block as damaged until it
//! is overwritten or cut off.

use std::sync::Arc;
use std::time::Duration;

use crate::Error;
use crate::core::Core;
use crate::index::leaf::Entry;
use crate::index::object::CachedObject;
use crate::index::page::Page;
use crate::log::footers::read_footer;
use crate::log::mirror_io::look_at_mirror;
use crate::log::reappend::{Again, append_again};
use crate::log::writer::moving;
use crate::segments::{Segment, SegmentId};
use crate::tiers::copies::read_other_copy;
use crate::wait::all;

/// The number of blocks read at once.
const RUN: usize = 64;
/// The pause after a segment of which some block could not be written again.
const PAUSE: Duration = Duration::from_millis(250);

/// Remirrors the segments that need it, until the engine closes.
pub(crate) async fn run_rewrite(core: Arc<Core>) {
    while !core.closing() {
        let ready = || {
            let head = core.log.segment();
            let wanted = head.and_then(|head| core.segments.to_rewrite(head));
            let stuck = |segment: &Segment| segment.dirty == segment.damaged;
            let volumes = &core.destager.volumes;
            let may = || volumes.any_troubled() || !volumes.any_flushing();
            let wanted = wanted.filter(|(_, segment)| stuck(segment) || may());
            let changed = core.is_mirrored() != core.segments.is_mirrored(head);
            (wanted.is_some() || changed || core.segments.lone_left() || core.closing()).then_some(wanted)
        };
        if let Some((id, segment)) = core.space.until(ready).await {
            rewrite(&core, id, &segment).await;
            core.segments.advance();
            if core.segments.get(id).is_some_and(|segment| segment.dirty > 0) {
                core.rest(PAUSE).await;
            }
        } else if core.segments.lone_left() {
            let frame = core.log.request_frame();
            let done = || core.closing() || core.log.durable() >= frame || core.log.broken().is_some();
            core.log.until(|| done().then_some(())).await;
            if core.log.broken().is_some() {
                return;
            }
        }
        look_at_mirror(&core);
    }
}

/// Moves the blocks of a segment with one leg left to the log, which has two.
async fn rewrite(core: &Core, id: SegmentId, segment: &Segment) {
    let blocks = match read_footer(core, segment).await {
        Some(body) => core.objects.blocks_of(&body),
        None => dirty_blocks_of(core, id),
    };
    let may = |object: &CachedObject| object.volume.is_movable() || segment.dirty == segment.damaged;
    let blocks: Vec<_> = blocks.into_iter().filter(|(object, _)| may(object)).collect();
    let mut blocks = blocks.as_slice();
    let _moving = moving(core);
    while let Some((object, _)) = blocks.first()
        && !core.closing()
    {
        let same = blocks.iter().take(RUN).take_while(|(other, _)| Arc::ptr_eq(other, object));
        let run = same.count();
        let reads = blocks[..run].iter().map(|(object, block)| Box::pin(old(core, object, *block, id)));
        for ((object, block), old) in blocks.iter().zip(all(reads.collect()).await) {
            let Some((copy, page)) = old else { continue };
            match append_again(core, object, *block, &copy, page).await {
                Ok(Again::Appended(_)) => core.totals.rewritten.add(1),
                Ok(Again::Outdated) => {}
                Ok(Again::NoRoom) | Err(_) => return,
            }
        }
        blocks = &blocks[run..];
    }
}

/// Returns a block's dirty copy in the segment, with its contents if they can be read; `None` if there is no such
/// copy.
async fn old(
    core: &Core,
    object: &Arc<CachedObject>,
    block: u64,
    id: SegmentId,
) -> Option<(Entry, Option<Page>)> {
    let (copy, page, damaged) = {
        let state = object.lock();
        let copy = state.entry(block).copied().filter(|copy| copy.dirty && copy.segment == id)?;
        (copy, state.page(block).cloned(), state.is_damaged(&(block..block + 1)))
    };
    if page.is_some() || damaged {
        return Some((copy, page));
    }
    match read_other_copy(core, object, block, &copy, false).await {
        Ok(rescued) => Some((copy, Some(rescued.page?))),
        Err(Error::Damaged) => Some((copy, None)),
        Err(_) => None,
    }
}

/// Returns the dirty blocks of a segment whose records cannot be read, by a scan of all objects.
fn dirty_blocks_of(core: &Core, id: SegmentId) -> Vec<(Arc<CachedObject>, u64)> {
    let mut blocks = Vec::new();
    for object in core.objects.all() {
        let dirty = object.lock().dirty_in(0..u64::MAX, usize::MAX);
        let here = dirty.into_iter().filter(|(_, copy)| copy.segment == id);
        blocks.extend(here.map(|(block, _)| (object.clone(), block)));
    }
    blocks
}
