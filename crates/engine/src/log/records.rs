//! Records about one object: its facts, and invalidations of its older copies.

use std::ops::Range;

use crate::core::Core;
use crate::format::{Facts, Record};
use crate::index::object::{CachedObject, State};
use crate::log::AppendKind;
use crate::planted_bugs::threads;
use crate::{Result, Seq};

/// Logs that no older copy of `range` counts. Skips dirty blocks: a write may arrive during the wait for room,
/// and is newer than the copies to be invalidated. Returns the last frame with such a record.
pub(crate) async fn invalidate(core: &Core, object: &CachedObject, range: Range<u64>) -> Result<Seq> {
    let (mut from, mut last) = (range.start, object.lock().last_frame);
    while from < range.end {
        let (done, frame) = try_invalidate(core, object, from..range.end)?;
        (from, last) = (done, last.max(frame));
        if from < range.end {
            core.log.until(|| core.log.has_room(0).then_some(())).await;
        }
    }
    Ok(last)
}

/// Logs as many invalidations of `range` as there is room for now. Returns the block up to which that is done,
/// and the last frame.
fn try_invalidate(core: &Core, object: &CachedObject, range: Range<u64>) -> Result<(u64, Seq)> {
    let record = |object, block, count| Record::Invalidate { object, block, count };
    let mut state = object.lock();
    let dirty: Vec<_> = state.dirty_in(range.clone(), usize::MAX).iter().map(|(block, _)| *block).collect();
    let mut last = 0;
    for part in around(&range, &dirty) {
        let count = if part.end == u64::MAX { u64::MAX } else { part.end - part.start };
        match try_append(core, AppendKind::New, object, &mut state, Some(record), part.start, count)? {
            Some(seq) => last = seq,
            None => return Ok((part.start, last)),
        }
    }
    Ok((range.end, last))
}

/// Returns the object's facts for a record. The record must be logged before `state` is unlocked.
pub(crate) fn facts_of(object: &CachedObject, state: &State) -> Facts {
    let size = if state.gone { 0 } else { state.size };
    Facts { key: object.key.clone(), size, mtime: state.mtime }
}

/// Appends one record about the object, or only its facts, and waits for room. Returns the frame.
///
/// The facts are taken when the record is appended. A write may make the object longer during the wait, and the
/// newest facts in the log win at recovery. So no caller passes facts in.
pub(crate) async fn append(
    core: &Core,
    append_kind: AppendKind,
    object: &CachedObject,
    record: Option<fn(u16, u64, u64) -> Record>,
) -> Result<Seq> {
    let early = threads::active("facts are taken before the wait for room");
    let early = early.then(|| facts_of(object, &object.lock()));
    loop {
        let appended = match &early {
            Some(facts) => core.log.append(append_kind, object, facts, record, 0, 0)?,
            None => try_append(core, append_kind, object, &mut object.lock(), record, 0, 0)?,
        };
        if let Some(seq) = appended {
            return Ok(seq);
        }
        core.log.until(|| core.log.has_room_for(append_kind, 0).then_some(())).await;
    }
}

/// Appends one record about the object with its current facts, if there is room now.
pub(crate) fn try_append(
    core: &Core,
    append_kind: AppendKind,
    object: &CachedObject,
    state: &mut State,
    record: Option<fn(u16, u64, u64) -> Record>,
    first: u64,
    second: u64,
) -> Result<Option<Seq>> {
    let facts = facts_of(object, state);
    let appended = core.log.append(append_kind, object, &facts, record, first, second)?;
    if let Some(seq) = appended {
        state.last_frame = state.last_frame.max(seq);
    }
    Ok(appended)
}

/// Returns the parts of `range` without the blocks `kept`, which are in it and in order.
pub(crate) fn around<'a>(range: &Range<u64>, kept: &'a [u64]) -> impl Iterator<Item = Range<u64>> + use<'a> {
    let starts = [range.start].into_iter().chain(kept.iter().map(|block| block + 1));
    let ends = kept.iter().copied().chain([range.end]);
    starts.zip(ends).map(|(start, end)| start..end).filter(|part| !part.is_empty())
}
