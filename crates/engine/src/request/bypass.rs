//! Bypass writes: changes that go straight to the backing store, and their effect on cached blocks.

use std::ops::Range;
use std::sync::Arc;

use crate::buffer::{BLOCK, Buffer, Slice};
use crate::core::Core;
use crate::format::Record;
use crate::index::object::{CachedObject, State, blocks};
use crate::index::page::Page;
use crate::index::policy::Keep;
use crate::io::{BackingError, Time};
use crate::log::AppendKind;
use crate::log::records::{append, around, invalidate, try_append};
use crate::mode::Mode;
use crate::request::no_device::{disown, disown_copies};
use crate::request::sync::{Unsynced, sync_file};
use crate::tiers::blocks::{drop_object, forget_range};
use crate::tiers::trim::trim_ram;
use crate::volume::health::InFlight;
use crate::volume::queue::{move_to_front, queue};
use crate::volume::trouble::{answered, ask};
use crate::{Error, Result, Seq, planted_bugs};
use forebay_mrc::Kind;

/// The error for a refused block if the volume has none any more.
const EIO: i32 = 5;

/// A bypass write in progress; ended by [`Engine::end_bypass`](crate::Engine::end_bypass).
#[must_use]
pub struct BypassWrite {
    bytes: Range<u64>,
    /// The blocks that `bytes` touch.
    range: Range<u64>,
    /// The frame with the record that older copies do not count.
    frame: Seq,
    fetch: u64,
    /// Blocks of which no copy can be read, and which the write overwrites whole.
    mended: Vec<u64>,
    asked: InFlight,
    /// True if the backing store has the write durably.
    synced: bool,
    /// The number of failed syncs of the file before it was written.
    failed: u64,
    /// True if the written blocks are cached in any mode.
    caching: bool,
    /// True if the object has no modification time that recovery could bring back.
    timeless: bool,
}

impl BypassWrite {
    /// Has [`Engine::end_bypass`](crate::Engine::end_bypass) cache whole written blocks, although the engine's mode is
    /// another one than write-through.
    pub fn caching(mut self) -> Self {
        self.caching = true;
        self
    }

    /// Says that the object has no modification time, as a block volume. So
    /// [`Engine::end_bypass`](crate::Engine::end_bypass) appends no record of it.
    pub fn timeless(mut self) -> Self {
        self.timeless = true;
        self
    }

    /// Says that the change discards the range: the backing store may keep its older contents. Blocks of which no copy
    /// can be read stay unreadable then.
    pub fn discarding(mut self) -> Self {
        self.mended.clear();
        self
    }
}

/// A bypass write that may begin.
struct Entered {
    /// The mark of the write's range; see [`State::begin_own`].
    fetch: u64,
    /// True if the SSDs may have copies of the overwritten blocks, which the log must invalidate.
    copies: bool,
    /// Blocks of which no copy can be read, and which the write overwrites whole.
    mended: Vec<u64>,
    /// The number of failed syncs of the file so far.
    failed: u64,
}

/// Prepares a write of `len` bytes at `offset` straight to the backing store. Waits until no block of the range
/// is dirty, and invalidates older copies of the range. Fails if the backing store refuses a dirty block of the range
/// meanwhile.
pub(crate) async fn begin_bypass(
    core: &Core,
    object: &Arc<CachedObject>,
    offset: u64,
    len: u64,
) -> Result<BypassWrite> {
    let (bytes, range) = (offset..offset + len, blocks(offset, len));
    let (refusals, cuts) = {
        let state = object.lock();
        (state.refused.parts(), state.waiting_cuts.last())
    };
    loop {
        if let Some(entered) = try_begin_bypass(core, object, &range, bytes.clone(), cuts)? {
            let Entered { fetch, copies, mended, failed } = entered;
            let frame = if copies { void_around(core, object, &range, &mended).await } else { Ok(0) };
            let frame = match frame {
                Ok(frame) => disown_copies(core, object, &mended).await.map(|()| frame),
                failed => failed,
            };
            let frame = frame.inspect_err(|_| abort_bypass(object, fetch))?;
            let asked = ask(core, &object.volume);
            return Ok(BypassWrite {
                bytes,
                range,
                frame,
                fetch,
                mended,
                asked,
                synced: false,
                failed,
                caching: false,
                timeless: false,
            });
        }
        let ready = || {
            let state = object.lock();
            if state.gone || may_begin(&state, &range, cuts) {
                return Some(Ok(()));
            }
            // A refused block may stay dirty for ever, so one more attempt decides.
            let is_refused = state.refused.parts() != refusals && state.refuses(&range);
            drop(state);
            if is_refused && !planted_bugs::active("a write past the log waits for a refused block") {
                return Some(Err(object.volume.trouble().unwrap_or(Error::Backing(BackingError::Io(EIO)))));
            }
            // The batch may have lacked some of the dirty blocks, or they were moved within the log. So the
            // request is repeated after each batch.
            move_to_front(core, object);
            None
        };
        object.changed.until(ready).await?;
    }
}

/// Returns true if a bypass write of `range` may begin. It lets those changes of size begin first that waited when it
/// came, with numbers up to `cuts`.
fn may_begin(state: &State, range: &Range<u64>, cuts: u64) -> bool {
    let overtakes = planted_bugs::active("a write past the log overtakes a cut that waits");
    state.allows_bypass(range) && (overtakes || !state.waiting_cuts.waits_until(cuts))
}

/// Enters a bypass write of `bytes` if no other operation stands in its way. `cuts` is the last change of size that
/// comes first.
fn try_begin_bypass(
    core: &Core,
    object: &CachedObject,
    range: &Range<u64>,
    bytes: Range<u64>,
    cuts: u64,
) -> Result<Option<Entered>> {
    let mut state = object.lock();
    if state.gone {
        return Err(Error::Backing(BackingError::Gone));
    }
    let mended: Vec<u64> = state.damaged.range(range.clone()).copied().collect();
    let whole = |block: &u64| {
        let start = block * BLOCK as u64;
        bytes.start <= start && bytes.end >= (start + BLOCK as u64).min(state.size)
    };
    if !mended.iter().all(whole) {
        // Lost contents must not be replaced by the backing store's older contents, not even for a moment.
        return Err(Error::Damaged);
    }
    if !may_begin(&state, range, cuts) {
        return Ok(None);
    }
    state.bypass_writes += 1;
    // Blocks that the write mends stay damaged until the backing store has the new contents.
    let dropped: Vec<_> = around(range, &mended).map(|part| forget_range(core, &mut state, part)).collect();
    let copies = dropped.contains(&true);
    let copies = copies || state.may_be_copied(&core.segments);
    let copies = copies && !planted_bugs::active("direct writes void nothing");
    // Contents of damaged blocks are in flight from the backing store, too, and nothing above has made them stale.
    state.outdate(range);
    // The mark keeps out bypass writes of overlapping ranges, which would make this write's contents doubtful.
    let fetch = state.begin_own(range.clone());
    Ok(Some(Entered { fetch, copies, mended, failed: state.syncs.failed() }))
}

/// Ends a bypass write, which has failed if `written` is `None`. `written` is the offset, with the bytes that the
/// backing store took or none: whole blocks of the bytes may be cached. `size` is the backing store's size, or at
/// least the end of the written range. Until [`CachedObject::begin_sync`] announces a sync, no copy of it goes to the
/// cache devices.
pub(crate) async fn end_bypass(
    core: &Core,
    object: &Arc<CachedObject>,
    direct: BypassWrite,
    written: Option<(u64, &[u8])>,
    size: u64,
    now: Time,
) -> Result<Seq> {
    let BypassWrite { bytes, range, mut frame, fetch, mended, asked, synced, failed, caching, timeless } =
        direct;
    answered(core, &object.volume, asked);
    note_unsynced(&mut object.lock(), bytes, failed, written.is_some(), synced);
    if written.is_some() && !mended.is_empty() {
        match mend(core, object, mended, failed).await {
            Ok(mended) => frame = frame.max(mended),
            Err(error) => {
                abort_bypass(object, fetch);
                return Err(error);
            }
        }
    }
    let caches = caching || core.mode_of(object) == Mode::WriteThrough;
    let cached = written.filter(|_| caches && object.policy().keep != Keep::Never);
    let logged = finish_bypass(core, object, &range, fetch, cached, size, now);
    // Holes and allocations have no contents, and may be as long as a file can be.
    if let Some((offset, data)) = written.filter(|(_, data)| !data.is_empty()) {
        core.totals.direct.add(data.len() as u64);
        let kind = if cached.is_some() { Kind::Through } else { Kind::Around };
        core.saw(object, blocks(offset, data.len() as u64), kind);
    }
    trim_ram(core);
    if !logged || timeless {
        return Ok(frame);
    }
    // Recovery must not bring an older modification time back.
    match append(core, AppendKind::New, object, None).await {
        Ok(facts) => Ok(frame.max(facts)),
        Err(Error::NoDevice) => disown(core, object, 0..0).await.map(|()| frame),
        Err(error) => Err(error),
    }
}

/// Records that a bypass write may be lost in a power cut, and which earlier losses it ends. `failed` is the number of
/// failed syncs of the file before the write.
fn note_unsynced(state: &mut State, bytes: Range<u64>, failed: u64, is_written: bool, is_synced: bool) {
    let unsynced = &mut state.volatile;
    match (is_written, is_synced) {
        (true, true) => unsynced.replaced(&bytes),
        // The sync may have dropped the new contents, and the next sync does not report that.
        _ if state.syncs.failed() != failed => unsynced.lost(bytes),
        (true, false) => unsynced.wrote(bytes),
        (false, _) => unsynced.may_have_written(bytes),
    }
}

/// Invalidates copies that cannot be read, after the backing store was given the whole blocks and has them
/// durably. `failed` is the number of failed syncs of the file before the write. A sync that failed since may
/// have dropped the new contents, and the next sync does not report that. Returns the frame of the last record.
async fn mend(core: &Core, object: &Arc<CachedObject>, mended: Vec<u64>, failed: u64) -> Result<Seq> {
    sync_file(core, Unsynced { object, failed }).await?;
    let record = |object, block, count| Record::Invalidate { object, block, count };
    let mut last = 0;
    for block in mended {
        last = loop {
            let appended = {
                let mut state = object.lock();
                let appended = try_append(core, AppendKind::New, object, &mut state, Some(record), block, 1);
                if let Ok(Some(seq)) = appended {
                    // Record and index change under one lock. Otherwise the copy could be moved within the log
                    // behind the record.
                    forget_range(core, &mut state, block..block + 1);
                    break seq;
                }
                appended
            };
            if appended == Err(Error::NoDevice) {
                disown(core, object, block..block + 1).await?;
                forget_range(core, &mut object.lock(), block..block + 1);
                break last;
            }
            core.log.until(|| core.log.has_room(0).then_some(())).await;
        };
    }
    Ok(last)
}

/// Ends a bypass write, and caches the whole blocks of `written`. Returns true if the log has a modification time of
/// the object.
fn finish_bypass(
    core: &Core,
    object: &Arc<CachedObject>,
    range: &Range<u64>,
    fetch: u64,
    written: Option<(u64, &[u8])>,
    size: u64,
    now: Time,
) -> bool {
    let mut state = object.lock();
    let alone = state.end_fetch(fetch);
    state.bypass_writes -= 1;
    state.outdate(range);
    state.size = state.size.max(size);
    if state.mtime.is_some() {
        state.mtime = Some(now);
    }
    if let Some((offset, data)) = written.filter(|_| alone) {
        cache_written(core, object, &mut state, offset, data);
    }
    let logged = state.logged;
    drop(state);
    object.changed.wake();
    logged
}

/// Ends a write past the log that was not carried out.
fn abort_bypass(object: &CachedObject, fetch: u64) {
    let mut state = object.lock();
    state.end_fetch(fetch);
    state.bypass_writes -= 1;
    drop(state);
    object.changed.wake();
}

/// Caches the whole blocks of a write past the log in memory.
fn cache_written(core: &Core, object: &Arc<CachedObject>, state: &mut State, offset: u64, data: &[u8]) {
    let end = offset + data.len() as u64;
    for block in blocks(offset, data.len() as u64) {
        let at = block * BLOCK as u64;
        let Some(start) = at.checked_sub(offset) else { continue };
        let start = start as usize;
        let page = match data.get(start..start + BLOCK) {
            Some(contents) => Page::from(contents),
            // The object's last block, if it is written from its start.
            None if end >= state.size => {
                let mut contents = data[start..].to_vec();
                contents.resize(BLOCK, 0);
                Page::from(contents)
            }
            None => continue,
        };
        // A write accepted by the log meanwhile is newer.
        if state.entry(block).is_none() && state.set_page(block, page) {
            core.ram.added(object, block);
        }
    }
}

/// Invalidates older copies of `range` durably, in the log or, without devices, in the backing store. This must
/// be durable before the backing store has newer contents. Otherwise a copy found after a crash would hide them
/// until it is evicted.
pub(crate) async fn void_durably(core: &Core, object: &CachedObject, range: Range<u64>) -> Result<Seq> {
    let voided = match invalidate(core, object, range.clone()).await {
        Ok(frame) => core.commit(frame).await.map(|()| frame),
        Err(error) => Err(error),
    };
    match voided {
        Err(Error::NoDevice) => disown(core, object, range).await.map(|()| 0),
        voided => voided,
    }
}

/// Invalidates older copies of `range` durably, without the blocks `kept`.
async fn void_around(core: &Core, object: &CachedObject, range: &Range<u64>, kept: &[u64]) -> Result<Seq> {
    let mut frame = 0;
    for part in around(range, kept) {
        frame = void_durably(core, object, part).await?;
    }
    Ok(frame)
}

/// Writes in a mode that does not use the log. The data is durable when this returns.
pub(crate) async fn write_direct(
    core: &Core,
    object: &Arc<CachedObject>,
    offset: u64,
    data: &[u8],
    now: Time,
) -> Result<Seq> {
    let mut direct = begin_bypass(core, object, offset, data.len() as u64).await?;
    let buffer = Arc::new(Buffer::from_bytes(data));
    let backing = &core.env.backing;
    let failed = direct.failed;
    let mut result = backing.write(&object.key, offset, Slice::new(buffer, 0..data.len())).await;
    if result.is_ok() {
        result = sync_file(core, Unsynced { object, failed }).await;
        direct.synced = result.is_ok();
    }
    let end = offset + data.len() as u64;
    let (written, size) = match result {
        Ok(()) => (Some((offset, data)), end),
        // A part of it may have been written, and have made the object longer.
        Err(_) => (None, backing.size(&object.key).await.unwrap_or(0)),
    };
    let frame = end_bypass(core, object, direct, written, size, now).await;
    result?;
    // The object's logged data may have been destaged meanwhile, and its modification time with it.
    set_mtime(core, object, now).await?;
    frame
}

/// Sets the modification time that destaging must leave behind. Has no effect on an object that never was in the
/// log.
pub(crate) async fn set_mtime(core: &Core, object: &Arc<CachedObject>, mtime: Time) -> Result<()> {
    if take_mtime(core, object, mtime) { log_mtime(core, object).await } else { Ok(()) }
}

/// Takes over a modification time into the index. Returns true if it has to be in the log as well.
pub(crate) fn take_mtime(core: &Core, object: &Arc<CachedObject>, mtime: Time) -> bool {
    let mut state = object.lock();
    if !state.logged {
        return false;
    }
    state.mtime = Some(mtime);
    if !std::mem::replace(&mut state.queued, true) {
        drop(state);
        queue(core, object);
    }
    true
}

/// Logs the modification time that the index has, durably.
pub(crate) async fn log_mtime(core: &Core, object: &Arc<CachedObject>) -> Result<()> {
    let logged = match append(core, AppendKind::New, object, None).await {
        Ok(frame) => core.commit(frame).await,
        Err(error) => Err(error),
    };
    match logged {
        Err(Error::NoDevice) => disown(core, object, 0..0).await,
        logged => logged,
    }
}

/// Drops the object, which was removed from the backing store. No copy of it counts.
pub(crate) async fn forget(core: &Core, object: &Arc<CachedObject>) {
    // The record need not be durable: the key never names an object again, and destage finds it removed.
    let _ = append_forget(core, object).await;
}

/// Drops the object as [`forget`] does. The record of that is durable when this returns.
///
/// # Errors
/// No cache device is left, or the log takes no records.
pub(crate) async fn forget_durably(core: &Core, object: &Arc<CachedObject>) -> Result<()> {
    let frame = append_forget(core, object).await?;
    core.commit(frame).await
}

/// Drops the object, and appends the record that no copy of it counts. Returns the frame of the record.
async fn append_forget(core: &Core, object: &Arc<CachedObject>) -> Result<Seq> {
    drop_object(core, object);
    if core.active() == 0 {
        return Err(Error::NoDevice);
    }
    let record = Some::<fn(u16, u64, u64) -> Record>(|object, _, _| Record::Forget { object });
    append(core, AppendKind::New, object, record).await
}
