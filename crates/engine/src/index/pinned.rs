//! The counts of the blocks on the cache devices for policies: of pinned objects, of those of high priority, and of
//! shares.

use std::sync::Arc;

use crate::index::object::State;
use crate::index::policy::Standing;
use crate::index::share::Share;
use crate::planted_bugs;
use crate::segments::Segments;

impl State {
    /// Moves the object's blocks on the cache devices to another count.
    pub(crate) fn set_standing(&mut self, standing: Standing, segments: &Segments) {
        if self.standing != standing {
            let blocks = self.on_ssd();
            segments.count(standing, blocks);
            let old = std::mem::replace(&mut self.standing, standing);
            if !(old == Standing::High && planted_bugs::active("high priority stays counted")) {
                segments.uncount(old, blocks);
            }
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
        segments.count(self.standing, 1);
    }

    /// Uncounts a block that the index does not have on the cache devices any more.
    pub(super) fn uncount_on_ssd(&self, segments: &Segments) {
        self.share.iter().for_each(|share| share.uncount(1));
        segments.uncount(self.standing, 1);
    }

    fn on_ssd(&self) -> u64 {
        self.leaves.values().map(|leaf| leaf.on_ssd().count() as u64).sum()
    }
}
