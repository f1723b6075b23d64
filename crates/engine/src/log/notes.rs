//! User records are appended, and released when the log needs their space.

use forebay_common::lock::atomic::Ordering;
use std::time::Duration;

use crate::buffer::BLOCK;
use crate::core::Core;
use crate::io::BackingError;
use crate::log::AppendKind;
use crate::log::spread::SLACK;
use crate::log::user_records::UserRecordId;
use crate::wait::before;
use crate::{Error, Result, Seq};

/// User records may take at most one part in this number of the log's share.
const MOST: u64 = 4;
/// The longest time until a waiter looks again. A sleeping waiter is not woken by a change.
const LOOK: Duration = Duration::from_millis(100);

/// Appends a user record of 1 to [`USER_RECORD_MAX`](crate::USER_RECORD_MAX) bytes, and waits for room. While records
/// must be released, the wait grows as room runs out. The record is durable once
/// [`Engine::commit`](crate::Engine::commit) of the returned frame has succeeded. Then it is on every device in use,
/// together with everything accepted before it. Recovery returns it until
/// [`Engine::release_user_records`](crate::Engine::release_user_records).
pub(crate) async fn note(core: &Core, bytes: &[u8]) -> Result<(Seq, UserRecordId)> {
    pace_user_records(core).await;
    loop {
        if let Some(noted) = try_append_user_record(core, bytes)? {
            return Ok(noted);
        }
        core.log.until(|| (core.closing() || core.log.has_room(0)).then_some(())).await;
        if core.closing() {
            return Err(Error::Closing);
        }
    }
}

/// Waits for the turn of the next user record, while user records hold much of the log.
async fn pace_user_records(core: &Core) {
    let kept = core.notes.oldest_kept();
    // Without devices no record is released, and only an append finds that the log is broken.
    let stopped = || core.log.broken().is_some() || core.closing() || core.active() == 0;
    let over = || core.notes.oldest_kept() != kept || stopped();
    while !over() && core.notes.hold_too_much(&core.segments) {
        let now = core.env.clock.now();
        let turn = admit_note(core, now);
        let mut left = turn.map_or(LOOK, |turn| turn.saturating_sub(now));
        while left > SLACK && !over() {
            let look = core.env.clock.sleep(left.min(LOOK));
            before(look, core.notes.changed.until(|| over().then_some(()))).await;
            left = turn.map_or(Duration::ZERO, |turn| turn.saturating_sub(core.env.clock.now()));
        }
        if turn.is_some() {
            return;
        }
    }
}

/// Returns the turn of the next user record; `None` if user records hold as much as they may.
fn admit_note(core: &Core, now: Duration) -> Option<Duration> {
    let most = core.segments.log_use().share as u64 * core.segment_size / MOST;
    let mut inner = core.notes.inner.lock();
    let (cost, room) = (inner.cost, most.saturating_sub(inner.bytes()));
    inner.spread.admit(now, cost, room)
}

/// Appends a user record without waiting. Returns `None` if there is no room now.
pub(crate) fn try_append_user_record(core: &Core, bytes: &[u8]) -> Result<Option<(Seq, UserRecordId)>> {
    append_note(core, AppendKind::New, bytes)
}

/// Appends a user record. Returns its frame and its id; `None` without room.
pub(crate) fn append_note(
    core: &Core,
    append_kind: AppendKind,
    bytes: &[u8],
) -> Result<Option<(Seq, UserRecordId)>> {
    core.log.append_note(append_kind, bytes, &core.notes, &core.segments)
}

/// Releases the user records up to `upto`: they are not needed any more.
pub(crate) fn release_user_records(core: &Core, upto: UserRecordId) {
    let any = core.notes.release_user_records(upto, &core.segments);
    core.segments.advance();
    if any {
        let now = core.env.clock.now();
        core.notes.inner.lock().spread.released(now);
    }
    core.notes.changed.wake();
    // Possibly no block is left to destage. Then a task that waits for room in the log waits for this release.
    core.destager.throttle.changed.wake();
    core.space.wake();
}

/// Releases the user records up to `upto`, which user records of `bytes` bytes replace. A release is due again when the
/// log has grown beside the new ones: they would only be replaced by as many. Otherwise a state whose description takes
/// more than the share of user records would be described without end, and no writer of user records would get room.
pub(crate) fn let_go_replaced(core: &Core, upto: UserRecordId, bytes: usize) {
    release_user_records(core, upto);
    // A user record is in a frame and in a footer.
    let taken = 2 * bytes;
    core.notes.replaced(taken.div_ceil(core.slots() * BLOCK), taken as u64);
    core.notes.changed.wake();
}

/// Waits until the log needs user records to be released. Returns the number of the last record; `None` once the engine
/// closes. The user that appends records must call this, and answer with
/// [`Engine::release_user_records`](crate::Engine::release_user_records). Flushes and removals of devices wait for
/// that.
pub(crate) async fn user_records_due(core: &Core) -> Option<UserRecordId> {
    let due = || {
        if core.closing() {
            return Some(None);
        }
        let (oldest, _) = core.notes.oldest_kept()?;
        let wanted = core.notes.wanted.load(Ordering::Acquire) > 0;
        // Writes are not cached until all data is on two devices again. User records must not hold that up.
        let lone = core.segments.devices() > 1 && core.segments.keeps_lone(oldest);
        let in_the_way = || core.segments.blocks_eviction(oldest, core.spare_segments());
        let due = wanted || lone || core.notes.hold_too_much(&core.segments) || in_the_way();
        due.then(|| Some(core.notes.last()))
    };
    core.notes.changed.until(due).await
}

/// Records that some user records cannot be released for now, so that waiters get the error `why`; or (`None`)
/// that all can be released again.
pub(crate) fn keep_notes(core: &Core, why: Option<BackingError>) {
    *core.notes.stuck.lock() = why;
    core.notes.changed.wake();
}

/// Waits until all present user records are released, or the engine closes.
///
/// # Errors
/// The records cannot be released, or no cache device is left to record the release.
pub(crate) async fn notes_let_go(core: &Core) -> Result<()> {
    let last = core.notes.last();
    let _wanting = core.notes.want();
    let ready = || {
        // Reappended records that are still needed do not count as released.
        let stuck = core.notes.stuck.lock().filter(|_| !core.notes.none_kept());
        let through = core.notes.are_let_go(last) || core.closing();
        let gone = || core.log.broken().map(Err);
        stuck.map(|why| Err(Error::Backing(why))).or_else(|| through.then_some(Ok(()))).or_else(gone)
    };
    core.notes.changed.until(ready).await
}
