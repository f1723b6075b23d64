//! The epoch in use, as it is known outside of the devices.

use std::sync::Arc;

use super::{Pool, PoolError};
use crate::io::{Leg, Witness};
use crate::plant;

/// The witness of a pool, if it has one.
#[derive(Clone, Default)]
pub(super) struct Watched(Option<Arc<dyn Witness>>);

impl std::fmt::Debug for Watched {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.0.is_some())
    }
}

impl Pool {
    /// Compares the epoch in use with what `witness` knows, and from now on tells it of every change.
    ///
    /// # Errors
    /// [`PoolError::OutOfDate`] if the pool was used without the devices that are here, [`PoolError::Unknown`]. Nothing was
    /// written.
    pub async fn watch(&mut self, witness: Arc<dyn Witness>) -> Result<(), PoolError> {
        let noted = witness.noted(self.uuid).await.map_err(PoolError::Unknown)?;
        if noted > self.in_use && !plant::active("what is noted of the epoch in use does not count") {
            let devices: Vec<_> = self.present().map(|(_, device)| device.name().to_owned()).collect();
            return Err(PoolError::OutOfDate { devices: devices.join(" and "), found: self.in_use, noted });
        }
        self.watched = Watched(Some(witness));
        Ok(())
    }

    /// Has the witness note the epoch in use: after all members carry it, since a device that only was to carry it would be
    /// refused, and before anything is acknowledged in it.
    pub(super) async fn tell_witness(&self) -> Result<(), PoolError> {
        let Watched(Some(witness)) = &self.watched else { return Ok(()) };
        let leg = |(member, device): (&super::Member, &Arc<dyn crate::io::Device>)| Leg {
            uuid: member.uuid,
            name: device.name().to_owned(),
        };
        let legs = self.present().map(leg).collect();
        witness.note(self.uuid, self.in_use, legs).await.map_err(PoolError::Unnoted)
    }
}
