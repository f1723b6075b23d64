//! Blocks leave memory when there are too many.

use std::sync::Arc;

use crate::core::Core;
use crate::index::object::{CachedObject, Source};
use crate::index::policy::{Keep, Priority};
use crate::tiers::fill::offer;
use crate::tiers::policy::Pins;
use crate::wait::pass;

/// Returns true if a block that leaves memory and is on no SSD should be written to one. That is so if there is
/// room, if the ghost list has the block, or if the object is pinned or its priority is high.
fn is_worth_a_place(core: &Core, object: &CachedObject, block: u64) -> bool {
    match object.policy().keep {
        Keep::Never => return false,
        Keep::Pin if Pins::now(core).spares(core, object) => return true,
        Keep::Pin | Keep::Normal => {}
    }
    let known = core.ghosts.knows(object.key_hash, block);
    core.ghosts.note(object.key_hash, block);
    let is_high = object.policy().priority == Priority::High;
    known || core.has_room() || (is_high && Pins::now(core).prefers(core, object))
}

/// Drops stale entries of the queue.
async fn sweep_ram(core: Arc<Core>) {
    let sweep = core.ram.next_sweep();
    while !core.closing() {
        let mut entries = core.ram.take_piece();
        if entries.is_empty() {
            break;
        }
        entries.retain(|(object, block)| {
            object.upgrade().is_some_and(|object| object.lock().is_first_entry(*block, sweep))
        });
        core.ram.keep(entries);
        pass().await;
    }
    core.ram.end_sweep();
}

/// Removes the oldest blocks from memory until the rest fits.
pub(crate) fn trim_ram(core: &Core) {
    if core.ram.begin_sweep()
        && let Some(core) = core.me.upgrade()
    {
        core.start("forebay-memory", sweep_ram);
    }
    while let Some((object, block)) = core.ram.next_victim() {
        let Some(object) = object.upgrade() else { continue };
        let mut state = object.lock();
        let Some(page) = state.page(block).cloned() else { continue };
        if state.take_hit(block) {
            core.ghosts.note(object.key_hash, block);
            if object.policy().priority != Priority::Low {
                drop(state);
                core.ram.spare(&object, block);
                continue;
            }
        }
        let elsewhere = state.entry(block).is_some();
        state.remove_page(block);
        core.ram.removed(1);
        let durable = !state.volatile.contains(block);
        let wanted = !elsewhere && durable && is_worth_a_place(core, &object, block);
        let fetch = wanted.then(|| state.begin_fetch(block..block + 1, Source::Cache));
        drop(state);
        if let Some(fetch) = fetch {
            offer(core, &object, block, page, fetch);
        }
    }
}
