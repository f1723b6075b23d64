//! Destage: dirty blocks go to the backing store, object by object in order of offset, many at once.
//!
//! Objects queue in the order in which their oldest dirty block was written, so that the log's tail follows. A block is
//! clean only once the backing store's sync has succeeded; after a failure it is written again from the log, never
//! only synced again (Rebello et al., ATC'20).

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use crate::buffer::{BLOCK, Buffer, Slice};
use crate::engine::Engine;
use crate::event::Event;
use crate::io::{BackingError, BackingResult, Time};
use crate::leaf::Entry;
use crate::object::{Busy, Object};
use crate::wait::{Gate, all};
use crate::{Error, Result};

/// Blocks destaged between two syncs at most.
const BATCH: usize = 2048;
/// The same while writers wait: they go on sooner.
const HURRIED_BATCH: usize = 256;
/// Objects destaged together at most.
const OBJECTS: usize = 256;
/// Blocks of one write to the backing store at most.
const RUN: usize = 256;
/// Pause after a failure; doubles up to the second.
const PAUSE: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(15));

/// Pause while others have all that could be destaged.
const BUSY_PAUSE: Duration = Duration::from_millis(2);

/// What waits to be destaged.
#[derive(Debug, Default)]
pub(crate) struct Destager {
    queue: Mutex<VecDeque<(Arc<Object>, Duration)>>,
    pub(crate) work: Gate,
    /// Flushes under way.
    flushing: AtomicUsize,
    /// The log is short of segments.
    pressed: AtomicBool,
    /// Somebody waits for an object to become clean.
    hurried: AtomicBool,
    failing: AtomicBool,
    failure: Mutex<Option<BackingError>>,
    /// Blocks destaged so far, and those accepted since the log became half full.
    done: AtomicU64,
    pace: Mutex<Pace>,
    paced: Gate,
}

#[derive(Debug, Default)]
struct Pace {
    /// Blocks destaged when pacing began; `None` while the log has room.
    since: Option<u64>,
    accepted: u64,
}

/// One object's part of a batch.
struct Part {
    object: Arc<Object>,
    blocks: Vec<(u64, Entry)>,
    /// All that is dirty is in this part; then the modification time is set as well.
    mtime: Option<Time>,
    size: u64,
}

impl Destager {
    pub(crate) fn queue(&self, object: Arc<Object>, now: Duration) {
        self.queue.lock().push_back((object, now));
        self.work.wake();
    }

    /// The log needs space.
    pub(crate) fn press(&self) {
        self.pressed.store(true, Ordering::Relaxed);
        self.work.wake();
    }

    /// Somebody waits for this object: it goes first.
    pub(crate) fn hurry(&self, object: &Arc<Object>, now: Duration) {
        self.hurried.store(true, Ordering::Relaxed);
        let mut queue = self.queue.lock();
        if let Some(at) = queue.iter().position(|(queued, _)| Arc::ptr_eq(queued, object)) {
            queue.swap(0, at);
        } else if object.lock().dirty > 0 {
            queue.push_front((object.clone(), now));
        }
        drop(queue);
        self.work.wake();
    }

    /// Whether `blocks` more may be accepted now. From half full on, no more are accepted than a multiple of what is
    /// destaged, and that multiple falls to one: writers slow down little by little.
    pub(crate) fn paced(&self, engine: &Engine, blocks: u64) -> bool {
        let fill = engine.fill();
        let mut pace = self.pace.lock();
        if fill < 0.5 {
            *pace = Pace::default();
            return true;
        }
        let done = self.done.load(Ordering::Relaxed);
        let since = *pace.since.get_or_insert(done);
        let factor = 1.0 + 4.0 * (0.9 - fill).max(0.0);
        let allowed = (HURRIED_BATCH as f64 + (done - since) as f64 * factor) as u64;
        if pace.accepted + blocks > allowed.max(blocks) {
            drop(pace);
            self.press();
            return false;
        }
        pace.accepted += blocks;
        true
    }

    pub(crate) async fn wait_for_pace(&self, engine: &Engine) {
        let seen = self.done.load(Ordering::Relaxed);
        let ready = || (self.done.load(Ordering::Relaxed) != seen || engine.fill() < 0.5).then_some(());
        self.paced.until(ready).await;
    }

    /// Whether anything waits, and since when.
    fn oldest(&self) -> Option<Duration> {
        self.queue.lock().front().map(|(_, since)| *since)
    }
}

impl Engine {
    /// How much of the space for dirty data the log takes: 0 to 1, or a little more.
    pub(crate) fn fill(&self) -> f64 {
        let (used, most) = self.segments.log_use();
        used as f64 / most.max(1) as f64
    }

    /// Seconds since the oldest dirty data was written.
    pub fn dirty_age(&self) -> Duration {
        let now = self.env.clock.now();
        self.destager.oldest().map_or(Duration::ZERO, |since| now.saturating_sub(since))
    }

    /// Destages everything that is dirty now. Returns once the backing store has it durably; what clients write
    /// meanwhile may be destaged too. May be given up at any time.
    ///
    /// # Errors
    /// The backing store's, if a whole pass over what is dirty failed; it is tried again in the background.
    pub async fn flush(&self) -> Result<()> {
        self.destager.flushing.fetch_add(1, Ordering::Relaxed);
        self.destager.work.wake();
        let errors = self.totals.backing_errors.get();
        let ready = || {
            if self.closing() {
                return Some(Err(Error::Closing));
            }
            if self.segments.blocks().1 == 0 && self.destager.oldest().is_none() {
                return Some(Ok(()));
            }
            let failed = self.totals.backing_errors.get() > errors;
            (failed && self.destager.failing.load(Ordering::Relaxed))
                .then_some(Err(Error::Backing(self.last_failure())))
        };
        let result = self.space.until(ready).await;
        self.destager.flushing.fetch_sub(1, Ordering::Relaxed);
        result?;
        self.empty_log().await
    }

    /// Nothing is dirty: makes it so durably that recovery finds nothing to replay. Otherwise what was destaged would be
    /// written again over whatever an administrator did to the directory meanwhile.
    pub(crate) async fn empty_log(&self) -> Result<()> {
        if let Some(segment) = self.log.used_segment() {
            self.log.want_roll();
            self.log.changed.until(|| self.log.has_left(segment).then_some(())).await;
        }
        self.segments.advance();
        self.commit(self.log.kick()).await
    }

    pub(crate) fn backing_failed(&self, error: BackingError) {
        self.totals.backing_errors.add(1);
        *self.destager.failure.lock() = Some(error);
        if !self.destager.failing.swap(true, Ordering::Relaxed) {
            self.event(Event::BackingFailed { error });
        }
        self.space.wake();
    }

    fn last_failure(&self) -> BackingError {
        self.destager.failure.lock().unwrap_or(BackingError::Io(5))
    }

    /// Destages until the engine closes.
    pub(crate) async fn run_destage(self: Arc<Self>) {
        let mut pause = PAUSE.0;
        loop {
            if self.closing() {
                return;
            }
            match self.reason() {
                Some(most) => {
                    if self.destage(most).await {
                        pause = PAUSE.0;
                        if self.destager.failing.swap(false, Ordering::Relaxed) {
                            self.event(Event::BackingHealed);
                        }
                    } else {
                        self.rest(pause).await;
                        pause = (pause * 2).min(PAUSE.1);
                    }
                }
                None => self.rest_until_reason().await,
            }
        }
    }

    /// Waits a while, or until the engine closes.
    async fn rest(&self, time: Duration) {
        let mut sleep = self.env.clock.sleep(time);
        let mut closed = Box::pin(self.destager.work.until(|| self.closing().then_some(())));
        std::future::poll_fn(|context| {
            let closed = closed.as_mut().poll(context).is_ready();
            if closed || sleep.as_mut().poll(context).is_ready() {
                return std::task::Poll::Ready(());
            }
            std::task::Poll::Pending
        })
        .await;
    }

    async fn rest_until_reason(&self) {
        let until = self.destager.oldest().map(|since| since + self.settings.destage_after);
        let wait = until.map(|until| until.saturating_sub(self.env.clock.now()));
        let mut sleep = wait.map(|wait| self.env.clock.sleep(wait.max(Duration::from_millis(1))));
        let known = self.destager.oldest();
        let reason = || {
            let changed = known.is_none() && self.destager.oldest().is_some();
            (self.closing() || changed || self.reason().is_some()).then_some(())
        };
        let mut woken = Box::pin(self.destager.work.until(reason));
        std::future::poll_fn(|context| {
            let slept = sleep.as_mut().is_some_and(|sleep| sleep.as_mut().poll(context).is_ready());
            if slept || woken.as_mut().poll(context).is_ready() {
                return std::task::Poll::Ready(());
            }
            std::task::Poll::Pending
        })
        .await;
    }

    /// Whether to destage now, and how many blocks at once.
    fn reason(&self) -> Option<usize> {
        let oldest = self.destager.oldest()?;
        let destager = &self.destager;
        if destager.pressed.load(Ordering::Relaxed) || destager.hurried.load(Ordering::Relaxed) {
            return Some(HURRIED_BATCH);
        }
        let fill = self.fill();
        let aged = self.env.clock.now() >= oldest + self.settings.destage_after;
        let wanted =
            destager.flushing.load(Ordering::Relaxed) > 0 || self.active() < 2 || aged || fill >= 0.25;
        wanted.then_some(if fill >= 0.5 { HURRIED_BATCH } else { BATCH })
    }

    /// Destages up to `most` blocks; false if the backing store failed.
    async fn destage(&self, most: usize) -> bool {
        let parts = self.gather(most);
        if parts.is_empty() {
            // Every object is being written directly or cut: neither takes long.
            self.rest(BUSY_PAUSE).await;
            return true;
        }
        let mut writes = Vec::new();
        for part in &parts {
            writes.push(Box::pin(self.write_part(part)));
        }
        let written = all(writes).await;
        let keys = parts.iter().map(|part| part.object.key.clone()).collect();
        let synced = self.env.backing.sync(keys).await;
        let results = written.into_iter().zip(synced).map(|(written, synced)| written.and(synced));
        let mut healthy = true;
        for (part, result) in parts.into_iter().zip(results) {
            healthy &= self.finish_part(part, result);
        }
        self.destager.pressed.store(false, Ordering::Relaxed);
        self.destager.hurried.store(false, Ordering::Relaxed);
        self.destager.paced.wake();
        // Space becomes free only once a frame says so; who waits for space sees to it.
        self.segments.advance();
        self.space.wake();
        healthy
    }

    /// Takes objects from the queue and what is dirty of them.
    fn gather(&self, most: usize) -> Vec<Part> {
        let mut parts = Vec::<Part>::new();
        let mut left = most;
        let mut looked = 0;
        let waiting = self.destager.queue.lock().len();
        while left > 0 && parts.len() < OBJECTS && looked < waiting {
            looked += 1;
            let Some((object, since)) = self.destager.queue.lock().pop_front() else { break };
            let mut state = object.lock();
            if state.busy != Busy::No || state.directs > 0 {
                drop(state);
                self.destager.queue.lock().push_back((object, since));
                continue;
            }
            let from = state.cursor;
            let mut blocks = state.dirty_in(from..u64::MAX, left);
            if blocks.is_empty() && from > 0 {
                state.cursor = 0;
                blocks = state.dirty_in(0..u64::MAX, left);
            }
            if blocks.is_empty() && state.mtime.is_none() {
                state.queued = false;
                continue;
            }
            left -= blocks.len().min(left);
            state.busy = Busy::Destage;
            let complete = blocks.len() as u64 == state.dirty;
            let (mtime, size) = (state.mtime.filter(|_| complete), state.size);
            drop(state);
            parts.push(Part { object, blocks, mtime, size });
        }
        parts
    }

    async fn write_part(&self, part: &Part) -> BackingResult<()> {
        // What was accepted but not made durable must not reach the backing store: after a crash it never was.
        let last = part.object.lock().last_frame;
        if self.commit(last).await.is_err() {
            return Err(BackingError::Io(5));
        }
        let mut at = 0;
        while at < part.blocks.len() {
            let first = part.blocks[at].0;
            let run = part.blocks[at..]
                .iter()
                .take(RUN)
                .zip(first..)
                .take_while(|((block, _), n)| block == n)
                .count();
            self.write_run(part, &part.blocks[at..at + run]).await?;
            at += run;
        }
        match part.mtime {
            Some(mtime) => self.env.backing.set_mtime(&part.object.key, mtime).await,
            None => Ok(()),
        }
    }

    async fn write_run(&self, part: &Part, blocks: &[(u64, Entry)]) -> BackingResult<()> {
        let offset = blocks[0].0 * BLOCK as u64;
        let mut buffer = Buffer::zeroed(blocks.len());
        let range = offset..offset + buffer.len() as u64;
        // Newer contents than were dirty when the batch was gathered are as good: they are durable in the log as well.
        match self.read(&part.object, offset, &mut buffer).await {
            Ok(_) => {}
            Err(Error::Backing(error)) => return Err(error),
            // Blocks with no good copy must not keep the others from being destaged.
            Err(_) => return Err(BackingError::Io(5)),
        }
        let end = range.end.min(part.size.max(part.object.size()));
        if end <= range.start {
            return Ok(());
        }
        self.totals.destage_writes.add(1);
        let data = Slice::new(Arc::new(buffer), 0..(end - range.start) as usize);
        self.env.backing.write(&part.object.key, offset, data).await
    }

    /// What the backing store has durably is clean. False if it failed.
    fn finish_part(&self, part: Part, result: BackingResult<()>) -> bool {
        let Part { object, blocks, mtime, .. } = part;
        if result == Err(BackingError::Gone) {
            // Removed: nobody will ever ask for it.
            object.lock().busy = Busy::No;
            self.drop_object(&object);
            return true;
        }
        let mut state = object.lock();
        state.busy = Busy::No;
        if result.is_ok() {
            for (block, copy) in &blocks {
                state.cleaned(*block, copy, &self.segments);
            }
            if mtime.is_some() && state.mtime == mtime && state.dirty == 0 {
                state.mtime = None;
            }
            state.cursor = blocks.last().map_or(0, |(block, _)| block + 1);
            self.totals.destaged.add(blocks.len() as u64);
            self.destager.done.fetch_add(blocks.len() as u64, Ordering::Relaxed);
        }
        let again = state.dirty > 0 || state.mtime.is_some();
        state.queued = again;
        // The pass over this object goes on before the next object's begins.
        let next = state.dirty_in(state.cursor..u64::MAX, 1).is_empty();
        drop(state);
        if again {
            let now = self.env.clock.now();
            let mut queue = self.destager.queue.lock();
            if next || result.is_err() {
                queue.push_back((object.clone(), now))
            } else {
                queue.push_front((object.clone(), now))
            }
        }
        object.changed.wake();
        if let Err(error) = result {
            self.backing_failed(error);
        }
        result.is_ok()
    }
}
