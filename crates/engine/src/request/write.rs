//! Writes, into the log or straight to the backing store.

use std::convert::Infallible;
use std::ops::Range;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::buffer::BLOCK;
use crate::core::Core;
use crate::format::{Facts, content_hash};
use crate::index::object::{Busy, CachedObject, Source, State, blocks};
use crate::index::page::Page;
use crate::io::{BackingError, Time};
use crate::mode::Mode;
use crate::planted_bugs::threads;
use crate::request::bypass::write_direct;
use crate::request::outcome::Outcome;
use crate::request::read::load;
use crate::tiers::blocks::install;
use crate::tiers::trim::trim_ram;
use crate::volume::admission::wait_for_room;
use crate::volume::queue::queue;
use crate::volume::service_time::STREAM;
use crate::volume::throttle::Wanted;
use crate::volume::trouble::{holds_back, is_set_apart};
use crate::{Error, Result, Seq};
use forebay_mrc::Kind;

/// The part of a write that the log has accepted, from the write's start on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Logged {
    /// Number of bytes accepted.
    pub len: usize,
    /// The bytes are durable once this frame is.
    pub frame: Seq,
}

/// The reason why a write was not accepted yet.
enum Blocked {
    /// The log has no room.
    Room,
    /// The object is being truncated, or the range is in flight to the backing store.
    Busy,
    /// Contents of a partly overwritten block are not in memory.
    Load(u64),
    /// Too much is dirty: the throttle must grant this number of blocks first.
    Throttle(Wanted),
    /// The write does not go to the log.
    Bypass,
}

/// The old contents of a partly overwritten block, read while the object was not locked.
struct Loaded {
    block: u64,
    page: Page,
    fetch: u64,
}

/// A write in progress.
struct Writing<'a> {
    offset: u64,
    data: &'a [u8],
    now: Time,
    /// The blocks for which the throttle is asked. The first piece asks for the blocks of the whole write, so that
    /// all parts of a stream go one way.
    paced: Option<Range<u64>>,
    loaded: SmallVec<[Loaded; 2]>,
}

/// Writes if that needs no waiting: see [`Engine::try_write`](crate::Engine::try_write).
pub(crate) fn try_write(
    core: &Core,
    object: &Arc<CachedObject>,
    offset: u64,
    data: &[u8],
    now: Time,
) -> Result<Outcome<Seq, Infallible, ()>> {
    let paced = Some(blocks(offset, data.len() as u64));
    let mut write = Writing { offset, data, now, paced, loaded: SmallVec::new() };
    if data.len() > BLOCK * 64 {
        // The parts of such a write may need several frames.
        let takes = takes_log(core, object);
        return Ok(if takes { Outcome::Wait } else { Outcome::FromBacking(()) });
    }
    match attempt(core, object, &mut write)? {
        Ok(seq) => Ok(Outcome::Done(seq)),
        Err(Blocked::Bypass) => Ok(Outcome::FromBacking(())),
        Err(_) => Ok(Outcome::Wait),
    }
}

/// Writes. When this returns, the data is accepted, and an unstable write may be acknowledged. The data is
/// durable once [`Engine::commit`](crate::Engine::commit) of the returned frame has succeeded. `now` becomes the
/// object's modification time.
pub(crate) async fn write(
    core: &Core,
    object: &Arc<CachedObject>,
    offset: u64,
    data: &[u8],
    now: Time,
) -> Result<Seq> {
    let Logged { len, frame } = write_log(core, object, offset, data, now).await?;
    if len == data.len() {
        return Ok(frame);
    }
    Ok(frame.max(write_direct(core, object, offset + len as u64, &data[len..], now).await?))
}

/// Writes to the log only. The caller writes the rest to the backing store, between
/// [`Engine::begin_bypass`](crate::Engine::begin_bypass) and [`Engine::end_bypass`](crate::Engine::end_bypass),
/// without a sync where the client asks for none.
pub(crate) async fn write_log(
    core: &Core,
    object: &Arc<CachedObject>,
    offset: u64,
    data: &[u8],
    now: Time,
) -> Result<Logged> {
    let mut logged = Logged { len: 0, frame: core.log.durable() };
    let most = BLOCK * 64;
    let mut paced = Some(blocks(offset, data.len() as u64));
    while logged.len < data.len() {
        let offset = offset + logged.len as u64;
        // Pieces end at block boundaries.
        let len = (most - (offset % BLOCK as u64) as usize).min(data.len() - logged.len);
        let data = &data[logged.len..][..len];
        let piece = Writing { offset, data, now, paced: paced.take(), loaded: SmallVec::new() };
        match write_piece(core, object, piece).await? {
            Some(frame) => logged.frame = logged.frame.max(frame),
            None => break,
        }
        logged.len += len;
    }
    Ok(logged)
}

/// Writes one piece. Returns `None` if the piece goes to the backing store.
async fn write_piece(core: &Core, object: &Arc<CachedObject>, mut write: Writing<'_>) -> Result<Option<Seq>> {
    let range = blocks(write.offset, write.data.len() as u64);
    loop {
        let blocked = match attempt(core, object, &mut write)? {
            Ok(seq) => return Ok(Some(seq)),
            Err(blocked) => blocked,
        };
        match blocked {
            Blocked::Bypass => {
                unload(object, &mut write);
                return Ok(None);
            }
            Blocked::Busy => {
                let free = || {
                    let state = object.lock();
                    state.busy != Busy::Truncate && !state.is_bypassed(&range)
                };
                object.changed.until(|| free().then_some(())).await;
            }
            Blocked::Load(block) => {
                let fetch = object.lock().begin_fetch(block..block + 1, Source::Cache);
                let page = load(core, object, block).await;
                match page {
                    Ok(page) => write.loaded.push(Loaded { block, page, fetch }),
                    Err(error) => {
                        object.lock().end_fetch(fetch);
                        unload(object, &mut write);
                        return Err(error);
                    }
                }
            }
            Blocked::Throttle(wanted) => {
                if wait_for_room(core, &object.volume, wanted).await {
                    write.paced = None;
                }
            }
            Blocked::Room => {
                let ready = || core.log.has_room(write.data.len().div_ceil(BLOCK) + 1).then_some(());
                core.log.until(ready).await;
            }
        }
    }
}

/// Gives up the blocks that were fetched for a write.
fn unload(object: &CachedObject, write: &mut Writing<'_>) {
    let mut state = object.lock();
    for loaded in write.loaded.drain(..) {
        state.end_fetch(loaded.fetch);
    }
    drop(state);
    object.changed.wake();
}

/// Returns true if writes of an object go to the log in the mode in force.
fn takes_log(core: &Core, object: &CachedObject) -> bool {
    core.mode_of(object) == Mode::WriteBack
}

/// Tries to put a write into the log, without waiting. Enters the blocks into the index, and queues the object for
/// destaging. Returns the frame, or the reason why the write has to wait or to go past the log.
fn attempt(
    core: &Core,
    object: &Arc<CachedObject>,
    write: &mut Writing<'_>,
) -> Result<std::result::Result<Seq, Blocked>> {
    if !takes_log(core, object) {
        return Ok(Err(Blocked::Bypass));
    }
    let range = blocks(write.offset, write.data.len() as u64);
    let mut pages: SmallVec<[(Page, u64); 4]> = SmallVec::new();
    // A block that is overwritten whole needs neither the lock nor the old contents.
    let whole = |block: u64| {
        let at = block * BLOCK as u64;
        let start = at.checked_sub(write.offset)? as usize;
        write.data.get(start..start + BLOCK)
    };
    let ready: SmallVec<[_; 4]> =
        range.clone().map(|block| whole(block).map(|data| (Page::from(data), content_hash(data)))).collect();
    let mut state = object.lock();
    if state.gone {
        return Err(Error::Backing(BackingError::Gone));
    }
    // A bypass write that began before the mode changed comes first.
    if state.busy == Busy::Truncate || state.is_bypassed(&range) {
        return Ok(Err(Blocked::Busy));
    }
    for (block, ready) in range.clone().zip(ready) {
        let page = match ready {
            Some(ready) => ready,
            None => match merge(&mut state, block, write) {
                Some(page) => {
                    let hash = content_hash(&page);
                    (page, hash)
                }
                None => return Ok(Err(Blocked::Load(block))),
            },
        };
        pages.push(page);
    }
    if let Some(paced) = &write.paced {
        let all = paced.end - paced.start;
        let new = all - state.dirty_entries(paced.clone()).count() as u64;
        // A stream does not wait for a volume in trouble.
        let stream = all >= STREAM
            && !object.policy().caches_streams()
            && !is_set_apart(core, &object.volume)
            && state.allows_bypass(paced);
        if let Some(trouble) = holds_back(core, &object.volume, new) {
            // A failing volume may still take a bypass write. Dirty blocks in the range must be destaged first.
            let asked = trouble != Error::Late && state.allows_bypass(paced);
            return if asked { Ok(Err(Blocked::Bypass)) } else { Err(trouble) };
        }
        if stream && core.service.is_faster_direct(&object.volume.service) {
            return Ok(Err(Blocked::Bypass));
        }
        let volume = &object.volume;
        // A volume in trouble frees no room, so its writers do not wait for room.
        let new = if is_set_apart(core, volume) { 0 } else { new };
        let wanted = Wanted { new, all };
        if !core
            .destager
            .throttle
            .admits(&volume.room, &core.log_load(volume), wanted, || core.env.clock.now())
        {
            // Where the rate of destaging is the limit, a stream is finished sooner without the log.
            if stream {
                return Ok(Err(Blocked::Bypass));
            }
            core.destager.volumes.press();
            return Ok(Err(Blocked::Throttle(wanted)));
        }
        write.paced = None;
    }
    let size = state.size.max(write.offset + write.data.len() as u64);
    let logged = if crate::planted_bugs::active("sizes are not logged") { state.size } else { size };
    let facts = Facts { key: object.key.clone(), size: logged, mtime: Some(write.now) };
    let Some(placed) = core.log.accept_data(object, &facts, range.start, &pages, &core.segments)? else {
        // No room, or the mode is about to change.
        return Ok(Err(Blocked::Room));
    };
    let mut state =
        threads::gap("a write is in the log before the index knows of it", || object.lock(), state);
    state.size = size;
    state.mtime = Some(write.now);
    state.outdate(&range);
    state.volatile.replaced(&(write.offset..write.offset + write.data.len() as u64));
    for loaded in write.loaded.drain(..) {
        state.end_fetch(loaded.fetch);
    }
    let seq = placed.seq;
    let added = install(core, &mut state, object, range.start, pages, &placed);
    let newly_queued = !std::mem::replace(&mut state.queued, true);
    drop(state);
    core.totals.written.add(range.end - range.start);
    core.saw(object, range, Kind::Write);
    if newly_queued {
        queue(core, object);
    }
    if added {
        trim_ram(core);
    }
    Ok(Ok(seq))
}

/// Returns the new contents of a partly overwritten block; `None` if its old contents have to be read first.
fn merge(state: &mut State, block: u64, write: &Writing<'_>) -> Option<Page> {
    let at = block * BLOCK as u64;
    let end = write.offset + write.data.len() as u64;
    let (from, to) = (write.offset.max(at), end.min(at + BLOCK as u64));
    let mut contents = [0; BLOCK];
    // A block that is written from its start to the end of the file keeps no old contents.
    let keeps_nothing = at >= state.size
        || (from == at && to >= state.size)
        || crate::planted_bugs::active("partial writes forget the old contents");
    if !keeps_nothing {
        let loaded = write.loaded.iter().find(|l| l.block == block && state.is_current(l.fetch));
        let old = state.page(block).or_else(|| loaded.map(|loaded| &loaded.page))?;
        contents.copy_from_slice(old);
    }
    let part = (from - write.offset) as usize..(to - write.offset) as usize;
    contents[(from - at) as usize..(to - at) as usize].copy_from_slice(&write.data[part]);
    Some(Page::from(&contents[..]))
}
