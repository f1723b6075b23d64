//! Volumes. Each volume (a backing file system or device) has its own destage task. So a volume that fails or does
//! not answer delays no other volume.
//!
//! The dirty blocks of a volume in trouble stay in the log. They are moved to the log head whenever the log tail has
//! to pass (`maintain/compact.rs`). That needs room. So writers to such volumes get an error once volumes in trouble
//! hold a quarter of the log's share, if there are other volumes. Writers to the other volumes continue.

pub(crate) mod admission;
pub(crate) mod all;
pub(crate) mod destager;
pub(crate) mod health;
pub(crate) mod queue;
pub(crate) mod service_time;
pub(crate) mod status;
pub(crate) mod throttle;
pub(crate) mod trouble;
pub(crate) mod waiting;

use forebay_common::lock::Mutex;
use forebay_common::lock::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::index::object::CachedObject;
use crate::volume::health::Health;
use crate::volume::service_time::ServiceTime;
use crate::volume::throttle::Room;
use crate::volume::waiting::{Turn, Waiting, Waits};
use crate::wait::Gate;

/// A volume as destaging sees it.
#[derive(Debug, Default)]
pub(crate) struct Volume {
    pub(crate) id: u32,
    /// The objects that wait to be destaged.
    queue: Mutex<Waiting<CachedObject>>,
    /// The time since which the oldest object of the batch in progress waits.
    batch: Mutex<Option<Duration>>,
    /// Wakes the volume's destage task.
    pub(crate) work: Gate,
    /// Number of dirty blocks of the volume's objects.
    dirty: AtomicU64,
    /// Number of flushes in progress.
    flushing: AtomicUsize,
    /// True if the log is short of segments.
    pub(crate) pressed: AtomicBool,
    /// True if a task waits for an object to become clean.
    pub(crate) hurried: AtomicBool,
    /// True if the volume's destage task runs.
    started: AtomicBool,
    health: Mutex<Health>,
    /// Objects of which blocks were refused.
    refusing: Mutex<Vec<Weak<CachedObject>>>,
    /// Number of failures since the start.
    errors: AtomicU64,
    /// True if the volume fails or is late.
    troubled: AtomicBool,
    /// The room for dirty blocks of the volume's writers.
    pub(crate) room: Room,
    /// The service time for a block of a batch, the sync included.
    pub(crate) service: ServiceTime,
}

/// The reasons for urgency that a batch has taken: see the fields of [`Volume`] with these names.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Urgency {
    pressed: bool,
    hurried: bool,
}

impl Waits for CachedObject {
    fn dirty_time(&self) -> Option<Duration> {
        self.policy().dirty_time()
    }
}

impl Volume {
    /// Puts an object into the destage queue, with the time since which it waits.
    fn push(&self, object: Arc<CachedObject>, now: Duration) {
        self.queue.lock().push(object, now);
        self.work.wake();
    }

    /// Sets the time since which the batch in progress waits; `None` if no batch is in progress.
    pub(crate) fn set_batch(&self, since: Option<Duration>) {
        *self.batch.lock() = since;
    }

    /// Returns true if every object that waited at `time` has been through a batch.
    pub(crate) fn is_past(&self, time: Duration) -> bool {
        self.batch.lock().is_none_or(|since| since > time) && self.queue.lock().is_past(time)
    }

    /// Returns the number of objects that wait.
    pub(crate) fn waiting(&self) -> usize {
        self.queue.lock().len()
    }

    /// Begins a batch of objects from the queue.
    pub(crate) fn begin(&self, turn: Turn) {
        self.queue.lock().begin(turn);
    }

    /// Takes the object to be destaged next, with the time since which it waits: see [`Waiting::next`].
    pub(crate) fn next(&self, turn: Turn, short_first: bool) -> Option<(Arc<CachedObject>, Duration)> {
        self.queue.lock().next(turn, short_first)
    }

    /// Puts objects that were taken back at their places.
    pub(crate) fn put_back(&self, objects: Vec<(Arc<CachedObject>, Duration)>) {
        self.queue.lock().put_back(objects);
    }

    /// Adds an object that was taken to the queue again, in first or last place.
    pub(crate) fn again(&self, object: Arc<CachedObject>, since: Duration, next: bool) {
        let mut queue = self.queue.lock();
        if next { queue.push_first(object, since) } else { queue.push(object, since) }
    }

    /// Takes the requests for urgency at the start of a batch. A later request is for the next batch, since this
    /// batch may lack the awaited object.
    pub(crate) fn take_urgency(&self) -> Urgency {
        let pressed = self.pressed.swap(false, Ordering::Relaxed);
        Urgency { pressed, hurried: self.hurried.swap(false, Ordering::Relaxed) }
    }

    /// Gives the requests for urgency back, since the batch was empty and they are still unmet.
    pub(crate) fn give_back(&self, urgency: Urgency) {
        self.pressed.fetch_or(urgency.pressed, Ordering::Relaxed);
        self.hurried.fetch_or(urgency.hurried, Ordering::Relaxed);
    }

    /// Returns the time since which the first object of the queue waits.
    pub(crate) fn oldest(&self) -> Option<Duration> {
        self.queue.lock().oldest()
    }

    /// Returns the time at which the first object of the queue is due: see [`Waiting::due`].
    pub(crate) fn next_due(&self, usual: Duration, now: Duration) -> Option<Duration> {
        self.queue.lock().due(usual, now)
    }

    /// Notes that the policy of a waiting object has another dirty time.
    pub(crate) fn policy_changed(&self) {
        self.queue.lock().policy_changed();
        self.work.wake();
    }

    /// Counts a block that became dirty.
    pub(crate) fn dirtied(&self) {
        self.dirty.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a dirty block that became clean, or does not count any more.
    pub(crate) fn cleaned(&self) {
        self.dirty.fetch_sub(1, Ordering::Relaxed);
    }

    pub(crate) fn dirty(&self) -> u64 {
        self.dirty.load(Ordering::Relaxed)
    }

    pub(crate) fn is_flushing(&self) -> bool {
        self.flushing.load(Ordering::Relaxed) > 0
    }

    fn is_started(&self) -> bool {
        self.started.load(Ordering::Acquire)
    }
}
