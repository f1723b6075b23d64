//! Reads from memory, from the cache devices and from the backing store.

use std::ops::Range;
use std::sync::Arc;

use crate::buffer::{BLOCK, Buffer};
use crate::core::Core;
use crate::index::leaf::{Entry, Hit};
use crate::index::object::{Busy, CachedObject, Fetch, Source as Origin, State, blocks};
use crate::index::page::Page;
use crate::index::policy::Keep;
use crate::io::BackingError;
use crate::log::mirror_io::{leg_to_read, read_leg};
use crate::mode::Mode;
use crate::planted_bugs::threads;
use crate::request::outcome::Outcome;
use crate::segments::SegmentId;
use crate::tiers::copies::{is_right, read_other_copy};
use crate::tiers::trim::trim_ram;
use crate::wait::all;
use crate::{Error, Result};
use forebay_mrc::Kind;

/// The place from which a block's contents are read.
enum Source {
    Page(Page),
    Ssd(Entry),
    Backing,
}

/// Blocks read by one device or backing request.
struct Run {
    blocks: Range<u64>,
    /// The copies of the blocks if they are on an SSD, in consecutive slots.
    copies: Vec<Entry>,
    fetch: u64,
}

/// The result of one look at the index.
enum Plan {
    /// Some block is not durable yet.
    Undurable(u64),
    /// Another request is fetching some block.
    Fetching(u64),
    /// Some block is not cached, and the request asks for cached blocks only.
    Uncached,
    /// Contents of blocks in memory, and the runs that have to be read.
    Go(Vec<(u64, Page)>, Vec<Run>),
}

/// Reads from memory only: see [`Engine::try_read`](crate::Engine::try_read).
pub(crate) fn try_read(
    core: &Core,
    object: &CachedObject,
    offset: u64,
    buf: &mut [u8],
) -> Outcome<usize, (), ()> {
    let mut state = object.lock();
    let len = clip(&state, offset, buf.len());
    let range = blocks(offset, len as u64);
    if state.last_frame > core.log.durable() && !durable(core, &state, &range) {
        return Outcome::Wait;
    }
    let total = range.end - range.start;
    let (mut found, mut on_ssd) = (0, 0);
    for block in range.clone() {
        if let Some(page) = state.use_page(block) {
            copy(page, block, offset, &mut buf[..len]);
            found += 1;
        } else if state.entry(block).is_some() {
            on_ssd += 1;
        } else if found + on_ssd > 0 {
            return Outcome::Wait;
        }
    }
    if found < total {
        // The backing store is known to hold all of the object below its size.
        let plain = state.dirty == 0 && state.truncating.is_none() && state.busy == Busy::No;
        return match found + on_ssd {
            0 if plain => Outcome::FromBacking(()),
            cached if cached == total => Outcome::FromSsd(()),
            _ => Outcome::Wait,
        };
    }
    drop(state);
    core.totals.read_ram.add(total);
    core.saw(object, range, Kind::Read);
    Outcome::Done(len)
}

/// Reads. Returns the bytes read into the front of `buf`. The read is shorter than `buf` only at the end of the
/// object.
pub(crate) async fn read(
    core: &Core,
    object: &Arc<CachedObject>,
    offset: u64,
    buf: &mut [u8],
) -> Result<usize> {
    // A read that may ask the backing store never returns `None`.
    Ok(read_from(core, object, offset, buf, true).await?.unwrap_or_default())
}

/// Reads without asking the backing store. Returns `None` if some block is not cached, or its copies are bad.
pub(crate) async fn read_cached(
    core: &Core,
    object: &Arc<CachedObject>,
    offset: u64,
    buf: &mut [u8],
) -> Result<Option<usize>> {
    read_from(core, object, offset, buf, false).await
}

/// Reads, and looks into the index again whenever the object changed meanwhile. Without `backing`, returns `None` if
/// some block is not cached.
async fn read_from(
    core: &Core,
    object: &Arc<CachedObject>,
    offset: u64,
    buf: &mut [u8],
    backing: bool,
) -> Result<Option<usize>> {
    loop {
        let (len, plan) = {
            let mut state = object.lock();
            if state.gone {
                return Err(Error::Backing(BackingError::Gone));
            }
            let len = clip(&state, offset, buf.len());
            (len, plan(core, &mut state, blocks(offset, len as u64), backing))
        };
        let (pages, runs) = match plan {
            Plan::Undurable(frame) => {
                core.log.committed(frame).await?;
                continue;
            }
            Plan::Fetching(fetch) => {
                object.changed.until(|| (!object.lock().is_fetching(fetch)).then_some(())).await;
                continue;
            }
            Plan::Uncached => return Ok(None),
            Plan::Go(pages, runs) => (pages, runs),
        };
        core.totals.read_ram.add(pages.len() as u64);
        for (block, page) in &pages {
            copy(page, *block, offset, &mut buf[..len]);
        }
        if fetch_runs(core, object, runs, offset, &mut buf[..len]).await? {
            trim_ram(core);
            return Ok(Some(len));
        }
    }
}

/// Returns one block's contents, for a write that keeps a part of them.
pub(crate) async fn load(core: &Core, object: &Arc<CachedObject>, block: u64) -> Result<Page> {
    let mut contents = vec![0; BLOCK];
    read(core, object, block * BLOCK as u64, &mut contents).await?;
    Ok(Page::from(contents))
}

/// Returns true if all cached copies of `range` are durable.
fn durable(core: &Core, state: &State, range: &Range<u64>) -> bool {
    let mut known: Option<(SegmentId, u16)> = None;
    state.dirty_entries(range.clone()).all(|(_, entry)| {
        let durable = match known {
            Some((segment, durable)) if segment == entry.segment => durable,
            _ => core.segments.get(entry.segment).map_or(u16::MAX, |segment| segment.durable),
        };
        known = Some((entry.segment, durable));
        entry.slot < durable || crate::planted_bugs::active("reads do not wait for frames")
    })
}

/// Decides from the index how the blocks of `range` are read, and begins a fetch for each run. With `backing`, blocks
/// that are not cached are read from the backing store.
fn plan(core: &Core, state: &mut State, range: Range<u64>, backing: bool) -> Plan {
    if state.last_frame > core.log.durable() && !durable(core, state, &range) {
        return Plan::Undurable(state.last_frame);
    }
    let sources: Vec<_> = range.clone().map(|block| source(state, block)).collect();
    if !backing && sources.iter().any(|source| matches!(source, Source::Backing)) {
        return Plan::Uncached;
    }
    let missing = |block: u64| matches!(sources[(block - range.start) as usize], Source::Backing);
    let common = |fetch: &Fetch| fetch.blocks.start.max(range.start)..fetch.blocks.end.min(range.end);
    let waits =
        |fetch: &&Fetch| !fetch.stale && fetch.source == Origin::Backing && common(fetch).any(missing);
    if let Some(fetch) = state.fetches.iter().find(waits) {
        return Plan::Fetching(fetch.id);
    }
    let (mut pages, mut runs) = (Vec::new(), Vec::<Run>::new());
    for (block, source) in range.zip(sources) {
        let copy = match source {
            Source::Page(page) => {
                pages.push((block, page));
                continue;
            }
            Source::Ssd(entry) => Some(entry),
            Source::Backing => None,
        };
        let joins = |run: &Run| {
            run.blocks.end == block
                && match (&copy, run.copies.last()) {
                    (Some(next), Some(last)) => last.segment == next.segment && last.slot + 1 == next.slot,
                    (None, None) => true,
                    _ => false,
                }
        };
        match runs.last_mut().filter(|run| joins(run)) {
            Some(run) => {
                run.blocks.end += 1;
                run.copies.extend(copy);
            }
            None => runs.push(Run { blocks: block..block + 1, copies: copy.into_iter().collect(), fetch: 0 }),
        }
    }
    for run in runs.iter_mut() {
        let origin = if run.copies.is_empty() { Origin::Backing } else { Origin::Cache };
        run.fetch = state.begin_fetch(run.blocks.clone(), origin);
    }
    Plan::Go(pages, runs)
}

/// Reads `runs` side by side into `buf`. Returns false if the object changed meanwhile, and the index must be
/// asked again.
async fn fetch_runs(
    core: &Core,
    object: &Arc<CachedObject>,
    runs: Vec<Run>,
    offset: u64,
    buf: &mut [u8],
) -> Result<bool> {
    let fetch = |(i, run)| Box::pin(fetch_run(core, object, run, i + 1 == runs.len()));
    let reads: Vec<_> = runs.iter().enumerate().map(fetch).collect();
    let results = all(reads).await;
    let mut complete = Ok(true);
    let policy = object.policy();
    let caches = core.mode().max(policy.mode) != Mode::PassThrough && policy.keep != Keep::Never;
    let mut state = object.lock();
    for (run, result) in runs.into_iter().zip(results) {
        let cut = run.copies.is_empty() && state.is_cut(run.fetch);
        let current = state.end_fetch(run.fetch);
        state = threads::gap("a fetch ends before its contents are in memory", || object.lock(), state);
        match result {
            // Older contents without a part that was truncated since may never have existed, if a write came in
            // between.
            Ok(Some(_)) if cut => complete = complete.map(|_| false),
            Ok(Some(pages)) => {
                for (block, page) in run.blocks.clone().zip(pages) {
                    copy(&page, block, offset, buf);
                    let cached = current && caches && state.page(block).is_none();
                    if cached && state.set_page(block, page) {
                        core.ram.added(object, block);
                    }
                }
            }
            Ok(None) => complete = complete.map(|_| false),
            Err(error) => complete = complete.and(Err(error)),
        }
    }
    drop(state);
    object.changed.wake();
    complete
}

/// Returns the contents of a run; `None` if its copies moved meanwhile. The `last` run of a request begins
/// when all others are in progress.
async fn fetch_run(
    core: &Core,
    object: &Arc<CachedObject>,
    run: &Run,
    last: bool,
) -> Result<Option<Vec<Page>>> {
    if run.copies.is_empty() {
        return fetch_backing(core, object, run.blocks.clone(), last).await.map(Some);
    }
    let first = run.copies[0];
    let count = run.copies.len();
    let segment = core.segments.get(first.segment);
    let leg = segment.as_ref().and_then(|segment| leg_to_read(core, segment, first.slot));
    let buffer = match leg {
        Some(place) => read_leg(core, place, first.slot, count).await.ok(),
        None => None,
    };
    let mut pages = Vec::with_capacity(count);
    for (i, copy) in run.copies.iter().enumerate() {
        let block = run.blocks.start + i as u64;
        let contents = buffer.as_ref().map(|buffer| &buffer[i * BLOCK..][..BLOCK]);
        let good = contents.filter(|contents| is_right(core, object, block, copy, contents));
        match good {
            Some(contents) => pages.push(Page::from(contents)),
            None => match read_other_copy(core, object, block, copy, false).await?.page {
                Some(page) => pages.push(page),
                None => return Ok(None),
            },
        }
    }
    core.totals.read_ssd.add(count as u64);
    let mut state = object.lock();
    for block in run.blocks.clone() {
        if let Some(entry) = state.entry_mut(block) {
            entry.hit = Hit::Yes;
        }
    }
    Ok(Some(pages))
}

/// Reads whole blocks from the backing store. Bytes beyond its contents are zero.
pub(super) async fn fetch_backing(
    core: &Core,
    object: &CachedObject,
    range: Range<u64>,
    inline: bool,
) -> Result<Vec<Page>> {
    let count = (range.end - range.start) as usize;
    let at = range.start * BLOCK as u64;
    let (backing, buffer) = (&core.env.backing, Buffer::zeroed(count));
    let read = match inline {
        true => backing.read_inline(&object.key, at, buffer),
        false => backing.read(&object.key, at, buffer),
    };
    let (mut buffer, result) = read.await;
    let read = result?;
    buffer[read..].fill(0);
    // Bytes behind the object's end must not reappear when it grows. They may exist while a truncation is not
    // carried out yet.
    let size = object.lock().size;
    if size < at + buffer.len() as u64 {
        buffer[size.saturating_sub(at) as usize..].fill(0);
    }
    core.totals.read_backing.add(count as u64);
    Ok(buffer.chunks_exact(BLOCK).map(Page::from).collect())
}

/// Returns the best place of a block: memory, the devices, or the backing store.
fn source(state: &mut State, block: u64) -> Source {
    if let Some(page) = state.use_page(block) {
        return Source::Page(page.clone());
    }
    state.entry(block).map_or(Source::Backing, |entry| Source::Ssd(*entry))
}

/// Returns the number of bytes of a read that lie within the object.
fn clip(state: &State, offset: u64, len: usize) -> usize {
    usize::try_from(state.size.saturating_sub(offset)).map_or(len, |there| len.min(there))
}

/// Copies the part of `block` that lies in the read at `offset` into `buf`.
fn copy(page: &[u8], block: u64, offset: u64, buf: &mut [u8]) {
    let at = block * BLOCK as u64;
    let end = offset + buf.len() as u64;
    let (from, to) = (offset.max(at), end.min(at + BLOCK as u64));
    if from < to {
        let part = &page[(from - at) as usize..(to - at) as usize];
        buf[(from - offset) as usize..(to - offset) as usize].copy_from_slice(part);
    }
}
