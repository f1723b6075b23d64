//! The state of clients in the cache's log, for the server above.

use std::sync::atomic::Ordering;

use forebay_metalog::{Snapshot, log_state};
use forebay_runtime::tasks;

use crate::durability::journal::Done;
use crate::export::vfs::Vfs;

/// The most bytes of one change of clients' state.
pub const STATE_MAX: usize = forebay_oplog::STATE_MAX;

impl Vfs {
    /// Returns true if there is a log, to which all changes of clients' state go, whatever the mode.
    pub fn logs_state(&self) -> bool {
        self.cache.get().is_some()
    }

    /// Returns true if the log makes changes of clients' state durable on two devices now.
    pub fn keeps_state(&self) -> bool {
        self.cache.get().is_some_and(|cache| forebay_metalog::Log::is_write_back(&**cache.oplog.log()))
    }

    /// Returns the number of a change of clients' state, for [`Vfs::log_state`], or `None` without a cache. The caller
    /// holds the lock of the state, so that the numbers tell the order.
    pub fn number_state(&self) -> Option<u64> {
        Some(self.cache.get()?.oplog.number_state())
    }

    /// Appends a change of clients' state to the log: at most [`STATE_MAX`] bytes. Calls `done`, if there is one, when
    /// the change is durable. After a crash [`Vfs::set_cache`] returns the change. May wait for room in the log; on an
    /// event loop a task waits.
    pub fn log_state(&self, number: u64, bytes: Vec<u8>, done: Option<Done>) {
        let first = self.cache.get().and_then(|_| self.filesystems().first());
        match first.and_then(|fs| Some((fs.clone(), fs.linked()?))) {
            Some((fs, linked)) => {
                let logging = linked.logging.clone();
                // No lock is held: this thread may write the frame.
                tasks::run_to_end(Box::pin(async move {
                    log_state(&fs, &logging, number, bytes, done).await;
                }));
            }
            None => done.into_iter().for_each(|done| done(Ok(()))),
        }
    }

    /// Returns true if clients were served without the log since it was in use: it was lost while a server ran and came
    /// back, or another server was there. The state of clients in it is out of date, and none was returned.
    pub fn state_is_lost(&self) -> bool {
        self.state_is_lost.load(Ordering::Acquire)
    }

    /// Keeps the state of clients in the log: the snapshot replaces records that the log releases. The first call
    /// counts, and comes after [`Vfs::set_cache`].
    pub fn keep_state(&self, snapshot: Snapshot) {
        if let Some(cache) = self.cache.get() {
            cache.checkpoints.shared.keep_state(snapshot);
        }
    }
}
