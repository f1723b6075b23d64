//! External changes of an object of the backing store.

use std::sync::Arc;

use crate::Result;
use crate::core::Core;
use crate::error::Error;
use crate::index::object::{Busy, CachedObject};
use crate::io::{BackingError, Key};
use crate::request::bypass::void_durably;

/// Returns the object of `key` if it is in the index. `size` is the backing store's size, as in
/// [`Engine::object`](crate::Engine::object).
pub(crate) fn known_with_size(core: &Core, key: &Key, size: u64) -> Option<Arc<CachedObject>> {
    let object = core.known(key)?;
    let mut state = object.lock();
    if !std::mem::replace(&mut state.sized, true) {
        state.size = size;
    }
    drop(state);
    Some(object)
}

/// Drops the clean copies of an object after an external change, durably when this returns. The object now has
/// `size` bytes and version `number`. If the backing store lacks changes of the object, nothing is done and the
/// result is false: they will be written over the external change.
pub(crate) async fn changed_outside(
    core: &Core,
    object: &Arc<CachedObject>,
    size: u64,
    number: u64,
) -> Result<bool> {
    let (pages, copied) = {
        let mut state = object.lock();
        if state.gone {
            return Err(Error::Backing(BackingError::Gone));
        }
        let unsettled = state.dirty > 0 || state.mtime.is_some() || state.truncating.is_some();
        if unsettled || state.busy != Busy::No || state.bypass_writes > 0 {
            return Ok(false);
        }
        state.size = size;
        (state.drop_range(0..u64::MAX, &core.segments).0, state.may_be_copied(&core.segments))
    };
    core.ram.removed(pages);
    // This covers copies dropped from the index as well. A copy found again after a crash would be destaged again
    // if it is still in the log.
    if copied {
        void_durably(core, object, 0..u64::MAX).await?;
    }
    let suspected = object.watch.replace(number);
    core.totals.changed_outside.add(u64::from(suspected));
    Ok(true)
}
