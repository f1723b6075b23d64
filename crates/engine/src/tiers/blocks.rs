//! Blocks enter the index and memory, and leave them.

use std::ops::Range;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::core::Core;
use crate::index::leaf::{Entry, Hit};
use crate::index::object::{CachedObject, State};
use crate::index::page::Page;
use crate::log::Placed;

/// Drops the cached blocks of `range`. Returns true if the index had a copy of any of them on an SSD.
pub(crate) fn forget_range(core: &Core, state: &mut State, range: Range<u64>) -> bool {
    let (pages, copies) = state.drop_range(range, &core.segments);
    core.ram.removed(pages);
    copies > 0
}

/// Drops all blocks of an object that was removed, and releases their segments.
pub(crate) fn drop_object(core: &Core, object: &Arc<CachedObject>) {
    let mut state = object.lock();
    state.gone = true;
    state.mtime = None;
    forget_range(core, &mut state, 0..u64::MAX);
    if let Some(segment) = state.truncating.take() {
        core.segments.release(segment);
    }
    drop(state);
    // While copies of the object are still to be loaded, they must find that it was removed.
    if !core.segments.is_warming() {
        core.objects.remove(&object.key);
    }
    object.changed.wake();
    core.destager.throttle.changed.wake();
    core.space.wake();
}

/// Puts the appended blocks into the index and the memory tier. Returns true if memory grew.
pub(crate) fn install(
    core: &Core,
    state: &mut State,
    object: &Arc<CachedObject>,
    first: u64,
    pages: SmallVec<[(Page, u64); 4]>,
    placed: &Placed,
) -> bool {
    let mut added = false;
    state.last_frame = placed.seq;
    state.logged = true;
    for (i, ((page, _), checksum)) in pages.into_iter().zip(&placed.checksums).enumerate() {
        let block = first + i as u64;
        let entry = Entry {
            segment: placed.segment,
            checksum: *checksum,
            slot: placed.slot + i as u16,
            dirty: true,
            hit: Hit::No,
        };
        state.set_entry(block, entry, &core.segments);
        if state.set_page(block, page) {
            core.ram.added(object, block);
            added = true;
        }
    }
    // The index holds the segment now.
    core.segments.release(placed.segment);
    added
}
