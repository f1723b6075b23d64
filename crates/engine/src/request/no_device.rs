//! The state in which no cache device is left. Data that only the devices have is lost unless they come back, and a
//! read of it is an error. All other requests continue without the devices, past the log.
//!
//! The devices may return at a later start, with copies and records that are older than later changes. The log cannot
//! record that any more, so the backing store does ([`Disowned`]). Blocks are recorded once the backing store has all
//! accepted data of them, and before it has anything newer. For blocks of which the devices may have a dirty copy,
//! lost or overwritten, two records are made: clean copies before, and all copies after. A truncation is recorded
//! before and after it is carried out, as in the log. Recovery believes these records more than anything on the
//! devices, puts them into the log and drops them.

use std::ops::Range;
use std::time::Duration;

use crate::buffer::BLOCK;
use crate::core::Core;
use crate::index::object::CachedObject;
use crate::io::{Disowned, Time};
use crate::segments::SegmentId;
use crate::tiers::blocks::forget_range;
use crate::volume::trouble::backing_failed;
use crate::{Error, Result};

/// All blocks of an object.
pub(crate) const ALL: Range<u64> = 0..u64::MAX;
/// Stands for the segment of a truncation whose record is with the backing store.
const NOTED: SegmentId = SegmentId::MAX;

/// Records that the devices' copies of `range` do not count. Without dirty blocks the record covers the whole
/// object, which is then unknown to the devices.
pub(crate) async fn disown(core: &Core, object: &CachedObject, range: Range<u64>) -> Result<()> {
    let range = {
        let state = object.lock();
        // No block can become dirty any more.
        let settled = state.dirty == 0 && state.truncating.is_none();
        let range = if settled { ALL } else { range };
        if state.disowned.covers(&range) {
            return Ok(());
        }
        range
    };
    disown_blocks(core, object, range).await
}

/// Records durably that the backing file, and not a lost device, has these blocks.
async fn disown_blocks(core: &Core, object: &CachedObject, range: Range<u64>) -> Result<()> {
    let what = Disowned::Blocks(range.clone());
    core.env.backing.disown(core.pool_id, &object.key, what).await?;
    let mut state = object.lock();
    if range == ALL {
        (state.logged, state.mtime) = (false, None);
    }
    state.disowned.add(range);
    Ok(())
}

/// Records, if no device is left, that clean copies of blocks do not count. The blocks are about to be
/// overwritten, and are in order.
pub(crate) async fn disown_copies(core: &Core, object: &CachedObject, blocks: &[u64]) -> Result<()> {
    let (Some(first), Some(last), 0) = (blocks.first(), blocks.last(), core.active()) else {
        return Ok(());
    };
    let what = Disowned::Copies(*first..last + 1);
    Ok(core.env.backing.disown(core.pool_id, &object.key, what).await?)
}

/// Begins a truncation to `size` bytes that the log does not take.
///
/// # Errors
/// Nothing was done. The remaining part of the block at the new end is lost, or not destaged yet.
pub(crate) async fn begin_unlogged_cut(
    core: &Core,
    object: &CachedObject,
    size: u64,
    mtime: Time,
) -> Result<()> {
    let through = size / BLOCK as u64..size.div_ceil(BLOCK as u64);
    {
        let mut state = object.lock();
        if state.is_damaged(&through) {
            return Err(Error::Damaged);
        }
        if !state.dirty_in(through.clone(), 1).is_empty() {
            return Err(Error::NoDevice);
        }
        state.truncating = Some(NOTED);
    }
    note_cut(core, object, size, mtime).await?;
    let mut state = object.lock();
    (state.size, state.mtime) = (size, Some(mtime));
    forget_range(core, &mut state, through.start..u64::MAX);
    Ok(())
}

/// Records that an object is being truncated, and tries until that succeeds: a failed record may be found as
/// well.
pub(crate) async fn note_cut(core: &Core, object: &CachedObject, size: u64, mtime: Time) -> Result<()> {
    let noted = || core.env.backing.disown(core.pool_id, &object.key, Disowned::Cut { size, mtime });
    while let Err(error) = noted().await {
        backing_failed(core, &object.volume, error);
        if core.closing() {
            return Err(Error::Closing);
        }
        core.env.clock.sleep(Duration::from_secs(1)).await;
    }
    Ok(())
}

/// Records that the truncation in progress is carried out. `saved` says that the backing store has the block at
/// the new end, although the index has it as dirty.
pub(crate) async fn note_carried_out(core: &Core, object: &CachedObject, saved: bool) -> Result<()> {
    let range = {
        let mut state = object.lock();
        let through = state.size / BLOCK as u64..state.size.div_ceil(BLOCK as u64);
        // A clean copy of the block at the new end has bytes that were cut off.
        let only_cached = !saved && !state.dirty_in(through.clone(), 1).is_empty();
        let from = if only_cached { through.end } else { through.start };
        forget_range(core, &mut state, from..u64::MAX);
        if state.dirty == 0 { ALL } else { from..u64::MAX }
    };
    disown_blocks(core, object, range).await
}
