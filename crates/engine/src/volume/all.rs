//! All lanes, by volume.

use forebay_lock::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::Arc;
use std::time::Duration;

use crate::io::{Backing, Key};
use crate::volume::Lane;
use crate::wait::Gate;
use forebay_lock::Mutex;

/// All lanes, by volume.
pub(crate) struct Lanes {
    backing: Arc<dyn Backing>,
    /// Those served, then others of which the log has something, as they become known. There are few.
    pub(crate) all: Mutex<Vec<Arc<Lane>>>,
    /// Their tasks may run: recovery is over.
    pub(crate) open: AtomicBool,
    /// How many are in trouble.
    pub(crate) troubled: AtomicUsize,
    /// Blocks moved within the log that a flush waited for.
    moved: AtomicU64,
    /// Somebody was asked something.
    pub(crate) asked: Gate,
}

impl Lanes {
    pub(crate) fn new(backing: Arc<dyn Backing>) -> Self {
        // Also those of which nothing was asked yet: whoever is in trouble must leave room for them.
        let all = backing.volumes().into_iter().map(|volume| Arc::new(Lane { volume, ..Lane::default() }));
        Lanes {
            all: Mutex::new(all.collect()),
            backing,
            open: AtomicBool::new(false),
            troubled: AtomicUsize::new(0),
            moved: AtomicU64::new(0),
            asked: Gate::default(),
        }
    }

    /// The lane of the object that `key` names.
    pub(crate) fn of(&self, key: &Key) -> Arc<Lane> {
        let volume = self.backing.volume(key);
        let mut all = self.all.lock();
        if let Some(lane) = all.iter().find(|lane| lane.volume == volume) {
            return lane.clone();
        }
        let lane = Arc::new(Lane { volume, ..Lane::default() });
        all.push(lane.clone());
        lane
    }

    pub(crate) fn all(&self) -> Vec<Arc<Lane>> {
        self.all.lock().clone()
    }

    /// Has all look for something to do.
    pub(crate) fn wake(&self) {
        self.all.lock().iter().for_each(|lane| lane.work.wake());
        self.asked.wake();
    }

    /// The log needs space.
    pub(crate) fn press(&self) {
        for lane in self.all.lock().iter() {
            lane.pressed.store(true, Ordering::Relaxed);
            lane.work.wake();
        }
    }

    pub(crate) fn any_troubled(&self) -> bool {
        self.troubled.load(Ordering::Relaxed) > 0
    }

    /// Whether a flush waits for any.
    pub(crate) fn any_flushing(&self) -> bool {
        self.all.lock().iter().any(|lane| lane.is_flushing())
    }

    /// Dirty blocks of volumes in trouble.
    pub(crate) fn troubled_blocks(&self) -> u64 {
        if !self.any_troubled() {
            return 0;
        }
        self.all.lock().iter().filter(|lane| lane.is_troubled()).map(|lane| lane.dirty()).sum()
    }

    /// Since when anything waits.
    pub(crate) fn oldest(&self) -> Option<Duration> {
        self.all.lock().iter().filter_map(|lane| lane.oldest()).min()
    }

    /// A block of `lane` was moved within the log.
    pub(crate) fn moved(&self, lane: &Lane) {
        if lane.is_flushing() {
            self.moved.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// How many blocks were moved that a flush waited for.
    pub(crate) fn moved_under_flush(&self) -> u64 {
        self.moved.load(Ordering::Relaxed)
    }
}

/// Objects that wait know their lane: neither would ever go.
impl Drop for Lanes {
    fn drop(&mut self) {
        for lane in self.all() {
            let waiting = std::mem::take(&mut *lane.queue.lock());
            drop(waiting);
        }
    }
}
