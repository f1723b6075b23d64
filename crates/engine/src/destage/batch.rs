//! One batch of destaging. Its blocks are gathered, written and synced before they are clean.

use forebay_common::lock::Mutex;
use forebay_common::lock::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::time::Duration;

use crate::buffer::{BLOCK, Buffer, Slice};
use crate::core::Core;
use crate::index::leaf::Entry;
use crate::index::moves::Moves;
use crate::index::object::{Busy, CachedObject};
use crate::index::policy::Keep;
use crate::index::refused::Refused;
use crate::io::{BackingError, BackingResult, Time};
use crate::request::read::read;
use crate::request::sync::{Unsynced, sync_files};
use crate::tiers::blocks::drop_object;
use crate::tiers::policy::drop_clean;
use crate::volume::Volume;
use crate::volume::trouble::{ask, backing_failed, backing_worked};
use crate::volume::waiting::Turn;
use crate::wait::all;
use crate::{Error, planted_bugs};

/// The highest number of objects destaged together.
const OBJECTS: usize = 256;
/// The highest number of blocks of one write to the backing store.
const RUN: usize = 256;
/// The pause while other operations have all objects that could be destaged.
const BUSY_PAUSE: Duration = Duration::from_millis(2);

/// One object's part of a batch.
struct Part {
    object: Arc<CachedObject>,
    /// The time at which the object was queued, by the engine's clock.
    since: Duration,
    /// The dirty blocks, in order, each with the copy that the batch destages.
    blocks: Vec<(u64, Entry)>,
    /// The modification time to set, if this part has all dirty blocks of the object.
    mtime: Option<Time>,
    /// The number of failed syncs of the file before this batch wrote it.
    failed: u64,
    /// Blocks that could not be read.
    damaged: Mutex<Vec<u64>>,
}

impl Part {
    fn unsynced(&self) -> Unsynced<'_> {
        Unsynced { object: &self.object, failed: self.failed }
    }
}

/// Destages up to `most` blocks of a volume; only queues with due data, unless `urgent`. Returns the number of blocks
/// destaged, or `None` if the backing store accepted nothing.
pub(crate) async fn destage(core: &Core, volume: &Arc<Volume>, most: usize, urgent: bool) -> Option<usize> {
    // Every object taken from the queue is in a batch.
    volume.set_batch(Some(Duration::ZERO));
    let urgency = volume.take_urgency();
    let turn = Turn { now: core.env.clock.now(), usual: core.settings.destage_after, urgent };
    let parts = gather(volume, most, turn);
    volume.set_batch(parts.iter().map(|part| part.since).min());
    if parts.is_empty() {
        volume.give_back(urgency);
        // The queued objects need no destaging any more. Or they are being written past the log or truncated,
        // which does not take long.
        if volume.waiting() == 0 {
            backing_worked(core, volume);
        }
        core.destager.throttle.changed.wake();
        core.space.wake();
        core.rest(BUSY_PAUSE).await;
        return Some(0);
    }
    // Data that was accepted but is not durable must not reach the backing store: after a crash it never existed.
    let last = parts.iter().map(|part| part.object.lock().last_frame).max().unwrap_or(0);
    let logged = core.commit(last).await.is_ok();
    let (begun, writes) = (core.env.clock.now(), AtomicU64::new(0));
    let written = if logged {
        let parts = parts.iter().map(|part| Box::pin(write_part(core, part, &writes)));
        all(parts.collect()).await
    } else {
        parts.iter().map(|_| Err(BackingError::Io(5))).collect()
    };
    let asked = ask(core, volume);
    let synced = if planted_bugs::active("destage does not sync") {
        parts.iter().map(|_| Ok(())).collect()
    } else {
        sync_files(core, &parts.iter().map(Part::unsynced).collect::<Vec<_>>()).await
    };
    drop(asked);
    let blocks = parts.iter().map(|part| part.blocks.len()).sum::<usize>();
    let mut done = 0;
    volume.service.measured(blocks as u64, writes.into_inner(), core.env.clock.now() - begun);
    let results = written.into_iter().zip(synced).map(|(written, synced)| written.and(synced));
    let mut healthy = true;
    for (part, result) in parts.into_iter().zip(results) {
        let blocks = part.blocks.len();
        match finish_part(core, part, result, logged) {
            true => done += blocks,
            false => healthy = false,
        }
    }
    volume.set_batch(None);
    if healthy {
        backing_worked(core, volume);
    }
    core.destager.throttle.changed.wake();
    // Space becomes free only once a frame says so. The task that waits for space requests that frame.
    core.segments.advance();
    core.space.wake();
    // Parts that were refused do not delay the others.
    (healthy || done > 0).then_some(done)
}

/// Takes objects and their dirty blocks from the queue. Up to half of the batch is for due data with a short dirty
/// time, so that neither that data nor the log's tail waits for a long queue.
fn gather(volume: &Volume, most: usize, turn: Turn) -> Vec<Part> {
    let (mut parts, mut busy) = (Vec::<Part>::new(), Vec::new());
    let mut left = most;
    volume.begin(turn);
    while left > 0 && parts.len() < OBJECTS {
        let short_first = left > most / 2 && parts.len() < OBJECTS / 2;
        let Some((object, since)) = volume.next(turn, short_first) else { break };
        let mut state = object.lock();
        if state.busy != Busy::No || state.owes_cut() {
            drop(state);
            busy.push((object, since));
            continue;
        }
        let blocks = state.next_part(left);
        if blocks.is_empty() && state.mtime.is_none() {
            state.queued = false;
            continue;
        }
        if blocks.is_empty() && state.bypass_writes > 0 {
            // A bypass write is about to change the object's modification time.
            drop(state);
            busy.push((object, since));
            continue;
        }
        left -= blocks.len().min(left);
        state.busy = Busy::Destage;
        let complete = blocks.len() as u64 + state.damaged.len() as u64 == state.dirty;
        let mtime = state.mtime.filter(|_| complete && state.bypass_writes == 0);
        let failed = state.syncs.failed();
        drop(state);
        parts.push(Part { object, since, blocks, mtime, failed, damaged: Mutex::default() });
    }
    volume.put_back(busy);
    parts
}

/// Writes the blocks of a part to the backing store, consecutive blocks together. Counts the writes.
async fn write_part(core: &Core, part: &Part, writes: &AtomicU64) -> BackingResult<()> {
    let mut at = 0;
    while at < part.blocks.len() {
        let first = part.blocks[at].0;
        let run =
            part.blocks[at..].iter().take(RUN).zip(first..).take_while(|((block, _), n)| block == n).count();
        let written = write_run(core, part, &part.blocks[at..at + run]).await?;
        writes.fetch_add(written, Ordering::Relaxed);
        at += run;
    }
    match part.mtime {
        Some(_) if planted_bugs::active("modification times are not destaged") => Ok(()),
        Some(mtime) => {
            let _asked = ask(core, &part.object.volume);
            core.env.backing.set_mtime(&part.object.key, mtime).await
        }
        None => Ok(()),
    }
}

/// Writes a run of blocks. Returns the number of writes that it took.
async fn write_run(core: &Core, part: &Part, blocks: &[(u64, Entry)]) -> BackingResult<u64> {
    let offset = blocks[0].0 * BLOCK as u64;
    let mut buffer = Buffer::zeroed(blocks.len());
    // Contents that are newer than the gathered ones are as good: they are durable in the log as well.
    let len = match read(core, &part.object, offset, &mut buffer).await {
        Ok(len) => len,
        Err(Error::Backing(error)) => return Err(error),
        Err(Error::Damaged) if blocks.len() > 1 => {
            // The readable blocks must not stay behind for a damaged one.
            let mut writes = 0;
            for block in blocks.chunks(1) {
                writes += Box::pin(write_run(core, part, block)).await?;
            }
            return Ok(writes);
        }
        Err(Error::Damaged) => {
            part.damaged.lock().push(blocks[0].0);
            return Ok(0);
        }
        Err(Error::NoDevice | Error::Closing | Error::Late) => return Err(BackingError::Io(5)),
    };
    if len == 0 {
        return Ok(0);
    }
    core.totals.destage_writes.add(1);
    let data = Slice::new(Arc::new(buffer), 0..len);
    // A cache device that was slow to give the blocks is not the volume's fault.
    let _asked = ask(core, &part.object.volume);
    core.env.backing.write(&part.object.key, offset, data).await.map(|()| 1)
}

/// Ends one object's part of a batch. Returns false if the part failed.
///
/// - After a success, marks the blocks as clean that the backing store now has durably, except damaged ones.
/// - After a failure, notes the blocks as refused and reports the failure of the volume. `asked` is true if the backing
///   store was asked for anything; otherwise it has refused nothing.
/// - Drops the object if it was removed from the backing store.
/// - Queues the object again if any block, or its modification time, is still to be destaged.
fn finish_part(core: &Core, part: Part, result: BackingResult<()>, asked: bool) -> bool {
    let Part { object, since, blocks, mtime, damaged, .. } = part;
    if result == Err(BackingError::Gone) {
        // The object was removed, so no client will ask for it.
        let mut state = object.lock();
        state.busy = Busy::No;
        state.moves = Moves::default();
        drop(state);
        drop_object(core, &object);
        return true;
    }
    let damaged = damaged.into_inner();
    let mut state = object.lock();
    state.busy = Busy::No;
    let moves = std::mem::take(&mut state.moves);
    let numbers = || blocks.iter().map(|(block, _)| *block).collect::<Vec<_>>();
    let goes_round = asked && !planted_bugs::active("a refused part is tried again as it was");
    let new = if result.is_err() && goes_round {
        let was = state.refused.any();
        state.cursor = state.refused.refused(&numbers());
        !was
    } else {
        if state.refused.any() && result.is_ok() {
            state.refused.accepted(&numbers());
        }
        false
    };
    if result.is_ok() {
        for (block, copy) in blocks.iter().filter(|(block, _)| !damaged.contains(block)) {
            let now = moves.of(*block, copy);
            // Reads of clean blocks do not wait for frames, so a copy whose frame is not durable is destaged again.
            let segment = core.segments.get(now.segment);
            if segment.is_none_or(|segment| now.slot < segment.durable) {
                state.cleaned(*block, &now, &core.segments);
                if object.policy().keep == Keep::Never {
                    drop_clean(core, &mut state, *block..*block + 1);
                }
            }
        }
        // A bypass write in flight sets a later time when it ends, if it finds a time to set.
        if mtime.is_some() && state.mtime == mtime && !state.needs_destage() && state.bypass_writes == 0 {
            state.mtime = None;
        }
        state.cursor = blocks.last().map_or(0, |(block, _)| block + 1);
        let done = (blocks.len() - damaged.len()) as u64;
        core.totals.destaged.add(done);
        object.volume.room.destaged(done);
    }
    // The pass over this object continues before the pass over the next object begins.
    let goes_on = result.is_ok() && !state.to_destage(state.cursor..u64::MAX, 1).is_empty();
    state.queued = state.needs_destage() || state.mtime.is_some();
    if state.queued {
        let since = if goes_on { since } else { core.env.clock.now() };
        object.volume.again(object.clone(), since, goes_on);
    }
    if !state.queued {
        state.refused = Refused::default();
    }
    drop(state);
    object.changed.wake();
    if new {
        object.volume.refuses(&object);
    }
    if let Err(error) = result {
        backing_failed(core, &object.volume, error);
    }
    result.is_ok()
}
