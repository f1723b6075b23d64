//! The count of the blocks of pinned objects on the cache devices.

use crate::index::object::State;
use crate::segments::Segments;

impl State {
    /// Records whether the object is pinned, and counts its blocks on the cache devices accordingly.
    pub(crate) fn set_pinned(&mut self, pinned: bool, segments: &Segments) {
        if self.pinned != pinned {
            let blocks = self.leaves.values().map(|leaf| leaf.on_ssd().count() as u64).sum();
            if pinned {
                segments.pin(blocks)
            } else {
                segments.unpin(blocks)
            }
            self.pinned = pinned;
        }
    }
}
