//! Scrub: reads every copy on the cache devices, so that a bad copy is repaired while there is a good one. A scrub
//! runs at intervals with pauses, or without pauses when an administrator asks for it.

use forebay_common::lock::atomic::Ordering;
use std::sync::Arc;
use std::time::Duration;

use crate::core::Core;
use crate::core::scrubber::Scrub;
use crate::log::footers::read_footer;
use crate::segments::{Segment, SegmentId};
use crate::tiers::copies::read_other_copy;
use crate::{Error, Result};

/// The pause after each segment: clients come first.
const PAUSE: Duration = Duration::from_millis(500);

/// Returns the scrub in progress, or the last one.
pub(crate) fn scrub_status(core: &Core) -> Scrub {
    *core.scrubber.scrub.lock()
}

/// Requests a scrub without pauses, after a scrub in progress. Returns the number of the requested scrub.
pub(crate) fn start_scrub(core: &Core) -> u64 {
    core.scrubber.wanted.store(true, Ordering::Release);
    let number = scrub_status(core).number + 1;
    core.destager.work.wake();
    number
}

/// Requests a scrub without pauses, and waits for its end.
pub(crate) async fn scrub(core: &Core) -> Result<Scrub> {
    let number = start_scrub(core);
    let ended = || {
        let scrub = scrub_status(core);
        let through = scrub.number > number || (scrub.number == number && !scrub.running);
        through.then_some(Ok(scrub)).or_else(|| core.closing().then_some(Err(Error::Closing)))
    };
    core.scrubber.ended.until(ended).await
}

/// Scrubs all segments repeatedly, until the engine closes.
pub(crate) async fn run_scrub(core: Arc<Core>) {
    let wanted = || core.scrubber.wanted.load(Ordering::Acquire);
    while !core.closing() {
        core.rest_unless(core.settings.scrub_every, wanted).await;
        let hurried = core.scrubber.wanted.swap(false, Ordering::AcqRel);
        scrub_all(&core, || hurried || wanted()).await;
        core.scrubber.wake();
    }
}

/// Reads all segments once and repairs their blocks. Rests between segments unless `hurried`.
async fn scrub_all(core: &Core, hurried: impl Fn() -> bool) {
    let all = core.segments.all();
    {
        let mut scrub = core.scrubber.scrub.lock();
        let (number, segments) = (scrub.number + 1, all.len() as u64);
        *scrub = Scrub { number, running: true, segments, ..Scrub::default() };
    }
    for (id, segment) in all {
        if core.closing() {
            return;
        }
        scrub_segment(core, id, &segment).await;
        core.scrubber.scrub.lock().done += 1;
        if !hurried() {
            core.rest_unless(PAUSE, &hurried).await;
        }
    }
    core.scrubber.scrub.lock().running = false;
}

/// Reads every copy of the segment's blocks. Bad copies are repaired from the other leg, or dropped if clean.
async fn scrub_segment(core: &Core, id: SegmentId, segment: &Segment) {
    let Some(body) = read_footer(core, segment).await else { return };
    for (object, block) in core.objects.blocks_of(&body) {
        let copy = object.lock().entry(block).copied();
        let Some(copy) = copy.filter(|copy| copy.segment == id) else { continue };
        let other = read_other_copy(core, &object, block, &copy, true).await;
        core.totals.scrubbed.add(1);
        let mut scrub = core.scrubber.scrub.lock();
        scrub.checked += 1;
        match other {
            Ok(other) => {
                scrub.repaired += other.repaired;
                scrub.dropped += u64::from(other.dropped);
            }
            Err(Error::Damaged) => scrub.lost += 1,
            Err(_) => {}
        }
    }
}
