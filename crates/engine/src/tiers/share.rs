//! The limits of shares: a sweep drops clean blocks of a share that has too many, those first that were not used since
//! the sweep before it.

use std::sync::Arc;
use std::time::Duration;

use crate::core::Core;
use crate::index::leaf::{Hit, LEAF};
use crate::index::object::CachedObject;
use crate::index::share::Share;

/// The pause between two looks at the shares. It doubles up to the second value while no block can be dropped.
const PAUSE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// The part of its limit that a sweep frees beyond what is too much, as a divisor. So sweeps are seldom.
const BEYOND: u64 = 16;
/// The number of leaves that a sweep looks through under one lock.
const PIECE: u64 = 64;

/// Sweeps shares that have too many blocks, until the engine closes.
pub(crate) async fn run_shares(core: Arc<Core>) {
    let mut pause = PAUSE.0;
    while !core.closing() {
        let wanted = || (core.closing() || core.shares.any_limited()).then_some(());
        core.destager.work.until(wanted).await;
        let (mut over, mut dropped) = (false, 0);
        for (number, share) in core.shares.all() {
            if share.is_over() {
                over = true;
                dropped += sweep(&core, number, &share).await;
            }
        }
        pause = if over && dropped == 0 { (pause * 2).min(PAUSE.1) } else { PAUSE.0 };
        core.rest(pause).await;
    }
}

/// Drops clean blocks until the share has some room. Returns the number of blocks dropped. Dirty blocks stay.
async fn sweep(core: &Core, number: u16, share: &Share) -> u64 {
    let target = share.max() - share.max() / BEYOND;
    let mut dropped = 0;
    // The first round forgets that blocks were used, so the second one drops any block.
    for _ in 0..2 {
        let mut objects = core.objects.all();
        objects.retain(|object| object.policy().share == number);
        let hand = *share.hand.lock();
        let next = objects.partition_point(|object| object.number < hand.0);
        objects.rotate_left(next);
        for object in objects {
            let mut leaf = if object.number == hand.0 { hand.1 } else { 0 };
            loop {
                if core.closing() || share.held() <= target {
                    *share.hand.lock() = (object.number, leaf);
                    return dropped;
                }
                let Some(next) = sweep_piece(core, &object, leaf, share.held() - target, &mut dropped) else {
                    break;
                };
                leaf = next;
            }
        }
        *share.hand.lock() = (0, 0);
    }
    dropped
}

/// Drops up to `most` clean blocks behind leaf `from` that were not used, and forgets that the others were. Returns the
/// leaf at which to go on; `None` at the end of the object.
fn sweep_piece(
    core: &Core,
    object: &Arc<CachedObject>,
    from: u64,
    most: u64,
    dropped: &mut u64,
) -> Option<u64> {
    let mut state = object.lock();
    let mut leaves = state.leaves.range(from..).map(|(leaf, _)| *leaf);
    let first = leaves.next()?;
    let mut left = most;
    for block in state.cached(first * LEAF..(first + PIECE) * LEAF) {
        let Some(entry) = state.entry_mut(block).filter(|entry| !entry.dirty) else { continue };
        if entry.hit == Hit::Yes {
            entry.hit = Hit::No;
            continue;
        }
        if left == 0 {
            return Some(block / LEAF);
        }
        left -= 1;
        *dropped += 1;
        state.remove_entry(block, &core.segments);
        core.totals.evicted.add(1);
    }
    Some(first + PIECE)
}
