//! All lanes, by volume.

use forebay_common::lock::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::Arc;
use std::time::Duration;

use crate::io::{Backing, Key};
use crate::volume::Volume;
use crate::wait::Gate;
use forebay_common::lock::Mutex;

/// All lanes, by volume.
pub(crate) struct Volumes {
    backing: Arc<dyn Backing>,
    /// Those served, then others of which the log has something, as they become known. There are few.
    pub(crate) all: Mutex<Vec<Arc<Volume>>>,
    /// Their tasks may run: recovery is over.
    pub(crate) open: AtomicBool,
    /// How many are in trouble.
    pub(crate) troubled: AtomicUsize,
    /// Blocks moved within the log that a flush waited for.
    moved: AtomicU64,
    /// Somebody was asked something.
    pub(crate) asked: Gate,
}

impl Volumes {
    pub(crate) fn new(backing: Arc<dyn Backing>) -> Self {
        // Also those of which nothing was asked yet: whoever is in trouble must leave room for them.
        let all =
            backing.volumes().into_iter().map(|volume| Arc::new(Volume { id: volume, ..Volume::default() }));
        Volumes {
            all: Mutex::new(all.collect()),
            backing,
            open: AtomicBool::new(false),
            troubled: AtomicUsize::new(0),
            moved: AtomicU64::new(0),
            asked: Gate::default(),
        }
    }

    /// The lane of the object that `key` names.
    pub(crate) fn of(&self, key: &Key) -> Arc<Volume> {
        let id = self.backing.volume(key);
        let mut all = self.all.lock();
        if let Some(volume) = all.iter().find(|volume| volume.id == id) {
            return volume.clone();
        }
        let volume = Arc::new(Volume { id, ..Volume::default() });
        all.push(volume.clone());
        volume
    }

    pub(crate) fn all(&self) -> Vec<Arc<Volume>> {
        self.all.lock().clone()
    }

    /// Has all look for something to do.
    pub(crate) fn wake(&self) {
        self.all.lock().iter().for_each(|volume| volume.work.wake());
        self.asked.wake();
    }

    /// The log needs space.
    pub(crate) fn press(&self) {
        for volume in self.all.lock().iter() {
            volume.pressed.store(true, Ordering::Relaxed);
            volume.work.wake();
        }
    }

    pub(crate) fn any_troubled(&self) -> bool {
        self.troubled.load(Ordering::Relaxed) > 0
    }

    /// Whether a flush waits for any.
    pub(crate) fn any_flushing(&self) -> bool {
        self.all.lock().iter().any(|volume| volume.is_flushing())
    }

    /// Dirty blocks of volumes in trouble.
    pub(crate) fn troubled_blocks(&self) -> u64 {
        if !self.any_troubled() {
            return 0;
        }
        self.all.lock().iter().filter(|volume| volume.is_troubled()).map(|volume| volume.dirty()).sum()
    }

    /// Since when anything waits.
    pub(crate) fn oldest(&self) -> Option<Duration> {
        self.all.lock().iter().filter_map(|volume| volume.oldest()).min()
    }

    /// A block of `volume` was moved within the log.
    pub(crate) fn moved(&self, volume: &Volume) {
        if volume.is_flushing() {
            self.moved.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// How many blocks were moved that a flush waited for.
    pub(crate) fn moved_under_flush(&self) -> u64 {
        self.moved.load(Ordering::Relaxed)
    }
}

/// Objects that wait know their lane: neither would ever go.
impl Drop for Volumes {
    fn drop(&mut self) {
        for volume in self.all() {
            let waiting = std::mem::take(&mut *volume.queue.lock());
            drop(waiting);
        }
    }
}
