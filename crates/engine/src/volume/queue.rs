//! Objects are queued for destaging.

use forebay_common::lock::MutexGuard;
use forebay_common::lock::atomic::Ordering;
use std::sync::Arc;

use crate::buffer::BLOCK;
use crate::core::Core;
use crate::event::Event;
use crate::index::object::{CachedObject, State};
use crate::volume::Volume;

/// A flush in progress; see [`flushing`].
pub(crate) struct Flushing<'a> {
    core: &'a Core,
    volumes: Vec<Arc<Volume>>,
}

impl Drop for Flushing<'_> {
    fn drop(&mut self) {
        for volume in &self.volumes {
            volume.flushing.fetch_sub(1, Ordering::Relaxed);
        }
        // Compaction may move the blocks within the log again.
        self.core.space.wake();
    }
}

/// Starts the volume's destage task, unless it runs or recovery has not ended yet.
pub(crate) fn start_destage_task(core: &Core, volume: Arc<Volume>) {
    if volume.is_started() {
        return;
    }
    let Some(lane) = core.lane.get() else { return };
    if let Some(core) = core.me.upgrade()
        && !volume.started.swap(true, Ordering::AcqRel)
    {
        lane(&core, volume);
    }
}

/// Marks a dirty block without a readable copy as damaged. The event is sent once, and destaging skips the block.
pub(crate) fn found_damaged(core: &Core, object: &Arc<CachedObject>, state: &mut State, block: u64) {
    if state.damaged.is_empty() {
        core.destager.damaged.lock().push(Arc::downgrade(object));
    }
    if state.set_damaged(block, true, &core.segments) {
        let (volume, object) = (core.env.backing.name(object.volume.id), object.key.clone());
        core.event(Event::Damaged { volume, object, offset: block * BLOCK as u64 });
    }
}

/// Queues an object for destaging if it needs that and is not queued yet.
pub(crate) fn queue_if_dirty(core: &Core, object: &Arc<CachedObject>, mut state: MutexGuard<'_, State>) {
    let needed = state.needs_destage() || state.mtime.is_some();
    if needed && !std::mem::replace(&mut state.queued, true) {
        drop(state);
        queue(core, object);
    }
}

/// Queues an object for destaging.
pub(crate) fn queue(core: &Core, object: &Arc<CachedObject>) {
    object.volume.push(object.clone(), core.env.clock.now());
    start_destage_task(core, object.volume.clone());
}

/// Moves an object to the front of the queue, since a task waits for it.
pub(crate) fn move_to_front(core: &Core, object: &Arc<CachedObject>) {
    let volume = &object.volume;
    volume.hurried.store(true, Ordering::Relaxed);
    // The object is locked before the queue, as all other code does.
    let dirty = object.lock().dirty > 0;
    volume.queue.lock().hurry(object, dirty, core.env.clock.now());
    volume.work.wake();
    start_destage_task(core, volume.clone());
}

/// Has the dirty blocks of `volumes` destaged without delay, while the result lives.
pub(crate) fn flushing(core: &Core, volumes: Vec<Arc<Volume>>) -> Flushing<'_> {
    for volume in &volumes {
        volume.flushing.fetch_add(1, Ordering::Relaxed);
        volume.work.wake();
    }
    Flushing { core, volumes }
}
