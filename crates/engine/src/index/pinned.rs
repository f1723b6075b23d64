//! The counts of the blocks on the cache devices for policies: of pinned objects, and of shares.

use std::sync::Arc;

use crate::index::object::State;
use crate::index::share::Share;
use crate::segments::Segments;

impl State {
    /// Records whether the object is pinned, and counts its blocks on the cache devices accordingly.
    pub(crate) fn set_pinned(&mut self, pinned: bool, segments: &Segments) {
        if self.pinned != pinned {
            let blocks = self.on_ssd();
            if pinned {
                segments.pin(blocks)
            } else {
                segments.unpin(blocks)
            }
            self.pinned = pinned;
        }
    }

    /// Puts the object into a share, and takes it out of the share that it was in.
    pub(crate) fn set_share(&mut self, share: Option<Arc<Share>>) {
        let number = |share: &Option<Arc<Share>>| share.as_ref().map(Arc::as_ptr);
        if number(&self.share) != number(&share) {
            let blocks = self.on_ssd();
            share.iter().for_each(|new| new.count(blocks));
            let old = std::mem::replace(&mut self.share, share);
            old.iter().for_each(|old| old.uncount(blocks));
        }
    }

    /// Counts a block that the index has on the cache devices now.
    pub(super) fn count_on_ssd(&self, segments: &Segments) {
        self.share.iter().for_each(|share| share.count(1));
        if self.pinned {
            segments.pin(1);
        }
    }

    /// Uncounts a block that the index does not have on the cache devices any more.
    pub(super) fn uncount_on_ssd(&self, segments: &Segments) {
        self.share.iter().for_each(|share| share.uncount(1));
        if self.pinned {
            segments.unpin(1);
        }
    }

    fn on_ssd(&self) -> u64 {
        self.leaves.values().map(|leaf| leaf.on_ssd().count() as u64).sum()
    }
}
