//! Lanes: each volume (a backing file system or device) is destaged by a task of its own, so that one which fails or does
//! not answer is in nobody's way but its own.
//!
//! What a volume in trouble keeps dirty stays in the log, and is moved to the log's head whenever the log's tail has to
//! pass (`maintain/compact.rs`). So that there is room to do so, its writers are told of the trouble once volumes in trouble hold a
//! quarter of the log's share, if there are other volumes: those go on.

mod all;
mod health;

use forebay_common::lock::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use crate::Error;
use crate::destage::throttle::Room;
use crate::engine::Engine;
use crate::index::object::Object;
use crate::request::service_time::ServiceTime;
use crate::wait::Gate;
use forebay_common::lock::Mutex;

pub(crate) use all::Volumes;
pub(crate) use health::Asked;
use health::Health;

/// A volume as destaging sees it.
#[derive(Debug, Default)]
pub(crate) struct Volume {
    pub(crate) id: u32,
    /// What waits, and since when.
    queue: Mutex<VecDeque<(Arc<Object>, Duration)>>,
    /// Since when the oldest of the objects in the batch under way waits.
    batch: Mutex<Option<Duration>>,
    /// Its task waits here for something to do.
    pub(crate) work: Gate,
    /// Dirty blocks of its objects.
    dirty: AtomicU64,
    /// Flushes under way.
    flushing: AtomicUsize,
    /// The log is short of segments.
    pub(crate) pressed: AtomicBool,
    /// Somebody waits for an object to become clean.
    pub(crate) hurried: AtomicBool,
    /// Its task runs.
    started: AtomicBool,
    health: Mutex<Health>,
    /// Failures since start.
    errors: AtomicU64,
    /// Failing or late.
    troubled: AtomicBool,
    /// What its writers may make dirty.
    pub(crate) room: Room,
    /// What a block of a batch takes, the sync included.
    pub(crate) service: ServiceTime,
}

/// Who asked a lane for haste: see its fields of these names.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Haste {
    pressed: bool,
    hurried: bool,
}

/// See [`Engine::flushing`].
pub(crate) struct Flushing<'a> {
    engine: &'a Engine,
    volumes: Vec<Arc<Volume>>,
}

impl Drop for Flushing<'_> {
    fn drop(&mut self) {
        for volume in &self.volumes {
            volume.flushing.fetch_sub(1, Ordering::Relaxed);
        }
        // Who moves blocks within the log goes on.
        self.engine.space.wake();
    }
}

impl Volume {
    fn push(&self, object: Arc<Object>, now: Duration) {
        self.queue.lock().push_back((object, now));
        self.work.wake();
    }

    /// A batch with objects that wait since `since` is under way, or (`None`) no batch is.
    pub(crate) fn set_batch(&self, since: Option<Duration>) {
        *self.batch.lock() = since;
    }

    /// Whether everything that waited at `time` has been through a batch.
    pub(crate) fn is_past(&self, time: Duration) -> bool {
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

    /// A batch begins, for whoever has asked for haste. Whoever asks from now on asks for the next one: this one may lack
    /// the object that is waited for.
    pub(crate) fn take_haste(&self) -> Haste {
        let pressed = self.pressed.swap(false, Ordering::Relaxed);
        Haste { pressed, hurried: self.hurried.swap(false, Ordering::Relaxed) }
    }

    /// There was nothing to put into the batch: who asked for haste still waits.
    pub(crate) fn give_back(&self, haste: Haste) {
        self.pressed.fetch_or(haste.pressed, Ordering::Relaxed);
        self.hurried.fetch_or(haste.hurried, Ordering::Relaxed);
    }

    /// Since when the object waits that is next, if any.
    pub(crate) fn oldest(&self) -> Option<Duration> {
        self.queue.lock().front().map(|(_, since)| *since)
    }

    /// A block became dirty.
    pub(crate) fn dirtied(&self) {
        self.dirty.fetch_add(1, Ordering::Relaxed);
    }

    /// A dirty block became clean, or does not count any more.
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

/// A volume as an administrator sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeStatus {
    /// What it is called, by [`Backing::name`](crate::io::Backing::name).
    pub name: String,
    /// Blocks of 4 KiB that it does not have yet.
    pub dirty_blocks: u64,
    /// What is wrong with it: [`Error::Late`], or why destaging fails.
    pub trouble: Option<Error>,
}

impl Engine {
    /// Every volume that is served, and others of which the log has something.
    pub fn volumes(&self) -> Vec<VolumeStatus> {
        let all = self.destager.volumes.all();
        let status = |volume: Arc<Volume>| VolumeStatus {
            name: self.env.backing.name(volume.id),
            dirty_blocks: volume.dirty(),
            trouble: volume.trouble(),
        };
        all.into_iter().map(status).collect()
    }

    /// Starts the tasks of lanes with something to do, and what watches over all.
    pub(crate) fn start_lanes(self: &Arc<Self>) {
        self.start("forebay-watch", Engine::run_watch);
        self.destager.volumes.open.store(true, Ordering::Release);
        self.destager
            .volumes
            .all()
            .into_iter()
            .filter(|volume| volume.waiting() > 0)
            .for_each(|volume| self.start_lane(volume));
    }

    fn start_lane(&self, volume: Arc<Volume>) {
        if volume.is_started() || !self.destager.volumes.open.load(Ordering::Acquire) {
            return;
        }
        if let Some(engine) = self.me.upgrade()
            && !volume.started.swap(true, Ordering::AcqRel)
        {
            engine.start("forebay-destage", |engine| engine.run_destage(volume));
        }
    }

    /// Has an object destaged in its turn.
    pub(crate) fn queue(&self, object: &Arc<Object>) {
        object.volume.push(object.clone(), self.env.clock.now());
        self.start_lane(object.volume.clone());
    }

    /// Somebody waits for this object: it goes first.
    pub(crate) fn hurry(&self, object: &Arc<Object>) {
        let volume = &object.volume;
        volume.hurried.store(true, Ordering::Relaxed);
        // Before the queue is locked: others lock it with the object locked.
        let dirty = object.lock().dirty > 0;
        let mut queue = volume.queue.lock();
        if let Some(at) = queue.iter().position(|(queued, _)| Arc::ptr_eq(queued, object)) {
            queue.swap(0, at);
        } else if dirty {
            queue.push_front((object.clone(), self.env.clock.now()));
        }
        drop(queue);
        volume.work.wake();
        self.start_lane(volume.clone());
    }

    /// Everything dirty of `volumes` is destaged without delay while the result lives.
    pub(crate) fn flushing(&self, volumes: Vec<Arc<Volume>>) -> Flushing<'_> {
        for volume in &volumes {
            volume.flushing.fetch_add(1, Ordering::Relaxed);
            volume.work.wake();
        }
        Flushing { engine: self, volumes }
    }
}
