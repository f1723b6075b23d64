//! Reappends: data in the log is appended to it again.
//!
//! - Live blocks of the oldest segment (`maintain/compact.rs`).
//! - Blocks with one copy or none (`maintain/remirror.rs`).
//! - User records (`maintain/carry.rs`).
//! - Truncations that are not carried out (`request/truncate.rs`).
//!
//! A record behind another record wins at recovery. So a block is reappended only while its object is locked and the
//! index names the very copy that was read. A truncation is put into the log and into the index under that lock as
//! well. So no block that it cuts off can get behind it.

use std::sync::Arc;

use crate::core::Core;
use crate::format::content_hash;
use crate::index::leaf::Entry;
use crate::index::object::{Busy, CachedObject};
use crate::index::page::Page;
use crate::log::AppendKind;
use crate::log::records::facts_of;
use crate::{Result, Seq, planted_bugs};

/// The result of reappending a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Again {
    /// The block is in this frame.
    Appended(Seq),
    /// The copy does not count any more: the block was overwritten, cut off, destaged or moved.
    Outdated,
    /// No task makes room for the block, or the engine closes.
    NoRoom,
}

/// Reappends a dirty block whose `copy` was read, unless that copy does not count any more. Without `page` no
/// copy can be read, and the log records that again.
///
/// # Errors
/// The log takes no records any more.
pub(crate) async fn append_again(
    core: &Core,
    object: &Arc<CachedObject>,
    block: u64,
    copy: &Entry,
    page: Option<Page>,
) -> Result<Again> {
    let contents = page.map(|page| {
        let hash = content_hash(&page);
        (page, hash)
    });
    loop {
        {
            let mut state = object.lock();
            if !state.entry(block).is_some_and(|entry| entry.dirty && entry.same_place(copy)) {
                return Ok(Again::Outdated);
            }
            let facts = facts_of(object, &state);
            let placed = match &contents {
                Some(contents) => {
                    let pages = std::slice::from_ref(contents);
                    core.log.append_data(object, &facts, block, pages, &core.segments)?
                }
                None => core.log.append_damaged(object, &facts, block, &core.segments)?,
            };
            if let Some(placed) = placed {
                state.last_frame = placed.seq;
                let (segment, checksum) = (placed.segment, placed.checksums[0]);
                let dirty = !planted_bugs::active("what is moved within the log is taken for clean");
                let moved = Entry { segment, checksum, slot: placed.slot, dirty, hit: copy.hit };
                let damaged = state.is_damaged(&(block..block + 1));
                state.set_entry(block, moved, &core.segments);
                if damaged {
                    state.set_damaged(block, true, &core.segments);
                }
                core.segments.release(segment);
                let stays = planted_bugs::active("blocks moved while they are destaged stay dirty");
                if state.busy == Busy::Destage && contents.is_some() && !stays {
                    state.moves.moved(block, *copy, moved);
                }
                core.destager.volumes.moved(&object.volume);
                return Ok(Again::Appended(placed.seq));
            }
        }
        if !room_to_move(core, 1).await {
            return Ok(Again::NoRoom);
        }
    }
}

/// Waits until the log takes `data` reappended blocks, or fails. Returns false if no task makes room for them, or
/// the engine closes.
pub(crate) async fn room_to_move(core: &Core, data: usize) -> bool {
    let full = || core.log.is_full() && !core.finds_segments(0, true);
    let over = || (full() || core.closing()).then_some(false);
    let room = || core.log.has_room_for(AppendKind::Moved, data).then_some(true);
    core.log.until(|| room().or_else(over)).await
}
