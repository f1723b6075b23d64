//! The operations that a device was asked for.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The operations that a device was asked for since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Reads.
    pub reads: u64,
    /// Bytes read.
    pub bytes_read: u64,
    /// Writes.
    pub writes: u64,
    /// Bytes written.
    pub bytes_written: u64,
    /// Flushes. Several of them may share one flush of the disk.
    pub flushes: u64,
}

/// The counters of a device.
#[derive(Debug, Default)]
pub(crate) struct TrafficCounters {
    reads: AtomicU64,
    bytes_read: AtomicU64,
    writes: AtomicU64,
    bytes_written: AtomicU64,
    flushes: AtomicU64,
}

impl TrafficCounters {
    /// Counts a READ of this many bytes.
    pub(crate) fn read(&self, bytes: usize) {
        self.reads.fetch_add(1, Relaxed);
        self.bytes_read.fetch_add(bytes as u64, Relaxed);
    }

    /// Counts a write. A write that has to be durable at once is a flush as well.
    pub(crate) fn write(&self, bytes: usize, flushes: bool) {
        self.writes.fetch_add(1, Relaxed);
        self.bytes_written.fetch_add(bytes as u64, Relaxed);
        if flushes {
            self.flush();
        }
    }

    pub(crate) fn flush(&self) {
        self.flushes.fetch_add(1, Relaxed);
    }

    /// Returns the counts since the device was opened. Counts of one moment may differ by operations in progress.
    pub(crate) fn now(&self) -> Traffic {
        Traffic {
            reads: self.reads.load(Relaxed),
            bytes_read: self.bytes_read.load(Relaxed),
            writes: self.writes.load(Relaxed),
            bytes_written: self.bytes_written.load(Relaxed),
            flushes: self.flushes.load(Relaxed),
        }
    }
}
