//! Starts the write-back of streams while they still come in. Otherwise the disk idles until COMMIT, and then the
//! client waits for all data at once. Random and small writes are left to the kernel, which may merge them.

use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use forebay_common::lock::Mutex;

use crate::caches::inode::Inode;
use crate::caches::inode_cache::Budget;
use crate::sys;

/// Bytes of a stream that are started together: enough for a stripe of any array.
const STEP: u64 = 8 << 20;
/// Steps that may wait for the disk; beyond them the disk is busy anyway and COMMIT finds the rest.
const WAITING: usize = 64;

/// The range that was written UNSTABLE to one file since the last step.
#[derive(Debug, Default)]
pub(crate) struct Stream(Mutex<Extent>);

#[derive(Debug, Default)]
struct Extent {
    bytes: u64,
    covers: Range<u64>,
}

impl Stream {
    /// Counts a write. Returns the range to write back if a step is complete. Requests of a client run in parallel, so
    /// their order says nothing. A stream is a range of which at least half was written.
    fn wrote(&self, offset: u64, len: u64) -> Option<Range<u64>> {
        let mut extent = self.0.lock();
        let end = offset + len;
        extent.covers = match extent.bytes {
            0 => offset..end,
            _ => extent.covers.start.min(offset)..extent.covers.end.max(end),
        };
        extent.bytes += len;
        if extent.bytes < STEP {
            return None;
        }
        let Extent { bytes, covers } = std::mem::take(&mut *extent);
        (covers.end - covers.start <= 2 * bytes).then_some(covers)
    }
}

/// The thread of one file system that starts write-back. It may have to wait for the device's queue, as no other thread
/// should. It ends with the value.
pub(crate) struct Writeback(SyncSender<(Arc<Inode>, Range<u64>)>);

impl Writeback {
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

fn run(steps: &Receiver<(Arc<Inode>, Range<u64>)>, budget: &Budget) {
    for (object, range) in steps {
        if let Ok(fd) = object.writer(budget, true) {
            // An error, if any, is told to the COMMIT that waits.
            let _ = sys::sync_file_range(fd, range.start, range.end - range.start, false);
        }
        object.rest();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WRITE: u64 = 1 << 20;

    fn started(offsets: impl IntoIterator<Item = u64>) -> Vec<Range<u64>> {
        let stream = Stream::default();
        offsets.into_iter().filter_map(|offset| stream.wrote(offset, WRITE)).collect()
    }

    #[test]
    fn a_stream_is_started_step_by_step_in_whatever_order_it_comes() {
        assert_eq!(started((0..7).map(|n| n * WRITE)), []);
        assert_eq!(started((0..20).map(|n| n * WRITE)), [0..STEP, STEP..2 * STEP]);
        // Two and two swapped.
        assert_eq!(started((0..16).map(|n| (n ^ 2) * WRITE)), [0..STEP, STEP..2 * STEP]);
    }

    #[test]
    fn scattered_writes_are_left_alone() {
        assert_eq!(started((0..64).map(|n| n * 5 * WRITE)), []);
    }
}
