//! What others do to an object of the backing store, behind the cache's back.

use std::sync::Arc;

use crate::Result;
use crate::engine::Engine;
use crate::error::Error;
use crate::io::{BackingError, Key};
use crate::object::{Busy, Object};

impl Engine {
    /// The object `key` names if the cache knows anything of it, and whether this is the first time that it is asked for
    /// since the pool was opened, with only clean blocks known: then they may be older than what the backing store has.
    /// `size` is the backing store's, as for [`Engine::object`].
    pub fn meet(&self, key: &Key, size: u64) -> Option<(Arc<Object>, bool)> {
        let object = self.known(key)?;
        let mut state = object.lock();
        let first = !std::mem::replace(&mut state.sized, true);
        if first {
            state.size = size;
        }
        drop(state);
        Some((object, first))
    }

    /// Others have changed the object, which has `size` bytes now: nothing clean of it counts, durably when this returns.
    /// What the backing store does not have yet stays and will be written over their change.
    ///
    /// # Errors
    /// The object is gone, or no cache device is left.
    pub async fn changed_outside(&self, object: &Arc<Object>, size: u64) -> Result<()> {
        let (pages, copies) = {
            let mut state = object.lock();
            if state.gone {
                return Err(Error::Backing(BackingError::Gone));
            }
            if state.dirty > 0 || state.busy != Busy::No || state.directs > 0 || state.truncating.is_some() {
                return Ok(());
            }
            state.size = size;
            state.drop_range(0..u64::MAX, &self.segments)
        };
        self.ram.removed(pages);
        if copies > 0 {
            let frame = self.invalidate(object, 0..u64::MAX).await?;
            self.commit(frame).await?;
        }
        Ok(())
    }

    /// Bytes that only the cache has.
    pub fn dirty_bytes(&self) -> u64 {
        self.segments.blocks().1 * crate::buffer::BLOCK as u64
    }
}
