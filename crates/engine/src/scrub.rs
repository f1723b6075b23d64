//! Scrubbing: what nobody reads for long is read all the same, so that a bad copy is repaired while there is a good one.

use std::sync::Arc;
use std::time::Duration;

use crate::engine::Engine;
use crate::leaf::SegmentId;
use crate::segments::Segment;

/// Pause after each segment: clients come first.
const PAUSE: Duration = Duration::from_millis(500);

impl Engine {
    /// Scrubs everything, again and again, until the engine closes.
    pub(crate) async fn run_scrub(self: Arc<Self>) {
        while !self.closing() {
            self.rest(self.settings.scrub_every).await;
            for (id, segment) in self.segments.all() {
                if self.closing() {
                    return;
                }
                self.scrub_segment(id, &segment).await;
                self.rest(PAUSE).await;
            }
        }
    }

    /// Reads every copy of the segment's blocks; bad ones are repaired from the other leg, or dropped if clean.
    async fn scrub_segment(&self, id: SegmentId, segment: &Segment) {
        let Some(body) = self.read_footer(segment).await else { return };
        for (object, block) in self.blocks_of(&body) {
            let copy = object.lock().entry(block).copied();
            if let Some(copy) = copy.filter(|copy| copy.segment == id) {
                // What is damaged for good is told as an event.
                let _ = self.rescue(&object, block, &copy, true).await;
                self.totals.scrubbed.add(1);
            }
        }
    }
}
