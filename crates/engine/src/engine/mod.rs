//! The engine as its users see it: each method calls a task.

pub(crate) mod opening;
mod requests;
mod status;
mod upkeep;
mod user_records;

use forebay_common::lock::atomic::Ordering;
use std::sync::Arc;

use crate::core::Core;
use crate::destage::destaged::log_destaged;
use crate::destage::flush::empty_log;
use crate::destage::start_destage_tasks;
use crate::index::object::CachedObject;
use crate::io::Key;
use crate::log::commit_leader::lead;
use crate::log::mirror_io::record_losses;
use crate::log::writer::run_log;
use crate::maintain::compact::run_compact;
use crate::maintain::device_watch::{run_device_watch, wake_device_watch, watch_until_stopped};
use crate::maintain::remirror::run_rewrite;
use crate::maintain::scrub::run_scrub;
use crate::mode::Mode;
use crate::tiers::evict::run_evict;
use crate::tiers::fill::run_clean;
use crate::tiers::share::run_shares;
use crate::volume::trouble::watch_until_stopped as watch_volumes_until_stopped;
use crate::wait::beside;
use crate::{Completion, Result, Seq};

/// A cache in front of a backing store. All methods may be called from any thread.
pub struct Engine {
    core: Arc<Core>,
}

impl Engine {
    /// Returns the object of `key` if it is in the index. While clean segments are still being loaded, any object may
    /// have copies, so every `key` gets an object.
    pub fn known(&self, key: &Key) -> Option<Arc<CachedObject>> {
        self.core.known(key)
    }

    /// Returns the object of `key`. `size` is the size in the backing store; the engine believes it unless it knows a
    /// newer size.
    pub fn object(&self, key: &Key, size: u64) -> Arc<CachedObject> {
        self.core.object(key, size)
    }

    /// Returns the configured mode.
    pub fn mode(&self) -> Mode {
        self.core.mode()
    }

    /// Sets the mode. Data that was accepted earlier is destaged in any mode.
    pub fn set_mode(&self, mode: Mode) {
        self.core.set_mode(mode)
    }

    /// Returns the mode in force. Write-back needs two devices, and two copies of all dirty data.
    pub fn effective_mode(&self) -> Mode {
        self.core.effective_mode()
    }

    /// Returns true if all dirty data is on two devices, and new writes will be.
    pub fn is_mirrored(&self) -> bool {
        self.core.is_mirrored()
    }

    /// Returns the number of cache devices in use.
    pub fn active(&self) -> usize {
        self.core.active()
    }

    /// Returns the number of cache devices in use, without a device that is being removed.
    pub fn staying(&self) -> usize {
        self.core.staying()
    }

    /// Waits until everything appended up to frame `seq` is durable on every leg.
    pub async fn commit(&self, seq: Seq) -> Result<()> {
        self.core.commit(seq).await
    }

    /// Calls `done` when [`Engine::commit`] would return. The call comes at once, or later from another thread.
    pub fn when_durable(&self, seq: Seq, done: Completion) {
        self.core.when_durable(seq, done)
    }

    /// Returns the frame to commit for everything accepted up to this call.
    pub fn last(&self) -> Seq {
        self.core.last()
    }

    /// Stops cleanly: makes everything accepted durable in the log. Dirty data stays on the cache devices. Returns the
    /// number of dirty bytes. A volume that has not answered for ten seconds is left with its requests in flight, which
    /// may still be carried out. Requests in flight and later requests fail with
    /// [`Error::Closing`](crate::Error::Closing) if they need the log.
    pub async fn close(&self) -> Result<u64> {
        let core = &self.core;
        let mut committed = core.commit(core.last()).await;
        if core.segments.blocks().1 == 0 && core.notes.none_kept() && committed.is_ok() {
            committed = empty_log(core).await;
        }
        core.closing.store(true, Ordering::Release);
        core.destager.wake();
        core.clean.work.wake();
        core.log.changed.wake();
        core.notes.changed.wake();
        core.space.wake();
        core.log.changed.wake();
        core.scrubber.wake();
        wake_device_watch(core);
        let stopping = beside(watch_until_stopped(core), stop(core, committed));
        beside(watch_volumes_until_stopped(core), stopping).await
    }
}

/// Ends the tasks of a closing engine and the log. `committed` is the result of the commit of everything accepted.
/// Returns the number of dirty bytes.
async fn stop(core: &Core, committed: Result<()>) -> Result<u64> {
    // The clean segment being filled is sealed first, so that recovery finds its blocks.
    core.stopped.until(|| (*core.running.lock() <= 1).then_some(())).await;
    if committed.is_ok() {
        log_destaged(core).await;
    }
    // The seal and the records of destaged blocks count once a later frame is durable.
    let frame = core.log.request_frame();
    let over = || core.log.broken().is_some() || core.log.is_full();
    core.log.until(|| (core.log.durable() >= frame || over()).then_some(())).await;
    core.log.close();
    // The writer task may wait for space in a full log.
    core.space.wake();
    core.stopped.until(|| (*core.running.lock() == 0).then_some(())).await;
    committed?;
    core.members.rest(core.log.durable()).await;
    // A device that did not answer meanwhile was reported as lost, and is not used at the next start either.
    record_losses(core).await;
    Ok(core.segments.blocks().1 * crate::buffer::BLOCK as u64)
}

/// Starts the tasks of an engine.
fn start_tasks(core: &Arc<Core>) {
    let leader = Arc::downgrade(core);
    core.log.set_lead(move || leader.upgrade().is_some_and(|core| lead(&core)));
    core.start("forebay-log", run_log);
    start_destage_tasks(core);
    core.start("forebay-clean", run_clean);
    core.start("forebay-compact", run_compact);
    core.start("forebay-evict", run_evict);
    core.start("forebay-shares", run_shares);
    core.start("forebay-scrub", run_scrub);
    core.start("forebay-rewrite", run_rewrite);
    core.start("forebay-devices", run_device_watch);
}
