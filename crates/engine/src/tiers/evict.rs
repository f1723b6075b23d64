//! Eviction of whole segments, strictly oldest first. Blocks that were read since they were written are written
//! again, as far as their policies say. If most of the room is taken by dead blocks, all live blocks are written again.
//! Then eviction begins early, so that there is time for it.

use std::sync::Arc;

use crate::buffer::BLOCK;
use crate::core::Core;
use crate::index::leaf::Hit;
use crate::index::object::{CachedObject, Source};
use crate::index::page::Page;
use crate::index::policy::{Keep, Priority};
use crate::log::LOG_RESERVE;
use crate::log::footers::{read_footer, read_footer_on};
use crate::log::mirror_io::read_leg;
use crate::planted_bugs;
use crate::segments::{Segment, SegmentId, Warmth};
use crate::tiers::clean::Offer;
use crate::tiers::copies::is_right;
use crate::tiers::fill::keep;
use crate::tiers::policy::Pins;
use crate::wait::all;

/// The number of blocks read at once.
const RUN: usize = 64;

/// Keeps some segments of every device free, until the engine closes.
pub(crate) async fn run_evict(core: Arc<Core>) {
    loop {
        let ready = || {
            if core.log.is_reserved() && core.finds_segments(LOG_RESERVE, true) {
                core.log.set_reserved(false);
            }
            let wanted = is_short(&core).then(|| core.segments.first()).flatten();
            (wanted.is_some() || core.closing()).then_some(wanted)
        };
        let Some((id, segment)) = core.space.until(ready).await else { return };
        if core.closing() {
            return;
        }
        if !segment.sealed {
            core.clean.seal();
            core.space.until(|| (core.closing() || core.segments.is_sealed(id)).then_some(())).await;
            continue;
        }
        if segment.warmth != Warmth::Warm && core.has_free(1) {
            // Once all clean segments are loaded, there is more room, and live blocks may be moved.
            let loaded = || core.closing() || !core.segments.is_warming() || !core.has_free(1);
            core.space.until(|| loaded().then_some(())).await;
            continue;
        }
        if segment.warmth != Warmth::Warm && free_cold_leg(&core).await {
            core.look_for_room();
            core.space.wake();
            continue;
        }
        if segment.warmth != Warmth::Warm && !core.segments.free_cold(id) {
            core.space.until(|| (core.closing() || !core.segments.is_loading(id)).then_some(())).await;
            continue;
        }
        evict(&core, id, &segment).await;
    }
}

/// Frees one of two copies of a segment that is not loaded yet, if the other copy can be read: a power cut may have
/// taken the footer of one. Returns false if there is none.
async fn free_cold_leg(core: &Core) -> bool {
    let mut left = Vec::new();
    while let Some(doubled) = core.segments.doubled_cold(&left) {
        let is_read = read_footer_on(core, doubled.other, doubled.seq).await.is_some();
        if is_read && core.segments.free_cold_leg(&doubled) {
            return true;
        }
        left.push(doubled.id);
    }
    false
}

/// Returns true if a device has too few free segments, counting segments that a frame will free, or if most
/// segments hold little. Such segments are evicted early. Short runs of the server leave segments that are hardly
/// used, and there may be no time later.
fn is_short(core: &Core) -> bool {
    let active = core.active_devices();
    !active.is_empty() && (!core.has_free(core.spare_segments()) || core.segments.is_wasteful(core.slots()))
}

/// Evicts a clean segment: moves blocks that are in use, and drops the others.
async fn evict(core: &Core, id: SegmentId, segment: &Segment) {
    match read_footer(core, segment).await {
        _ if segment.warmth == Warmth::Cold => {}
        Some(body) => {
            let pins = Pins::now(core);
            for run in core.objects.blocks_of(&body).chunks(RUN) {
                if core.closing() {
                    // The remaining blocks are found again at the next start.
                    return;
                }
                let run =
                    run.iter().map(|(object, block)| evict_block(core, object, *block, (id, segment), &pins));
                all(run.map(Box::pin).collect()).await;
            }
            if core.closing() {
                return;
            }
        }
        None => sweep(core, id),
    }
    core.segments.free_segment(id);
    core.look_for_room();
    let short = core.segments.least_free(&core.active_devices(), false) < 2;
    if short || core.destager.volumes.any_troubled() {
        core.log.request_frame();
    }
    core.space.wake();
}

/// Evicts one block of a segment that becomes free. The block is read and given to the clean segment being filled if it
/// is pinned, was used, or is protected by its share, or while there is room for all. A high priority spares it once
/// more, and with a low priority its use does not count. A share with too many blocks loses it.
async fn evict_block(
    core: &Core,
    object: &Arc<CachedObject>,
    block: u64,
    (id, segment): (SegmentId, &Segment),
    pins: &Pins,
) {
    let (has_room, pinned) = (has_room_for_all(core), pins.spares(core, object));
    let policy = object.policy();
    let (copy, hit, fetch, kept) = {
        let mut state = object.lock();
        let Some(copy) = state.entry(block).copied().filter(|entry| entry.segment == id) else { return };
        let is_over = state.share.as_ref().is_some_and(|share| share.is_over());
        let used = copy.hit == Hit::Yes && policy.priority != Priority::Low;
        let kept = pinned || pins.protects(core, &state);
        let stays = used || has_room || kept;
        let unwanted = is_over || policy.keep == Keep::Never;
        let preferred =
            !unwanted && !stays && copy.hit == Hit::No && pins.prefers(core, object) && core.credit.take();
        if unwanted || !(stays || preferred) {
            core.credit.dropped();
            state.remove_entry(block, &core.segments);
            core.totals.evicted.add(1);
            return;
        }
        core.totals.kept_by_priority.add(u64::from(preferred));
        let once =
            (preferred || copy.hit == Hit::Spared) && !planted_bugs::active("high priority stays for ever");
        let hit = if once { Hit::Spared } else { Hit::No };
        (copy, hit, state.begin_fetch(block..block + 1, Source::Cache), kept)
    };
    core.clean.room().await;
    let contents = match segment.legs.first() {
        Some(place) => read_leg(core, *place, copy.slot, 1).await.ok(),
        None => None,
    };
    let page = contents.filter(|c| is_right(core, object, block, &copy, c)).map(|c| Page::from(&c[..BLOCK]));
    let mut state = object.lock();
    if core.closing() {
        state.end_fetch(fetch);
        return;
    }
    if state.entry(block).is_some_and(|entry| entry.same_place(&copy)) {
        state.remove_entry(block, &core.segments);
        core.totals.evicted.add(1);
    }
    match page {
        Some(page) => {
            drop(state);
            core.totals.reinserted.add(1);
            keep(core, Offer { object: object.clone(), block, page, hit, fetch, stays: kept });
        }
        None => {
            state.end_fetch(fetch);
        }
    }
}

/// Returns true if there will be room without dropping live blocks, and no task waits for room.
fn has_room_for_all(core: &Core) -> bool {
    core.has_free(2) && core.segments.is_sparse(core.slots())
}

/// Drops every block of a segment whose records cannot be read.
pub(crate) fn sweep(core: &Core, id: SegmentId) {
    for object in core.objects.all() {
        let mut state = object.lock();
        for block in state.cached(0..u64::MAX) {
            if state.entry(block).is_some_and(|entry| entry.segment == id && !entry.dirty) {
                state.remove_entry(block, &core.segments);
                core.totals.evicted.add(1);
            }
        }
    }
}
