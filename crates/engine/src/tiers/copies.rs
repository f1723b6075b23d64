//! Copies on the cache devices are checked, and repaired from another leg.

use std::sync::Arc;

use crate::buffer::{Buffer, Slice};
use crate::core::Core;
use crate::event::Event;
use crate::format::{Place, bind, content_hash};
use crate::index::leaf::Entry;
use crate::index::object::CachedObject;
use crate::index::page::Page;
use crate::io::{Device as _, Durability};
use crate::log::mirror_io::{read_leg, write_legs};
use crate::log::records::invalidate;
use crate::volume::queue::{found_damaged, queue_if_dirty};
use crate::{Error, Result};

/// The result of a close look at a copy.
#[derive(Default)]
pub(crate) struct OtherCopy {
    /// The copy's contents; `None` if the index must be asked again.
    pub(crate) page: Option<Page>,
    /// Number of bad legs that were rewritten.
    pub(crate) repaired: u64,
    /// True if the copy was clean and bad, and was dropped.
    pub(crate) dropped: bool,
}

/// Returns true if `contents` match the copy's checksum.
pub(crate) fn is_right(
    core: &Core,
    object: &CachedObject,
    block: u64,
    copy: &Entry,
    contents: &[u8],
) -> bool {
    let Some(segment) = core.segments.get(copy.segment) else { return false };
    let content = content_hash(contents);
    bind(content, core.pool_id, object.key_hash, block, segment.seq, copy.slot) == copy.checksum
        || crate::planted_bugs::active("checksums are not checked")
}

/// Tries the legs of a copy that could not be read, or (`thorough`) all its legs. Repairs the bad legs before the
/// first good one.
pub(crate) async fn read_other_copy(
    core: &Core,
    object: &Arc<CachedObject>,
    block: u64,
    copy: &Entry,
    thorough: bool,
) -> Result<OtherCopy> {
    let segment = core.segments.get(copy.segment);
    let legs = segment.map(|segment| segment.legs).unwrap_or_default();
    let (mut good, mut bad) = (None, Vec::new());
    for place in legs {
        if good.is_some() && !thorough {
            break;
        }
        let read = read_leg(core, place, copy.slot, 1).await;
        match read.ok().filter(|contents| is_right(core, object, block, copy, contents)) {
            Some(contents) => good = Some(Page::from(&contents[..])),
            None => bad.push(place),
        }
    }
    let good = {
        let mut state = object.lock();
        let Some(entry) = state.entry(block).copied().filter(|entry| entry.same_place(copy)) else {
            return Ok(OtherCopy { page: good, ..OtherCopy::default() });
        };
        let good = good.or_else(|| state.page(block).cloned());
        match &good {
            Some(_) => {
                if state.set_damaged(block, false, &core.segments) {
                    queue_if_dirty(core, object, state);
                }
            }
            None if entry.dirty => {
                found_damaged(core, object, &mut state, block);
                return Err(Error::Damaged);
            }
            None => {
                state.remove_entry(block, &core.segments);
            }
        }
        good
    };
    if let Some(page) = good {
        let mut repaired = 0;
        for place in bad {
            repaired += u64::from(repair(core, copy, place, &page).await);
        }
        return Ok(OtherCopy { page: Some(page), repaired, dropped: false });
    }
    if let Some(device) = bad.first().and_then(|place| core.device(place.device)) {
        core.event(Event::Dropped { device: device.name().to_owned() });
        // A copy that is bad today and good tomorrow must not count tomorrow.
        invalidate(core, object, block..block + 1).await?;
    }
    Ok(OtherCopy { dropped: true, ..OtherCopy::default() })
}

/// Writes one leg of a copy again. Returns false if the segment has no leg there any more, or its device fails.
async fn repair(core: &Core, copy: &Entry, place: Place, contents: &[u8]) -> bool {
    let Some(device) = core.device(place.device) else { return false };
    // Since the leg was read, the segment may have been freed, and its place reused for another segment.
    let Some(repairing) = core.segments.begin_repair(copy.segment, place) else { return false };
    let data = Slice::from(Buffer::from_bytes(contents));
    let written = write_legs(core, &[(place, data)], copy.slot, Durability::Now).await;
    drop(repairing);
    // A task may be waiting for the place.
    core.space.wake();
    if written {
        core.totals.repaired.add(1);
        core.event(Event::Repaired { device: device.name().to_owned() });
    }
    written
}
