//! Starts the write-back of streams while they still come in. Otherwise the disk idles until COMMIT, and then the
//! client waits for all data at once. Random and small writes are left to the kernel, which may merge them.

use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use crate::caches::budget::Budget;
use crate::caches::inode::Inode;
use crate::sys;

/// Steps that may wait for the disk; beyond them the disk is busy anyway and COMMIT finds the rest.
const WAITING: usize = 64;

/// The thread of one file system that starts write-back. It may have to wait for the device's queue, as no other thread
/// should. It ends with the value.
pub(crate) struct Writeback(SyncSender<(Arc<Inode>, Range<u64>)>);

impl Writeback {
    /// Starts the thread that has the kernel write data back.
    pub(crate) fn start(budget: Budget) -> std::io::Result<Self> {
        let (steps, receiver) = sync_channel(WAITING);
        let thread = std::thread::Builder::new().name("forebay-writeback".into());
        thread.spawn(move || run(&receiver, &budget))?;
        Ok(Writeback(steps))
    }

    /// Counts an UNSTABLE write.
    pub(crate) fn wrote(&self, object: &Arc<Inode>, offset: u64, len: u64) {
        if let Some(range) = object.stream.wrote(offset, len) {
            // Full: see WAITING.
            let _ = self.0.try_send((object.clone(), range));
        }
    }
}

/// Has the kernel begin to write back each range, until all senders are gone.
fn run(steps: &Receiver<(Arc<Inode>, Range<u64>)>, budget: &Budget) {
    for (object, range) in steps {
        if let Ok(fd) = object.writer(budget, true) {
            // An error, if any, is told to the COMMIT that waits.
            let _ = sys::sync_file_range(fd, range.start, range.end - range.start, false);
        }
        object.rest();
    }
}
