//! Data that was accepted and cannot become durable any more.

use std::sync::Arc;

use crate::core::Core;
use crate::index::object::CachedObject;
use crate::volume::queue::found_damaged;

/// Drops accepted data of an object that is not durable, and never will be: it is not read and not destaged. The
/// contents that it replaced are lost as well.
pub(crate) fn give_up_undurable(core: &Core, object: &Arc<CachedObject>) {
    let mut state = object.lock();
    let durable = core.log.durable();
    // The task that truncates the object handles the block at the new end first.
    if core.log.broken().is_none() || state.last_frame <= durable || state.truncating.is_some() {
        return;
    }
    state.last_frame = durable;
    for (block, entry) in state.dirty_in(0..u64::MAX, usize::MAX) {
        if core.segments.get(entry.segment).is_some_and(|segment| entry.slot >= segment.durable) {
            core.ram.removed(usize::from(state.remove_page(block)));
            found_damaged(core, object, &mut state, block);
        }
    }
    drop(state);
    object.changed.wake();
}
