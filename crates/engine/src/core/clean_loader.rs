//! The progress of loading clean segments.

use forebay_common::lock::atomic::AtomicU64;

/// The progress of loading, in segments of the cache devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CleanLoading {
    /// Number of segments that were loaded or skipped.
    pub done: u64,
    /// Number of segments to load when service started.
    pub segments: u64,
}

/// The counters behind [`CleanLoading`].
#[derive(Debug, Default)]
pub(crate) struct CleanLoader {
    pub(crate) done: AtomicU64,
    pub(crate) segments: AtomicU64,
}
