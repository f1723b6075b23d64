//! A device before it is a member. Reading and erasing it does not need the pool, so a silent device delays no change
//! of the pool meanwhile.

use std::sync::Arc;

use super::error::PoolError;
use super::identify::{Contents, identify};
use super::make::{check_size, wipe};
use crate::io::Device;

/// A device that is to be added, and its contents.
pub struct Candidate {
    pub(super) device: Arc<dyn Device>,
    pub(super) contents: Contents,
}

impl std::fmt::Debug for Candidate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Candidate").field(&self.device.name()).field(&self.contents).finish()
    }
}

impl Candidate {
    /// Reads the contents of a device.
    ///
    /// # Errors
    /// A size out of range; [`PoolError::Unreadable`].
    pub async fn look(device: Arc<dyn Device>) -> Result<Self, PoolError> {
        check_size(device.as_ref())?;
        match identify(device.as_ref()).await {
            Ok(contents) => Ok(Candidate { device, contents }),
            Err(error) => Err(PoolError::Unreadable { device: device.name().to_owned(), error }),
        }
    }

    /// Erases both ends of the device, durably, once [`Pool::may_join`](super::Pool::may_join) permits it.
    ///
    /// # Errors
    /// [`PoolError::Unwritable`].
    pub async fn erase(&self) -> Result<(), PoolError> {
        wipe(self.device.as_ref()).await
    }
}
