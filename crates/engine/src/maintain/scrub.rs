//! Scrub: reads every copy on the cache devices, so that a bad copy is repaired while there is a good one. A scrub
//! runs at intervals with pauses, or without pauses when an administrator asks for it.

use forebay_common::lock::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::Duration;

use crate::engine::Engine;
use crate::index::leaf::SegmentId;
use crate::segments::Segment;
use crate::wait::Gate;
use crate::{Error, Result};
use forebay_common::lock::Mutex;

/// The pause after each segment: clients come first.
const PAUSE: Duration = Duration::from_millis(500);

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
    scrub: Mutex<Scrub>,
    wanted: AtomicBool,
    ended: Gate,
}

impl Scrubber {
    /// Wakes tasks that wait for a scrub.
    pub(crate) fn wake(&self) {
        self.ended.wake();
    }
}

impl Engine {
    /// Returns the scrub in progress, or the last one.
    pub fn scrub_status(&self) -> Scrub {
        *self.scrubber.scrub.lock()
    }

    /// Requests a scrub without pauses, after a scrub in progress. Returns the number of the requested scrub.
    pub fn start_scrub(&self) -> u64 {
        self.scrubber.wanted.store(true, Ordering::Release);
        let number = self.scrub_status().number + 1;
        self.destager.work.wake();
        number
    }

    /// Requests a scrub without pauses, and waits for its end.
    ///
    /// # Errors
    /// The engine is closing.
    pub async fn scrub(&self) -> Result<Scrub> {
        let number = self.start_scrub();
        let ended = || {
            let scrub = self.scrub_status();
            let through = scrub.number > number || (scrub.number == number && !scrub.running);
            through.then_some(Ok(scrub)).or_else(|| self.closing().then_some(Err(Error::Closing)))
        };
        self.scrubber.ended.until(ended).await
    }

    /// Scrubs all segments repeatedly, until the engine closes.
    pub(crate) async fn run_scrub(self: Arc<Self>) {
        let wanted = || self.scrubber.wanted.load(Ordering::Acquire);
        while !self.closing() {
            self.rest_unless(self.settings.scrub_every, wanted).await;
            let hurried = self.scrubber.wanted.swap(false, Ordering::AcqRel);
            self.scrub_all(|| hurried || wanted()).await;
            self.scrubber.wake();
        }
    }

    async fn scrub_all(&self, hurried: impl Fn() -> bool) {
        let all = self.segments.all();
        {
            let mut scrub = self.scrubber.scrub.lock();
            let (number, segments) = (scrub.number + 1, all.len() as u64);
            *scrub = Scrub { number, running: true, segments, ..Scrub::default() };
        }
        for (id, segment) in all {
            if self.closing() {
                return;
            }
            self.scrub_segment(id, &segment).await;
            self.scrubber.scrub.lock().done += 1;
            if !hurried() {
                self.rest_unless(PAUSE, &hurried).await;
            }
        }
        self.scrubber.scrub.lock().running = false;
    }

    /// Reads every copy of the segment's blocks. Bad copies are repaired from the other leg, or dropped if clean.
    async fn scrub_segment(&self, id: SegmentId, segment: &Segment) {
        let Some(body) = self.read_footer(segment).await else { return };
        for (object, block) in self.blocks_of(&body) {
            let copy = object.lock().entry(block).copied();
            let Some(copy) = copy.filter(|copy| copy.segment == id) else { continue };
            let rescued = self.rescue(&object, block, &copy, true).await;
            self.totals.scrubbed.add(1);
            let mut scrub = self.scrubber.scrub.lock();
            scrub.checked += 1;
            match rescued {
                Ok(rescued) => {
                    scrub.repaired += rescued.repaired;
                    scrub.dropped += u64::from(rescued.dropped);
                }
                Err(Error::Damaged) => scrub.lost += 1,
                Err(_) => {}
            }
        }
    }
}
