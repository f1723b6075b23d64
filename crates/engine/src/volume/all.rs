//! All volumes, each with its destage queue.

use forebay_common::lock::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::Arc;
use std::time::Duration;

use crate::io::{Backing, Key};
use crate::volume::Volume;
use crate::wait::Gate;
use forebay_common::lock::Mutex;

/// All volumes, each with its destage queue.
pub(crate) struct Volumes {
    backing: Arc<dyn Backing>,
    /// The served volumes, then other volumes of which the log has data, in the order in which they were met. There
    /// are few.
    pub(crate) all: Mutex<Vec<Arc<Volume>>>,
    /// Number of volumes in trouble.
    pub(crate) troubled: AtomicUsize,
    /// Number of blocks moved within the log while a flush waited for them.
    moved: AtomicU64,
    /// Wakes the watch when a volume is sent a request.
    pub(crate) asked: Gate,
}

impl Volumes {
    /// Returns the volumes that the backing store has.
    pub(crate) fn new(backing: Arc<dyn Backing>) -> Self {
        // Volumes without any request yet are listed as well: volumes in trouble must leave room for them.
        let all =
            backing.volumes().into_iter().map(|volume| Arc::new(Volume { id: volume, ..Volume::default() }));
        Volumes {
            all: Mutex::new(all.collect()),
            backing,
            troubled: AtomicUsize::new(0),
            moved: AtomicU64::new(0),
            asked: Gate::default(),
        }
    }

    /// Returns the volume of the object of `key`.
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

    /// Wakes all destage tasks to look for work.
    pub(crate) fn wake(&self) {
        self.all.lock().iter().for_each(|volume| volume.work.wake());
        self.asked.wake();
    }

    /// Asks all volumes to destage, since the log needs space.
    pub(crate) fn press(&self) {
        for volume in self.all.lock().iter() {
            volume.pressed.store(true, Ordering::Relaxed);
            volume.work.wake();
        }
    }

    pub(crate) fn any_troubled(&self) -> bool {
        self.troubled.load(Ordering::Relaxed) > 0
    }

    /// Returns true if a flush waits for any volume.
    pub(crate) fn any_flushing(&self) -> bool {
        self.all.lock().iter().any(|volume| volume.is_flushing())
    }

    /// Returns the number of dirty blocks of volumes in trouble.
    pub(crate) fn troubled_blocks(&self) -> u64 {
        if !self.any_troubled() {
            return 0;
        }
        self.all.lock().iter().filter(|volume| volume.is_troubled()).map(|volume| volume.dirty()).sum()
    }

    /// Returns the time since which the oldest object waits to be destaged.
    pub(crate) fn oldest(&self) -> Option<Duration> {
        self.all.lock().iter().filter_map(|volume| volume.oldest()).min()
    }

    /// Counts a block of `volume` that was moved within the log, if a flush waits for the volume.
    pub(crate) fn moved(&self, volume: &Volume) {
        if volume.is_flushing() {
            self.moved.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns the number of blocks that were moved while a flush waited for them.
    pub(crate) fn moved_under_flush(&self) -> u64 {
        self.moved.load(Ordering::Relaxed)
    }
}

/// Empties the queues. Queued objects refer to their volume, so neither would ever be freed.
impl Drop for Volumes {
    fn drop(&mut self) {
        for volume in self.all() {
            let waiting = std::mem::take(&mut *volume.queue.lock());
            drop(waiting);
        }
    }
}
