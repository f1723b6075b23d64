//! Warming: blocks are brought to the cache devices before a client asks for them.

use std::ops::Range;
use std::sync::Arc;

use crate::core::Core;
use crate::index::leaf::Hit;
use crate::index::object::{Busy, CachedObject, Source, blocks};
use crate::index::page::Page;
use crate::index::policy::Keep;
use crate::io::BackingError;
use crate::request::read::fetch_backing;
use crate::tiers::clean::Offer;
use crate::tiers::fill::keep;
use crate::tiers::policy::Pins;
use crate::{Error, Result};

/// The result of warming a range of an object, in blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Warmed {
    /// Blocks that were read, and are on their way to the cache devices.
    pub brought: u64,
    /// Blocks that the cache devices had.
    pub had: u64,
    /// Blocks for which there is no unused space, or that are never kept.
    pub left: u64,
}

/// A block that is on its way to the cache devices: from memory, or to be read.
struct Wanted {
    block: u64,
    fetch: u64,
    page: Option<Page>,
}

/// Brings the blocks of `range` (bytes) to the cache devices that are not there. No other block has to leave for that,
/// except for an object that is pinned or has a high priority. Waits until earlier blocks are written.
pub(crate) async fn warm(core: &Core, object: &Arc<CachedObject>, range: Range<u64>) -> Result<Warmed> {
    core.clean.drained().await;
    let mut warmed = Warmed::default();
    let wanted = begin(core, object, range, &mut warmed)?;
    let mut rest = wanted.into_iter().peekable();
    while let Some(first) = rest.next() {
        let mut run = vec![first];
        while let Some(next) = rest.next_if(|next| {
            run.last().is_some_and(|last| {
                last.block + 1 == next.block && last.page.is_none() && next.page.is_none()
            })
        }) {
            run.push(next);
        }
        let pages = match &run[..] {
            [Wanted { page: Some(page), .. }] => vec![page.clone()],
            run => {
                let numbers = run[0].block..run[0].block + run.len() as u64;
                match fetch_backing(core, object, numbers, false).await {
                    Ok(pages) => pages,
                    Err(error) => {
                        run.iter()
                            .map(|wanted| wanted.fetch)
                            .chain(rest.map(|wanted| wanted.fetch))
                            .for_each(|fetch| {
                                object.lock().end_fetch(fetch);
                            });
                        return Err(error);
                    }
                }
            }
        };
        warmed.brought += run.len() as u64;
        for (Wanted { block, fetch, .. }, page) in run.into_iter().zip(pages) {
            keep(core, Offer { object: object.clone(), block, page, hit: Hit::No, fetch, stays: false });
        }
    }
    Ok(warmed)
}

/// Marks the contents of the blocks that are to be brought as in flight, so that a change of them is noticed.
fn begin(
    core: &Core,
    object: &Arc<CachedObject>,
    range: Range<u64>,
    warmed: &mut Warmed,
) -> Result<Vec<Wanted>> {
    let room = match object.policy().keep {
        Keep::Never => false,
        Keep::Pin | Keep::Normal => {
            let pins = Pins::now(core);
            pins.spares(core, object) || pins.prefers(core, object) || core.has_room()
        }
    };
    let mut state = object.lock();
    if state.gone {
        return Err(Error::Backing(BackingError::Gone));
    }
    let end = range.end.min(state.size);
    // Until a truncation is carried out, the backing store may have contents that were cut off.
    let changing = state.busy == Busy::Truncate || state.truncating.is_some();
    let mut wanted = Vec::new();
    for block in blocks(range.start, end.saturating_sub(range.start)) {
        if state.entry(block).is_some() {
            warmed.had += 1;
        } else if !room || changing || state.volatile.contains(block) {
            warmed.left += 1;
        } else {
            let fetch = state.begin_fetch(block..block + 1, Source::Cache);
            wanted.push(Wanted { block, fetch, page: state.page(block).cloned() });
        }
    }
    Ok(wanted)
}
