//! Truncation and growth of objects.
//!
//! A truncation is logged first, then carried out in the backing store, then logged as carried out. Until then
//! nothing else changes the object. Recovery carries out a truncation without the second record, and never over later
//! changes.

use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;

use crate::buffer::{BLOCK, Buffer, Slice};
use crate::core::Core;
use crate::format::{Facts, Record, content_hash};
use crate::index::object::{Busy, CachedObject, State};
use crate::index::page::Page;
use crate::io::{BackingError, BackingResult, Time};
use crate::log::AppendKind;
use crate::log::reappend::room_to_move;
use crate::log::records::{append, facts_of};
use crate::log::undurable::give_up_undurable;
use crate::log::writer::moving;
use crate::planted_bugs::threads;
use crate::request::bypass::{log_mtime, take_mtime};
use crate::request::no_device::{begin_unlogged_cut, note_carried_out, note_cut};
use crate::request::read::load;
use crate::segments::SegmentId;
use crate::tiers::blocks::{forget_range, install};
use crate::volume::trouble::{ask, backing_failed, backing_worked};
use crate::{Error, Result, Seq};

/// The state of a change of size.
enum Cut {
    Done,
    /// The object grew. Its modification time is in the index, and not in the log yet.
    Timed,
    /// Nothing was done, since the log has no room for the record.
    NoRoom,
}

/// Truncates or grows an object to `size` bytes, durably when this returns.
pub(crate) async fn truncate(core: &Core, object: &Arc<CachedObject>, size: u64, now: Time) -> Result<()> {
    loop {
        lock_for_truncate(object).await?;
        let result = cut(core, object, size, now).await;
        unlock(core, object);
        // The log may be full of dirty blocks of this very object. So nothing waits for room while destaging has to
        // wait for the truncation.
        match result? {
            Cut::Done => return Ok(()),
            Cut::Timed => return log_mtime(core, object).await,
            Cut::NoRoom => core.log.until(|| core.log.has_room(1).then_some(())).await,
        }
    }
}

/// Ends [`lock_for_truncate`].
fn unlock(core: &Core, object: &CachedObject) {
    let mut state = object.lock();
    if state.busy == Busy::Truncate {
        state.busy = Busy::No;
    }
    drop(state);
    object.changed.wake();
    // Blocks that were cut off need not be destaged.
    core.destager.throttle.changed.wake();
    core.space.wake();
}

/// A change of size that waits for its begin.
struct Waiting<'a> {
    object: &'a CachedObject,
    number: u64,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.object.lock().waiting_cuts.end(self.number);
        self.object.changed.wake();
    }
}

/// Waits until no other task works on the object's backing file, and keeps other tasks from it. Bypass writes and
/// destage batches that have not begun wait meanwhile, or a steady writer would hold the change of size up for ever.
async fn lock_for_truncate(object: &CachedObject) -> Result<()> {
    let number = object.lock().waiting_cuts.begin();
    let _waiting = Waiting { object, number };
    let ready = || {
        let mut state = object.lock();
        if state.gone {
            return Some(Err(Error::Backing(BackingError::Gone)));
        }
        let free = state.busy == Busy::No && state.allows_cut();
        free.then(|| {
            state.busy = Busy::Truncate;
            Ok(())
        })
    };
    object.changed.until(ready).await
}

/// Carries out a change of size, logged first if the object shrinks. No other change of the object is in progress.
async fn cut(core: &Core, object: &Arc<CachedObject>, size: u64, now: Time) -> Result<Cut> {
    let old = object.lock().size;
    let mut unlogged = None;
    if size < old {
        unlogged = match log_cut(core, object, size, now).await {
            Err(Error::NoDevice) => begin_unlogged_cut(core, object, size, now).await.map(|()| None)?,
            Ok(None) => return Ok(Cut::NoRoom),
            Ok(Some(Logged { unlogged })) => unlogged,
            Err(error) => return Err(error),
        };
    } else {
        object.lock().outdate(&(old / BLOCK as u64..u64::MAX));
    }
    let result = carry_out(core, object, size, Some(now), unlogged).await;
    if result.is_ok() && size >= old {
        object.lock().size = size;
        if take_mtime(core, object, now) {
            return Ok(Cut::Timed);
        }
    } else if result.is_ok() {
        // The backing store has the time as well. If the object has dirty blocks, destaging sets the time last.
        let mut state = object.lock();
        if state.dirty == 0 && state.mtime == Some(now) {
            state.mtime = None;
        }
    } else if size > old {
        // The file may have grown in spite of the error.
        let grown = core.env.backing.size(&object.key).await.unwrap_or(old);
        let mut state = object.lock();
        state.size = state.size.max(grown);
    }
    result.map(|()| Cut::Done)
}

/// A truncation that was logged.
struct Logged {
    /// The remaining part of the block at the new end, if the log does not take it any more.
    unlogged: Option<Page>,
}

/// Logs a truncation and drops all blocks beyond it. If only the cache has the new last block, it is logged again
/// without the part that was cut off. Returns `None` if the log has no room.
///
/// # Errors
/// An error means that nothing was done.
async fn log_cut(core: &Core, object: &Arc<CachedObject>, size: u64, now: Time) -> Result<Option<Logged>> {
    let last = last_of_cut(core, object, size).await?;
    let Some(frame) = try_log_cut(core, object, size, now, last.as_ref())? else { return Ok(None) };
    let early = crate::planted_bugs::active("a cut is carried out before its record is durable");
    if early || core.commit(frame).await.is_ok() {
        return Ok(Some(Logged { unlogged: None }));
    }
    // The blocks that were cut off are not in the index any more, so there is no way back.
    note_cut(core, object, size, now).await?;
    Ok(Some(Logged { unlogged: last.map(|(page, _)| page) }))
}

/// Logs a truncation if there is room now, together with `last`, the remaining part of the block at the new end.
/// Returns the frame.
fn try_log_cut(
    core: &Core,
    object: &Arc<CachedObject>,
    size: u64,
    now: Time,
    last: Option<&(Page, u64)>,
) -> Result<Option<Seq>> {
    let mtime = Some(now);
    let facts = Facts { key: object.key.clone(), size, mtime };
    // The object is locked from before the record exists until the index knows of it. A block or size that is
    // moved within the log meanwhile would be behind the record, and recovery would bring it back.
    let late = threads::active("a cut is in the log before its object is locked");
    let locked = (!late).then(|| object.lock());
    // Both go into one frame: recovery must not see the record without the rewritten block.
    let appended = core.log.append_cut(AppendKind::New, object, &facts, size, last, &core.segments)?;
    let Some((appended, placed)) = appended else { return Ok(None) };
    let mut state = locked.unwrap_or_else(|| object.lock());
    state.truncating = Some(appended.segment);
    (state.size, state.mtime, state.logged) = (size, mtime, true);
    state.last_frame = appended.seq;
    let partial = size / BLOCK as u64;
    forget_range(core, &mut state, partial..u64::MAX);
    if let Some((placed, page)) = placed.zip(last.cloned()) {
        install(core, &mut state, object, partial, SmallVec::from_iter([page]), &placed);
    }
    Ok(Some(appended.seq))
}

/// Returns the remaining part of the block at the new end, if only the cache has that block.
async fn last_of_cut(core: &Core, object: &Arc<CachedObject>, size: u64) -> Result<Option<(Page, u64)>> {
    let partial = size / BLOCK as u64;
    let keep = (size % BLOCK as u64) as usize;
    if keep == 0 || !object.lock().entry(partial).is_some_and(|entry| entry.dirty) {
        return Ok(None);
    }
    Ok(Some(cut_page(&load(core, object, partial).await?, keep)))
}

/// Reappends a truncation of segment `id` that is not carried out, so that the segment can leave the log. Returns
/// the frame.
pub(crate) async fn log_cut_again(core: &Core, object: &Arc<CachedObject>, id: SegmentId) -> Result<Seq> {
    let is_there = |state: &State| state.truncating == Some(id) && !state.carried_out;
    loop {
        let (size, copy) = {
            let state = object.lock();
            if !is_there(&state) {
                return Ok(0);
            }
            (state.size, state.entry(state.size / BLOCK as u64).copied())
        };
        let last = match last_of_cut(core, object, size).await {
            Ok(last) => last,
            // A block without a readable copy stays in its segment.
            Err(Error::Damaged | Error::Backing(_)) => return Ok(0),
            Err(error) => return Err(error),
        };
        {
            let mut state = object.lock();
            if !is_there(&state) {
                return Ok(0);
            }
            // Another task may have moved the block.
            let same = state.entry(size / BLOCK as u64) == copy.as_ref();
            let facts = facts_of(object, &state);
            let appended = match same {
                true => {
                    let segments = &core.segments;
                    core.log.append_cut(AppendKind::Moved, object, &facts, size, last.as_ref(), segments)?
                }
                false => continue,
            };
            if let Some((appended, placed)) = appended {
                state.truncating = Some(appended.segment);
                state.last_frame = appended.seq;
                core.segments.release(id);
                if let Some((placed, page)) = placed.zip(last) {
                    let pages = SmallVec::from_iter([page]);
                    install(core, &mut state, object, size / BLOCK as u64, pages, &placed);
                    core.destager.volumes.moved(&object.volume);
                }
                return Ok(appended.seq);
            }
        }
        if !room_to_move(core, 1).await {
            return Ok(0);
        }
    }
}

/// Carries out in the backing store a truncation that was logged or recorded, and tries until it succeeds. `last`
/// is the block at the new end, if the log was to have it and does not.
async fn carry_out(
    core: &Core,
    object: &Arc<CachedObject>,
    size: u64,
    mtime: Option<Time>,
    last: Option<Page>,
) -> Result<()> {
    let last = last.map(|page| Arc::new(Buffer::from_bytes(&page)));
    let mut failed = false;
    loop {
        let asked = ask(core, &object.volume);
        let result = cut_backing(core, object, size, mtime, last.as_ref()).await;
        drop(asked);
        if result.is_ok() && (failed || object.volume.is_late()) {
            backing_worked(core, &object.volume);
        }
        let begun = object.lock().truncating.is_some();
        let error = match (result, begun) {
            (Ok(()) | Err(BackingError::Gone), true) => {
                match log_carried_out(core, object, last.is_some()).await {
                    Err(Error::Backing(error)) => error,
                    logged => return logged.and(result.map_err(Error::from)),
                }
            }
            (result, false) => return Ok(result?),
            (Err(error), true) => error,
        };
        backing_failed(core, &object.volume, error);
        failed = true;
        if core.closing() {
            return Err(Error::Closing);
        }
        core.env.clock.sleep(Duration::from_secs(1)).await;
    }
}

/// Truncates the backing file. `last` holds the contents of the block that the new end is in.
async fn cut_backing(
    core: &Core,
    object: &CachedObject,
    size: u64,
    mtime: Option<Time>,
    last: Option<&Arc<Buffer>>,
) -> BackingResult<()> {
    let backing = &core.env.backing;
    if let Some(last) = last {
        let keep = (size % BLOCK as u64) as usize;
        backing.write(&object.key, size - keep as u64, Slice::new(last.clone(), 0..keep)).await?;
    }
    backing.truncate(&object.key, size).await?;
    if let Some(mtime) = mtime {
        backing.set_mtime(&object.key, mtime).await?;
    }
    backing.sync(vec![object.key.clone()]).await.pop().unwrap_or(Ok(()))
}

/// Logs that a truncation is carried out. Recovery must not repeat it over later bypass writes. `saved` says that
/// the backing store has the block at the new end.
pub(crate) async fn log_carried_out(core: &Core, object: &Arc<CachedObject>, saved: bool) -> Result<()> {
    // From here on no task reappends the truncation. Behind the record of its end it would be carried out once
    // more.
    object.lock().carried_out = true;
    let record = Some::<fn(u16, u64, u64) -> Record>(|object, _, _| Record::Truncated { object });
    let moving = moving(core);
    let logged = match append(core, AppendKind::Moved, object, record).await {
        Ok(frame) => core.commit(frame).await,
        Err(error) => Err(error),
    };
    drop(moving);
    match logged {
        Err(Error::NoDevice) => note_carried_out(core, object, saved).await?,
        logged => logged?,
    }
    // The object may have been dropped meanwhile.
    let mut state = object.lock();
    state.carried_out = false;
    if let Some(segment) = state.truncating.take() {
        core.segments.release(segment);
    }
    drop(state);
    give_up_undurable(core, object);
    Ok(())
}

/// Returns the first `keep` bytes of a page, filled up with zeros, and the content hash.
fn cut_page(page: &[u8], keep: usize) -> (Page, u64) {
    let mut contents = page.to_vec();
    if !crate::planted_bugs::active("cuts leave the last block as it was") {
        contents[keep..].fill(0);
    }
    let hash = content_hash(&contents);
    (Page::from(contents), hash)
}
