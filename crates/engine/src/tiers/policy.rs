//! The policies of objects in force: pinned blocks and the least blocks of a share stay, blocks of high priority stay
//! longer, and blocks that are never kept leave.

use std::ops::Range;
use std::sync::Arc;

use crate::core::Core;
use crate::index::leaf::LEAF;
use crate::index::object::{CachedObject, State};
use crate::index::policy::{Keep, Policy, Priority, Standing};
use crate::planted_bugs;

/// The number of leaves whose blocks are dropped under one lock.
const PIECE: u64 = 64;

/// Sets the policy of an object. An object that is never kept loses its clean blocks at once.
pub(crate) fn set_policy(core: &Core, object: &Arc<CachedObject>, mut policy: Policy) {
    if planted_bugs::active("priorities do not count") {
        policy.priority = Priority::Normal;
    }
    if object.policy() == policy {
        return;
    }
    let mut state = object.lock();
    let waits = state.queued && object.policy().dirty_seconds != policy.dirty_seconds;
    object.set_policy(&mut state, policy, core.shares.get(policy.share), &core.segments);
    drop(state);
    if waits {
        object.volume.policy_changed();
    }
    let mut next = 0;
    while object.policy().keep == Keep::Never {
        let mut state = object.lock();
        let Some(first) = state.leaves.range(next..).next().map(|(leaf, _)| *leaf) else { return };
        next = first + PIECE;
        drop_clean(core, &mut state, first * LEAF..next * LEAF);
    }
}

/// Drops the clean blocks of a range.
pub(crate) fn drop_clean(core: &Core, state: &mut State, range: Range<u64>) {
    for block in state.cached(range) {
        if state.entry(block).is_some_and(|entry| entry.dirty) {
            continue;
        }
        core.totals.evicted.add(u64::from(state.remove_entry(block, &core.segments).is_some()));
        core.ram.removed(usize::from(state.remove_page(block)));
    }
}

/// The blocks that eviction spares for the policies of their objects.
pub(crate) struct Pins {
    /// The limit on blocks of pinned objects, and on those that shares keep against others.
    limit: u64,
    /// The limit on blocks of objects of high priority.
    high_limit: u64,
    /// The number of blocks that shares keep against others.
    protected: u64,
}

impl Pins {
    /// Returns the limits as of now. That of pinned blocks is half of the blocks that the log at its full share, and
    /// the segments kept free, leave on the devices. So at least half of what eviction meets makes room. The limit of
    /// blocks of high priority is half of the devices.
    pub(crate) fn now(core: &Core) -> Self {
        let (devices, segments) = core.segments.sizes();
        let log = core.segments.log_use().share as u64 * devices.min(2);
        let taken = log + devices * core.spare_segments() as u64;
        let limit = segments.saturating_sub(taken) / 2 * core.slots() as u64;
        let high_limit = segments / 2 * core.slots() as u64;
        Pins { limit, high_limit, protected: core.shares.protected() }
    }

    /// Returns the limit on pinned blocks.
    pub(crate) fn limit(&self) -> u64 {
        self.limit
    }

    /// Returns the limit on blocks of high priority.
    pub(crate) fn high_limit(&self) -> u64 {
        self.high_limit
    }

    /// Returns true if a block of the object stays because it is pinned. Beyond the limit pinned blocks are blocks like
    /// any others.
    pub(crate) fn spares(&self, core: &Core, object: &CachedObject) -> bool {
        object.policy().keep == Keep::Pin && core.segments.pinned() <= self.limit
    }

    /// Returns true if a block of the object stays because its share has few. Beyond the limit none stays for that.
    pub(crate) fn protects(&self, core: &Core, state: &State) -> bool {
        core.segments.pinned() + self.protected <= self.limit
            && state.share.as_ref().is_some_and(|share| share.is_protected())
    }

    /// Returns true if a block of the object counts as used though it was not: its priority is high. Beyond the limit
    /// blocks of high priority are blocks like any others.
    pub(crate) fn prefers(&self, core: &Core, object: &CachedObject) -> bool {
        object.policy().standing() == Standing::High
            && (core.segments.high() <= self.high_limit || planted_bugs::active("high priority has no limit"))
    }
}
