//! The state of scrubs.

use forebay_common::lock::Mutex;
use forebay_common::lock::atomic::AtomicBool;

use crate::wait::Gate;

/// The scrub in progress, or the last one. Blocks are of 4 KiB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scrub {
    /// The scrub's number since the engine was opened; 0 if there was none.
    pub number: u64,
    /// True if the scrub is in progress.
    pub running: bool,
    /// Number of segments that were scrubbed.
    pub done: u64,
    /// Number of segments when the scrub began.
    pub segments: u64,
    /// Number of blocks of which every copy was read.
    pub checked: u64,
    /// Number of bad copies that were rewritten from good ones.
    pub repaired: u64,
    /// Number of clean blocks with bad copies that were dropped; the backing store has them.
    pub dropped: u64,
    /// Number of dirty blocks of which no copy can be read.
    pub lost: u64,
}

/// The state that the scrub task shares with tasks that ask for a scrub.
#[derive(Debug, Default)]
pub(crate) struct Scrubber {
    pub(crate) scrub: Mutex<Scrub>,
    pub(crate) wanted: AtomicBool,
    pub(crate) ended: Gate,
}

impl Scrubber {
    /// Wakes tasks that wait for a scrub.
    pub(crate) fn wake(&self) {
        self.ended.wake();
    }
}
