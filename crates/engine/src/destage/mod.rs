//! Destage: dirty blocks go to the backing store, object by object in order of offset, many at once. Each volume has
//! its own destage task (`volume/`).
//!
//! Objects queue in the order in which their oldest dirty block was written, so that the log's tail follows. A block
//! is clean only once the backing store's sync has succeeded. After a failure the block is written again from the
//! log, never only synced again (Rebello et al., ATC'20).

pub(crate) mod batch;
mod destaged;
pub(crate) mod throttle;

use forebay_common::lock::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::buffer::BLOCK;
use crate::destage::throttle::{FULL, LEVEL, Load, Throttle};
use crate::engine::Engine;
use crate::event::Event;
use crate::index::object::{Object, State};
use crate::segments::LogUse;
use crate::volume::{Volume, Volumes};
use crate::wait::Gate;
use crate::{Error, Result};
use forebay_common::lock::{Mutex, MutexGuard};

/// The lowest and the highest number of blocks destaged between two syncs.
const BATCH: (usize, usize) = (256, 8192);
/// The wanted time of a batch while writers wait for its end. Destaging of long runs is many times faster than that
/// of scattered blocks. A sync for every MiB would halve the speed of long runs. Many MiB between syncs would be a
/// long stall with scattered blocks.
const BATCH_TIME: Duration = Duration::from_millis(100);
/// The wanted time of a batch if no writer waits.
const CALM_BATCH_TIME: Duration = Duration::from_secs(1);
/// The pause after a failure. It doubles from the first value up to the second.
const PAUSE: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(15));

/// Unused segments of each device that clients must leave while a volume is in trouble.
const RESERVE: usize = 4;

/// The volumes with their destage queues, and the throttle of writers.
pub(crate) struct Destager {
    pub(crate) volumes: Arc<Volumes>,
    /// Wakes resting tasks, which then look for a reason to continue.
    pub(crate) work: Gate,
    pub(crate) throttle: Throttle,
    /// Objects with dirty blocks of which no copy could be read.
    damaged: Mutex<Vec<Weak<Object>>>,
}

impl Destager {
    pub(crate) fn new(volumes: Arc<Volumes>) -> Self {
        Destager { volumes, work: Gate::default(), throttle: Throttle::default(), damaged: Mutex::default() }
    }

    /// Wakes all destage tasks to look for work, or for the end.
    pub(crate) fn wake(&self) {
        self.work.wake();
        self.volumes.wake();
    }
}

/// The point that a flush waits for.
struct Mark {
    begun: Duration,
    /// All blocks that were dirty at the mark are in segments before this one.
    head: u64,
    moved: u64,
    /// The number of failures of each volume before the flush.
    errors: Vec<(Arc<Volume>, u64)>,
}

impl Engine {
    /// Returns how full the log is: 1 is its share of the pool, which overwritten blocks may exceed. The dirty blocks
    /// of volumes in trouble count for those volumes only. The other volumes share the rest.
    pub(crate) fn log_load(&self, volume: &Volume) -> Load {
        let LogUse { segments, share, dirty, left } = self.segments.log_use();
        let (share, slots) = (share.max(1) as f64, self.slots() as f64);
        let set_apart = if volume.is_troubled() { 0 } else { self.destager.volumes.troubled_blocks() };
        let dirty = dirty.saturating_sub(set_apart) as f64 / (share * slots - set_apart as f64).max(slots);
        let space = segments as f64 / share;
        // The last unused segments are for reappends. Otherwise the log tail could never move.
        let last = self.destager.volumes.any_troubled() && self.segments.unused_everywhere() < RESERVE;
        let space = if last { space.max(FULL) } else { space };
        Load { dirty, space, share: share * slots, freed: left * slots }
    }

    /// Returns how close the dirtiest volume is to the level at which the throttle slows writers to the rate of
    /// destaging. 1 is that level.
    pub fn dirty_part(&self) -> f64 {
        let loads = self.destager.volumes.all().into_iter().map(|volume| self.log_load(&volume).dirty);
        loads.fold(0.0, f64::max) / LEVEL
    }

    /// Returns the time since the oldest dirty data was written.
    pub fn dirty_age(&self) -> Duration {
        let now = self.env.clock.now();
        self.destager.volumes.oldest().map_or(Duration::ZERO, |since| now.saturating_sub(since))
    }

    /// Destages everything that is dirty now. Returns once the backing store has it durably. Data that clients write
    /// meanwhile may be destaged too. May be given up at any time.
    ///
    /// # Errors
    /// The error of a volume that does not answer, or on which a whole pass over its dirty blocks failed. It is
    /// returned once all other volumes are done. Destaging is tried again in the background. [`Engine::volumes`]
    /// tells which volume it is.
    pub async fn flush(&self) -> Result<()> {
        self.try_damaged_again();
        let volumes = self.destager.volumes.all();
        let errors: Vec<_> = volumes.iter().map(|volume| (volume.clone(), volume.errors())).collect();
        let flushing = self.flushing(volumes);
        let wanting = self.notes.want();
        let result = loop {
            let mark = self.mark(errors.clone());
            // Moved blocks are not in the segments before the head any more.
            let moved = || self.destager.volumes.moved_under_flush() != mark.moved;
            let ready = || if moved() { Some(None) } else { self.flushed(&mark).map(Some) };
            if let Some(result) = self.space.until(ready).await {
                break result;
            }
        };
        drop((flushing, wanting));
        result?;
        if self.segments.blocks().1 == 0 {
            return self.empty_log().await;
        }
        self.commit(self.log.kick()).await
    }

    /// Returns a mark for everything that is dirty now.
    fn mark(&self, errors: Vec<(Arc<Volume>, u64)>) -> Mark {
        let moved = self.destager.volumes.moved_under_flush();
        let begun = self.env.clock.now();
        let used = self.log.used_segment();
        if used.is_some() {
            self.log.want_roll();
        }
        let head = used.or_else(|| self.log.segment()).and_then(|head| self.segments.get(head));
        let head = head.map_or(u64::MAX, |head| head.seq + u64::from(used.is_some()));
        Mark { begun, head, moved, errors }
    }

    fn flushed(&self, mark: &Mark) -> Option<Result<()>> {
        if self.closing() {
            return Some(Err(Error::Closing));
        }
        let is_past = |volume: &Volume| volume.is_past(mark.begun);
        let (dirty, damaged) = (self.segments.blocks().1, self.segments.damaged());
        let past = dirty == 0 || self.segments.advance().tail >= mark.head;
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
    pub(crate) async fn empty_log(&self) -> Result<()> {
        if let Some(segment) = self.log.used_segment() {
            self.log.want_roll();
            self.log.until(|| self.log.has_left(segment).then_some(())).await;
        }
        self.notes_let_go().await?;
        self.segments.advance();
        self.commit(self.log.kick()).await
    }

    /// Marks a dirty block without a readable copy as damaged. The event is sent once, and destaging skips the block.
    pub(crate) fn found_damaged(&self, object: &Arc<Object>, state: &mut State, block: u64) {
        if state.damaged.is_empty() {
            self.destager.damaged.lock().push(Arc::downgrade(object));
        }
        if state.set_damaged(block, true, &self.segments) {
            self.event(Event::Damaged { object: format!("{:?}", object.key), offset: block * BLOCK as u64 });
        }
    }

    /// Clears the damaged marks, since the blocks may be readable by now.
    fn try_damaged_again(&self) {
        for object in std::mem::take(&mut *self.destager.damaged.lock()) {
            let Some(object) = object.upgrade() else { continue };
            let mut state = object.lock();
            while let Some(block) = state.damaged.first().copied() {
                state.set_damaged(block, false, &self.segments);
            }
            self.queue_if_dirty(&object, state);
        }
    }

    /// Queues an object for destaging if it needs that and is not queued yet.
    pub(crate) fn queue_if_dirty(&self, object: &Arc<Object>, mut state: MutexGuard<'_, State>) {
        let needed = state.needs_destage() || state.mtime.is_some();
        if needed && !std::mem::replace(&mut state.queued, true) {
            drop(state);
            self.queue(object);
        }
    }

    /// Destages a volume until the engine closes.
    pub(crate) async fn run_destage(self: Arc<Self>, volume: Arc<Volume>) {
        let (mut pause, mut batch) = (PAUSE.0, BATCH.0);
        while !self.closing() {
            let Some(wanted) = self.reason(&volume) else {
                self.rest_until_reason(&volume).await;
                continue;
            };
            let begun = self.env.clock.now();
            match self.destage(&volume, batch).await {
                Some(done) => {
                    batch = next_batch(batch, done, self.env.clock.now() - begun, wanted);
                    pause = PAUSE.0;
                }
                None => {
                    self.rest(pause).await;
                    pause = (pause * 2).min(PAUSE.1);
                }
            }
        }
    }

    /// Waits for `time`, or until the engine closes.
    pub(crate) async fn rest(&self, time: Duration) {
        self.rest_unless(time, || false).await;
    }

    /// Waits for `time`, until the engine closes, or until `over` is true. The task that makes `over` true wakes the
    /// destager's `work`.
    pub(crate) async fn rest_unless(&self, time: Duration, over: impl Fn() -> bool) {
        let mut sleep = self.env.clock.sleep(time);
        let mut closed = Box::pin(self.destager.work.until(|| (self.closing() || over()).then_some(())));
        std::future::poll_fn(|context| {
            let closed = closed.as_mut().poll(context).is_ready();
            if closed || sleep.as_mut().poll(context).is_ready() {
                return std::task::Poll::Ready(());
            }
            std::task::Poll::Pending
        })
        .await;
    }

    async fn rest_until_reason(&self, volume: &Volume) {
        let known = volume.oldest();
        let until = known.map(|since| since + self.settings.destage_after);
        let wait = until.map(|until| until.saturating_sub(self.env.clock.now()));
        let mut sleep = wait.map(|wait| self.env.clock.sleep(wait.max(Duration::from_millis(1))));
        let reason = || {
            let changed = known.is_none() && volume.oldest().is_some();
            (self.closing() || changed || self.reason(volume).is_some()).then_some(())
        };
        let mut woken = Box::pin(volume.work.until(reason));
        std::future::poll_fn(|context| {
            let slept = sleep.as_mut().is_some_and(|sleep| sleep.as_mut().poll(context).is_ready());
            if slept || woken.as_mut().poll(context).is_ready() {
                return std::task::Poll::Ready(());
            }
            std::task::Poll::Pending
        })
        .await;
    }

    /// Returns the wanted time of a batch if the volume should destage now; otherwise `None`.
    fn reason(&self, volume: &Volume) -> Option<Duration> {
        let oldest = volume.oldest()?;
        if volume.pressed.load(Ordering::Relaxed) || volume.hurried.load(Ordering::Relaxed) {
            return Some(BATCH_TIME);
        }
        let fill = self.log_load(volume).dirty;
        let aged = self.env.clock.now() >= oldest + self.settings.destage_after;
        let wanted = volume.is_flushing() || !self.is_mirrored() || aged || fill >= 0.25;
        wanted.then_some(CALM_BATCH_TIME)
    }
}

/// Returns the number of blocks to destage at once after a batch of up to `batch`, of which `done` blocks took `time`
/// instead of `wanted`.
fn next_batch(batch: usize, done: usize, time: Duration, wanted: Duration) -> usize {
    let next = match done {
        _ if time > wanted * 2 => batch / 2,
        // A batch that was not full says nothing about a larger one.
        done if done * 2 > batch && time < wanted / 2 => batch * 2,
        _ => batch,
    };
    next.clamp(BATCH.0, BATCH.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the batch size after many batches, over a store that takes `each` for a block and `sync` for a sync.
    fn settled(each: Duration, sync: Duration, wanted: Duration) -> usize {
        (0..100).fold(BATCH.0, |batch, _| next_batch(batch, batch, each * batch as u32 + sync, wanted))
    }

    #[test]
    fn batches_grow_with_what_the_backing_store_takes_in_their_time() {
        let (us, ms) = (Duration::from_micros, Duration::from_millis);
        assert_eq!(settled(ms(5), ms(30), BATCH_TIME), BATCH.0, "random blocks on disks");
        let stream = settled(us(26), ms(10), BATCH_TIME);
        assert!((1024..=4096).contains(&stream), "a stream on disks: {stream}");
        assert!(settled(us(26), ms(10), CALM_BATCH_TIME) >= 2 * stream, "and if nobody waits");
        assert_eq!(settled(us(2), ms(1), BATCH_TIME), BATCH.1, "an SSD");
    }
}
