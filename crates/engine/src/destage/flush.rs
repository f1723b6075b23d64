//! Flushes: the caller waits until dirty blocks are destaged.

use std::sync::Arc;
use std::time::Duration;

use crate::core::Core;
use crate::index::object::CachedObject;
use crate::log::notes::notes_let_go;
use crate::volume::Volume;
use crate::volume::queue::{flushing, move_to_front, queue_if_dirty};
use crate::volume::throttle::LEVEL;
use crate::{Error, Result};

/// The point that a flush waits for.
struct Mark {
    begun: Duration,
    /// All blocks that were dirty at the mark are in segments before this one.
    head: u64,
    moved: u64,
    /// The number of failures of each volume before the flush.
    errors: Vec<(Arc<Volume>, u64)>,
}

/// Returns how close the dirtiest volume is to the level at which the throttle slows writers to the rate of
/// destaging. 1 is that level.
pub(crate) fn dirty_part(core: &Core) -> f64 {
    let loads = core.destager.volumes.all().into_iter().map(|volume| core.log_load(&volume).dirty);
    loads.fold(0.0, f64::max) / LEVEL
}

/// Returns the time since the oldest dirty data was written.
pub(crate) fn dirty_age(core: &Core) -> Duration {
    let now = core.env.clock.now();
    core.destager.volumes.oldest().map_or(Duration::ZERO, |since| now.saturating_sub(since))
}

/// Destages everything that is dirty now. Returns once the backing store has it durably. Data that clients write
/// meanwhile may be destaged too. May be given up at any time.
pub(crate) async fn flush(core: &Core) -> Result<()> {
    try_damaged_again(core);
    let volumes = core.destager.volumes.all();
    let errors: Vec<_> = volumes.iter().map(|volume| (volume.clone(), volume.errors())).collect();
    let flushing = flushing(core, volumes);
    let wanting = core.notes.want();
    let result = loop {
        let mark = mark(core, errors.clone());
        // Moved blocks are not in the segments before the head any more.
        let moved = || core.destager.volumes.moved_under_flush() != mark.moved;
        let ready = || if moved() { Some(None) } else { flushed(core, &mark).map(Some) };
        if let Some(result) = core.space.until(ready).await {
            break result;
        }
    };
    drop((flushing, wanting));
    result?;
    if core.segments.blocks().1 == 0 {
        return empty_log(core).await;
    }
    core.commit(core.log.request_frame()).await
}

/// Returns a mark for everything that is dirty now.
fn mark(core: &Core, errors: Vec<(Arc<Volume>, u64)>) -> Mark {
    let moved = core.destager.volumes.moved_under_flush();
    let begun = core.env.clock.now();
    let used = core.log.used_segment();
    if used.is_some() {
        core.log.want_roll();
    }
    let head = used.or_else(|| core.log.segment()).and_then(|head| core.segments.get(head));
    let head = head.map_or(u64::MAX, |head| head.seq + u64::from(used.is_some()));
    Mark { begun, head, moved, errors }
}

/// Returns the result of a flush; `None` as long as data from before its mark is dirty.
fn flushed(core: &Core, mark: &Mark) -> Option<Result<()>> {
    if core.closing() {
        return Some(Err(Error::Closing));
    }
    let is_past = |volume: &Volume| volume.is_past(mark.begun);
    let (dirty, damaged) = (core.segments.blocks().1, core.segments.damaged());
    let past = dirty == 0 || core.segments.advance().tail >= mark.head;
    if past && damaged == 0 && mark.errors.iter().all(|(volume, _)| is_past(volume)) {
        return Some(Ok(()));
    }
    if dirty > 0 && (dirty == damaged || (past && damaged > 0)) {
        return Some(Err(Error::Damaged));
    }
    let troubles = mark.errors.iter().map(|(volume, errors)| (volume, volume.trouble_since(*errors)));
    let (mut first, mut others) = (None, true);
    for (volume, trouble) in troubles {
        others &= trouble.is_some() || is_past(volume);
        first = first.or(trouble);
    }
    first.filter(|_| others).map(Err)
}

/// Empties the log durably, when no block is dirty: recovery then finds nothing to replay. Otherwise recovery
/// would write destaged blocks again, over changes that an administrator made to the directory meanwhile.
pub(crate) async fn empty_log(core: &Core) -> Result<()> {
    if let Some(segment) = core.log.used_segment() {
        core.log.want_roll();
        core.log.until(|| core.log.has_left(segment).then_some(())).await;
    }
    notes_let_go(core).await?;
    core.segments.advance();
    core.commit(core.log.request_frame()).await
}

/// Clears the damaged marks, since the blocks may be readable by now.
fn try_damaged_again(core: &Core) {
    for object in std::mem::take(&mut *core.destager.damaged.lock()) {
        let Some(object) = object.upgrade() else { continue };
        let mut state = object.lock();
        while let Some(block) = state.damaged.first().copied() {
            state.set_damaged(block, false, &core.segments);
        }
        queue_if_dirty(core, &object, state);
    }
}

/// Destages the dirty blocks of one object, now.
pub(crate) async fn destage_object(core: &Core, object: &Arc<CachedObject>) -> Result<()> {
    let errors = object.volume.errors();
    let ready = || {
        let state = object.lock();
        let settled = state.gone || state.dirty == 0 && state.mtime.is_none();
        let (dirty, damaged) = (state.dirty, state.damaged.len() as u64);
        drop(state);
        match settled {
            true => Some(Ok(())),
            false if core.closing() => Some(Err(Error::Closing)),
            false if dirty > 0 && dirty == damaged => Some(Err(Error::Damaged)),
            false => object.volume.trouble_since(errors).map(Err),
        }
    };
    let _flushing = flushing(core, vec![object.volume.clone()]);
    move_to_front(core, object);
    core.space.until(ready).await
}

/// Waits until the object's volume is late.
pub(crate) async fn until_late(core: &Core, object: &CachedObject) {
    core.space.until(|| object.volume.is_late().then_some(())).await
}

/// Destages the blocks of this object's volume that are dirty now, until all are clean or `enough` returns true.
pub(crate) async fn destage_beside(
    core: &Core,
    object: &CachedObject,
    enough: impl Fn() -> bool,
) -> Result<()> {
    let volume = &object.volume;
    let (begun, errors) = (core.env.clock.now(), volume.errors());
    let ready = || match enough() || volume.is_past(begun) {
        true => Some(Ok(())),
        false if core.closing() => Some(Err(Error::Closing)),
        false => volume.trouble_since(errors).map(Err),
    };
    let _flushing = flushing(core, vec![volume.clone()]);
    core.space.until(ready).await
}

/// Returns the bytes of the object's volume that only the cache has.
pub(crate) fn dirty_bytes_beside(object: &CachedObject) -> u64 {
    object.volume.dirty() * crate::buffer::BLOCK as u64
}

/// Returns the bytes that only the cache has.
pub(crate) fn dirty_bytes(core: &Core) -> u64 {
    core.segments.blocks().1 * crate::buffer::BLOCK as u64
}
