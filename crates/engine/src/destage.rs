//! Destage: dirty blocks go to the backing store, object by object in order of offset, many at once.
//!
//! Objects queue in the order in which their oldest dirty block was written, so that the log's tail follows. A block is
//! clean only once the backing store's sync has succeeded; after a failure it is written again from the log, never
//! only synced again (Rebello et al., ATC'20).

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::buffer::BLOCK;
use crate::engine::Engine;
use crate::event::Event;
use crate::io::BackingError;
use crate::object::{Object, State};
use crate::pace::{Load, Pace};
use crate::segments::LogUse;
use crate::wait::Gate;
use crate::{Error, Result};
use forebay_lock::{Mutex, MutexGuard};

/// Blocks destaged between two syncs, at least and at most.
const BATCH: (usize, usize) = (256, 8192);
/// How long a batch should take while writers wait for its end. What is destaged in long runs is many times faster than
/// what is not: a sync for every MiB would halve the speed of the one, many MiB would be a long stall with the other.
const BATCH_TIME: Duration = Duration::from_millis(100);
/// The same if nobody waits.
const CALM_BATCH_TIME: Duration = Duration::from_secs(1);
/// Pause after a failure; doubles up to the second.
const PAUSE: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(15));

/// What waits to be destaged.
#[derive(Debug, Default)]
pub(crate) struct Destager {
    queue: Mutex<VecDeque<(Arc<Object>, Duration)>>,
    /// Since when the oldest of the objects in the batch under way waits.
    batch: Mutex<Option<Duration>>,
    pub(crate) work: Gate,
    /// Flushes under way.
    flushing: AtomicUsize,
    /// The log is short of segments.
    pressed: AtomicBool,
    /// Somebody waits for an object to become clean.
    hurried: AtomicBool,
    failing: AtomicBool,
    failure: Mutex<Option<BackingError>>,
    pub(crate) pace: Pace,
    /// Objects with dirty blocks of which no copy could be read.
    damaged: Mutex<Vec<Weak<Object>>>,
}

/// See [`Engine::flushing`].
pub(crate) struct Flushing<'a>(&'a Engine);

impl Drop for Flushing<'_> {
    fn drop(&mut self) {
        self.0.destager.flushing.fetch_sub(1, Ordering::Relaxed);
        // Who moves blocks within the log goes on.
        self.0.space.wake();
    }
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
        // Before the queue is locked: others lock it with the object locked.
        let dirty = object.lock().dirty > 0;
        let mut queue = self.queue.lock();
        if let Some(at) = queue.iter().position(|(queued, _)| Arc::ptr_eq(queued, object)) {
            queue.swap(0, at);
        } else if dirty {
            queue.push_front((object.clone(), now));
        }
        drop(queue);
        self.work.wake();
    }

    /// Whether somebody flushes: then nothing is moved within the log, or a flush could wait for ever for what was dirty
    /// when it began.
    pub(crate) fn is_flushing(&self) -> bool {
        self.flushing.load(Ordering::Relaxed) > 0
    }

    /// A batch with objects that wait since `since` is under way, or (`None`) no batch is.
    pub(crate) fn set_batch(&self, since: Option<Duration>) {
        *self.batch.lock() = since;
    }

    /// Whether everything that waited at `time` has been through a batch.
    fn is_past(&self, time: Duration) -> bool {
        self.batch.lock().is_none_or(|since| since > time)
            && self.queue.lock().iter().all(|(_, since)| *since > time)
    }

    /// Objects waiting.
    pub(crate) fn waiting(&self) -> usize {
        self.queue.lock().len()
    }

    /// The object to be destaged next, and since when it waits.
    pub(crate) fn next(&self) -> Option<(Arc<Object>, Duration)> {
        self.queue.lock().pop_front()
    }

    /// Puts an object back, to be next or last.
    pub(crate) fn again(&self, object: Arc<Object>, since: Duration, next: bool) {
        let mut queue = self.queue.lock();
        if next { queue.push_front((object, since)) } else { queue.push_back((object, since)) }
    }

    /// A batch is through: who still waits presses again.
    pub(crate) fn relax(&self) {
        self.pressed.store(false, Ordering::Relaxed);
        self.hurried.store(false, Ordering::Relaxed);
    }

    /// Whether anything waits, and since when.
    fn oldest(&self) -> Option<Duration> {
        self.queue.lock().front().map(|(_, since)| *since)
    }
}

impl Engine {
    /// How full the log is: 1 is its share of the pool, and there may be a little more.
    pub(crate) fn log_load(&self) -> Load {
        let LogUse { segments, share, dirty, left } = self.segments.log_use();
        let (share, slots) = (share.max(1) as f64, self.slots() as f64);
        // With what was overwritten it may outgrow its share, by a fifth: half full is the share itself.
        let space = segments as f64 / share * 2.0 - 1.5;
        Load { dirty: dirty as f64 / (share * slots), space, freed: left * self.slots() as u64 }
    }

    /// Seconds since the oldest dirty data was written.
    pub fn dirty_age(&self) -> Duration {
        let now = self.env.clock.now();
        self.destager.oldest().map_or(Duration::ZERO, |since| now.saturating_sub(since))
    }

    /// Everything dirty is destaged without delay while the result lives.
    pub(crate) fn flushing(&self) -> Flushing<'_> {
        self.destager.flushing.fetch_add(1, Ordering::Relaxed);
        self.destager.work.wake();
        Flushing(self)
    }

    /// Destages everything that is dirty now. Returns once the backing store has it durably; what clients write
    /// meanwhile may be destaged too. May be given up at any time.
    ///
    /// # Errors
    /// The backing store's, if a whole pass over what is dirty failed; it is tried again in the background.
    pub async fn flush(&self) -> Result<()> {
        self.try_damaged_again();
        let begun = self.env.clock.now();
        let errors = self.totals.backing_errors.get();
        let flushing = self.flushing();
        let wanting = self.notes.want();
        let used = self.log.used_segment();
        if used.is_some() {
            self.log.want_roll();
        }
        // All that is dirty now is in segments before this one.
        let head = used.or_else(|| self.log.segment()).and_then(|head| self.segments.get(head));
        let head = head.map_or(u64::MAX, |head| head.seq + u64::from(used.is_some()));
        let ready = || {
            if self.closing() {
                return Some(Err(Error::Closing));
            }
            let (dirty, damaged) = (self.segments.blocks().1, self.segments.damaged());
            let past = dirty == 0 || self.segments.advance().tail >= head;
            if past && damaged == 0 && self.destager.is_past(begun) {
                return Some(Ok(()));
            }
            if dirty > 0 && (dirty == damaged || (past && damaged > 0)) {
                return Some(Err(Error::Damaged));
            }
            self.failure_since(errors).map(|error| Err(Error::Backing(error)))
        };
        let result = self.space.until(ready).await;
        drop((flushing, wanting));
        result?;
        if self.segments.blocks().1 == 0 {
            return self.empty_log().await;
        }
        self.commit(self.log.kick()).await
    }

    /// Nothing is dirty: makes it so durably that recovery finds nothing to replay. Otherwise what was destaged would be
    /// written again over whatever an administrator did to the directory meanwhile.
    pub(crate) async fn empty_log(&self) -> Result<()> {
        if let Some(segment) = self.log.used_segment() {
            self.log.want_roll();
            self.log.until(|| self.log.has_left(segment).then_some(())).await;
        }
        self.notes_let_go().await?;
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

    /// No copy of a dirty block can be read: it is told once, and destaging passes it by.
    pub(crate) fn found_damaged(&self, object: &Arc<Object>, state: &mut State, block: u64) {
        if state.damaged.is_empty() {
            self.destager.damaged.lock().push(Arc::downgrade(object));
        }
        if state.set_damaged(block, true, &self.segments) {
            self.event(Event::Damaged { object: format!("{:?}", object.key), offset: block * BLOCK as u64 });
        }
    }

    /// What could not be read may be readable by now.
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

    /// Has an object destaged that is not waiting for it yet.
    pub(crate) fn queue_if_dirty(&self, object: &Arc<Object>, mut state: MutexGuard<'_, State>) {
        let needed = state.needs_destage() || state.mtime.is_some();
        if needed && !std::mem::replace(&mut state.queued, true) {
            drop(state);
            self.destager.queue(object.clone(), self.env.clock.now());
        }
    }

    /// Why destaging fails, if it does and has failed since there were `errors` failures.
    pub(crate) fn failure_since(&self, errors: u64) -> Option<BackingError> {
        let failed = self.totals.backing_errors.get() > errors;
        (failed && self.destager.failing.load(Ordering::Relaxed))
            .then(|| self.destager.failure.lock().unwrap_or(BackingError::Io(5)))
    }

    /// Destages until the engine closes.
    pub(crate) async fn run_destage(self: Arc<Self>) {
        let (mut pause, mut batch) = (PAUSE.0, BATCH.0);
        loop {
            if self.closing() {
                return;
            }
            match self.reason() {
                Some(wanted) => {
                    let begun = self.env.clock.now();
                    let before = self.totals.destaged.get();
                    if self.destage(batch).await {
                        let done = (self.totals.destaged.get() - before) as usize;
                        batch = next_batch(batch, done, self.env.clock.now() - begun, wanted);
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
    pub(crate) async fn rest(&self, time: Duration) {
        self.rest_unless(time, || false).await;
    }

    /// The same, or until `over`; whoever makes it so wakes the destager's `work`.
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

    /// Whether to destage now, and how long a batch should take.
    fn reason(&self) -> Option<Duration> {
        let oldest = self.destager.oldest()?;
        let destager = &self.destager;
        if destager.pressed.load(Ordering::Relaxed) || destager.hurried.load(Ordering::Relaxed) {
            return Some(BATCH_TIME);
        }
        let fill = self.log_load().dirty;
        let aged = self.env.clock.now() >= oldest + self.settings.destage_after;
        let wanted =
            destager.flushing.load(Ordering::Relaxed) > 0 || !self.is_mirrored() || aged || fill >= 0.25;
        wanted.then_some(CALM_BATCH_TIME)
    }
}

/// How many blocks to destage at once after a batch of up to `batch`, of which `done` took `time` instead of `wanted`.
fn next_batch(batch: usize, done: usize, time: Duration, wanted: Duration) -> usize {
    let next = match done {
        _ if time > wanted * 2 => batch / 2,
        // One that was not full says nothing of a larger one.
        done if done * 2 > batch && time < wanted / 2 => batch * 2,
        _ => batch,
    };
    next.clamp(BATCH.0, BATCH.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The batch in the end, over a store that takes `each` for a block and `sync` for a sync.
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
