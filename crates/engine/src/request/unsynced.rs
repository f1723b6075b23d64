//! Unsynced blocks: blocks written past the log that no sync has covered yet. The backing store holds them only in
//! memory, and a power cut may bring their old contents back. So no copy of them goes to the cache devices. Such a
//! copy would outlive the backing store's contents, and reads would go back in time once the copy is evicted.

use std::ops::Range;
use std::sync::Arc;

use crate::buffer::BLOCK;
use crate::index::object::{CachedObject, blocks};

/// A sync of an object's backing file by the engine's user.
#[must_use]
pub struct Syncing {
    object: Arc<CachedObject>,
    number: u64,
}

impl CachedObject {
    /// Begins a sync of `len` bytes of the object's backing file at `offset`, or of everything behind `offset` if
    /// `len` is 0. The sync makes durable all data written there with
    /// [`Engine::end_bypass`](crate::Engine::end_bypass) before this call. Returns `None` if there is no such data.
    pub fn begin_sync(self: &Arc<Self>, offset: u64, len: u64) -> Option<Syncing> {
        let mut state = self.lock();
        if state.volatile.is_empty() {
            return None;
        }
        // A sync of a part of a block covers the whole block.
        let range = blocks(offset, len);
        let end = if len == 0 { u64::MAX } else { range.end * BLOCK as u64 };
        let number = state.volatile.begin(range.start * BLOCK as u64..end);
        Some(Syncing { object: self.clone(), number })
    }

    /// Returns true if a failed sync may have lost bytes of `range` that were not written again since.
    pub fn has_lost(&self, range: &Range<u64>) -> bool {
        self.lock().volatile.has_lost_in(range)
    }
}

impl Syncing {
    /// Ends the sync.
    pub fn end(self, succeeded: bool) {
        self.object.lock().volatile.end(self.number, succeeded);
    }
}
