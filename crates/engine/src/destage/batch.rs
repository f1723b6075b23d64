//! One batch of destaging: gathered, written, synced, and only then clean.

use forebay_common::lock::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::time::Duration;

use crate::Error;
use crate::buffer::{BLOCK, Buffer, Slice};
use crate::engine::Engine;
use crate::index::leaf::Entry;
use crate::index::object::{Busy, Object};
use crate::io::{BackingError, BackingResult, Time};
use crate::plant;
use crate::request::sync::Unsynced;
use crate::volume::{Asked, Volume};
use crate::wait::all;
use forebay_common::lock::Mutex;

/// Objects destaged together at most.
const OBJECTS: usize = 256;
/// Blocks of one write to the backing store at most.
const RUN: usize = 256;
/// Pause while others have all that could be destaged.
const BUSY_PAUSE: Duration = Duration::from_millis(2);

/// One object's part of a batch.
struct Part {
    object: Arc<Object>,
    since: Duration,
    blocks: Vec<(u64, Entry)>,
    /// All that is dirty is in this part; then the modification time is set as well.
    mtime: Option<Time>,
    /// Syncs of its file that had failed before.
    failed: u64,
    /// Blocks that could not be read.
    damaged: Mutex<Vec<u64>>,
}

impl Part {
    fn unsynced(&self) -> Unsynced<'_> {
        Unsynced { object: &self.object, failed: self.failed }
    }
}

impl Engine {
    /// Destages up to `most` blocks of a volume; returns how many, or `None` if it failed.
    pub(crate) async fn destage(&self, volume: &Arc<Volume>, most: usize) -> Option<usize> {
        // Whatever is taken from the queue, it is in a batch.
        volume.set_batch(Some(Duration::ZERO));
        let haste = volume.take_haste();
        let parts = self.gather(volume, most);
        volume.set_batch(parts.iter().map(|part| part.since).min());
        if parts.is_empty() {
            volume.give_back(haste);
            // What was queued needs nothing any more; or it is being written directly or cut, which does not take long.
            if volume.waiting() == 0 {
                self.backing_worked(volume);
            }
            self.destager.throttle.changed.wake();
            self.space.wake();
            self.rest(BUSY_PAUSE).await;
            return Some(0);
        }
        // What was accepted but not made durable must not reach the backing store: after a crash it never was.
        let last = parts.iter().map(|part| part.object.lock().last_frame).max().unwrap_or(0);
        let logged = self.commit(last).await.is_ok();
        let (begun, writes) = (self.env.clock.now(), AtomicU64::new(0));
        let asked = self.ask(volume);
        let written = if logged {
            let parts = parts.iter().map(|part| Box::pin(self.write_part(part, &asked, &writes)));
            all(parts.collect()).await
        } else {
            parts.iter().map(|_| Err(BackingError::Io(5))).collect()
        };
        let synced = if plant::active("destage does not sync") {
            parts.iter().map(|_| Ok(())).collect()
        } else {
            self.sync_files(&parts.iter().map(Part::unsynced).collect::<Vec<_>>()).await
        };
        drop(asked);
        let blocks = parts.iter().map(|part| part.blocks.len()).sum::<usize>();
        volume.service.measured(blocks as u64, writes.into_inner(), self.env.clock.now() - begun);
        let results = written.into_iter().zip(synced).map(|(written, synced)| written.and(synced));
        let mut healthy = true;
        for (part, result) in parts.into_iter().zip(results) {
            healthy &= self.finish_part(part, result);
        }
        volume.set_batch(None);
        if healthy {
            self.backing_worked(volume);
        }
        self.destager.throttle.changed.wake();
        // Space becomes free only once a frame says so; who waits for space sees to it.
        self.segments.advance();
        self.space.wake();
        healthy.then_some(blocks)
    }

    /// Takes objects from the queue and what is dirty of them.
    fn gather(&self, volume: &Volume, most: usize) -> Vec<Part> {
        let mut parts = Vec::<Part>::new();
        let mut left = most;
        let mut looked = 0;
        let waiting = volume.waiting();
        while left > 0 && parts.len() < OBJECTS && looked < waiting {
            looked += 1;
            let Some((object, since)) = volume.next() else { break };
            let mut state = object.lock();
            if state.busy != Busy::No {
                drop(state);
                volume.again(object, since, false);
                continue;
            }
            let from = state.cursor;
            let mut blocks = state.to_destage(from..u64::MAX, left);
            if blocks.is_empty() && from > 0 {
                state.cursor = 0;
                blocks = state.to_destage(0..u64::MAX, left);
            }
            if blocks.is_empty() && state.mtime.is_none() {
                state.queued = false;
                continue;
            }
            if blocks.is_empty() && state.directs > 0 {
                // Its time is about to change.
                drop(state);
                volume.again(object, since, false);
                continue;
            }
            left -= blocks.len().min(left);
            state.busy = Busy::Destage;
            let complete = blocks.len() as u64 + state.damaged.len() as u64 == state.dirty;
            let mtime = state.mtime.filter(|_| complete && state.directs == 0);
            let failed = state.syncs.failed();
            drop(state);
            parts.push(Part { object, since, blocks, mtime, failed, damaged: Mutex::default() });
        }
        parts
    }

    async fn write_part(&self, part: &Part, asked: &Asked, writes: &AtomicU64) -> BackingResult<()> {
        let mut at = 0;
        while at < part.blocks.len() {
            let first = part.blocks[at].0;
            let run = part.blocks[at..]
                .iter()
                .take(RUN)
                .zip(first..)
                .take_while(|((block, _), n)| block == n)
                .count();
            let written = self.write_run(part, &part.blocks[at..at + run]).await?;
            writes.fetch_add(written, Ordering::Relaxed);
            asked.goes_on(self.env.clock.now());
            at += run;
        }
        match part.mtime {
            Some(_) if plant::active("modification times are not destaged") => Ok(()),
            Some(mtime) => self.env.backing.set_mtime(&part.object.key, mtime).await,
            None => Ok(()),
        }
    }

    /// Returns how many writes it took.
    async fn write_run(&self, part: &Part, blocks: &[(u64, Entry)]) -> BackingResult<u64> {
        let offset = blocks[0].0 * BLOCK as u64;
        let mut buffer = Buffer::zeroed(blocks.len());
        // Newer contents than were dirty when the batch was gathered are as good: they are durable in the log as well.
        let len = match self.read(&part.object, offset, &mut buffer).await {
            Ok(len) => len,
            Err(Error::Backing(error)) => return Err(error),
            Err(Error::Damaged) if blocks.len() > 1 => {
                // The others must not stay behind for it.
                let mut writes = 0;
                for block in blocks.chunks(1) {
                    writes += Box::pin(self.write_run(part, block)).await?;
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
        self.totals.destage_writes.add(1);
        let data = Slice::new(Arc::new(buffer), 0..len);
        self.env.backing.write(&part.object.key, offset, data).await.map(|()| 1)
    }

    /// What the backing store has durably is clean. False if it failed.
    fn finish_part(&self, part: Part, result: BackingResult<()>) -> bool {
        let Part { object, since, blocks, mtime, damaged, .. } = part;
        if result == Err(BackingError::Gone) {
            // Removed: nobody will ever ask for it.
            object.lock().busy = Busy::No;
            self.drop_object(&object);
            return true;
        }
        let damaged = damaged.into_inner();
        let mut state = object.lock();
        state.busy = Busy::No;
        if result.is_ok() {
            for (block, copy) in blocks.iter().filter(|(block, _)| !damaged.contains(block)) {
                state.cleaned(*block, copy, &self.segments);
            }
            // A direct write that is under way sets a later time when it ends, if it finds one.
            if mtime.is_some() && state.mtime == mtime && !state.needs_destage() && state.directs == 0 {
                state.mtime = None;
            }
            state.cursor = blocks.last().map_or(0, |(block, _)| block + 1);
            let done = (blocks.len() - damaged.len()) as u64;
            self.totals.destaged.add(done);
            object.volume.room.destaged(done);
        }
        // The pass over this object goes on before the next object's begins.
        let goes_on = result.is_ok() && !state.to_destage(state.cursor..u64::MAX, 1).is_empty();
        state.queued = state.needs_destage() || state.mtime.is_some();
        if state.queued {
            let since = if goes_on { since } else { self.env.clock.now() };
            object.volume.again(object.clone(), since, goes_on);
        }
        drop(state);
        object.changed.wake();
        if let Err(error) = result {
            self.backing_failed(&object.volume, error);
        }
        result.is_ok()
    }
}
