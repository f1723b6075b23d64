//! The epoch in use, as recorded outside of the devices.

use std::sync::Arc;

use super::error::PoolError;
use super::table::{Member, Pool};
use crate::io::{Leg, Witness};
use crate::planted_bugs;

/// The pool's witness, if it has one, and the highest epoch that the witness had given out when the pool was opened.
#[derive(Clone, Default)]
pub(super) struct WitnessRecord(Option<(Arc<dyn Witness>, u64)>);

impl std::fmt::Debug for WitnessRecord {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.0.is_some())
    }
}

impl Pool {
    /// Compares the epoch in use with the witness's record, and from now on reports every change to the witness.
    ///
    /// # Errors
    /// [`PoolError::OutOfDate`] if the pool was used without the present devices, [`PoolError::Unknown`]. Nothing was
    /// written.
    pub async fn watch(&mut self, witness: Arc<dyn Witness>) -> Result<(), PoolError> {
        let noted = witness.noted(self.uuid).await.map_err(PoolError::Unknown)?;
        if noted.in_use > self.in_use
            && !planted_bugs::active("what is noted of the epoch in use does not count")
        {
            let devices: Vec<_> = self.present().map(|(_, device)| device.name().to_owned()).collect();
            return Err(PoolError::OutOfDate {
                devices: devices.join(" and "),
                found: self.in_use,
                noted: noted.in_use,
            });
        }
        self.watched = WitnessRecord(Some((witness, noted.given)));
        Ok(())
    }

    /// Raises the epoch to the last one that the witness has recorded as given out. An absent device may carry that
    /// epoch, so the next epoch has to be higher. Changes nothing if there is no witness.
    pub(super) fn pass_over_given(&mut self) {
        if let WitnessRecord(Some((_, given))) = self.watched {
            self.epoch = self.epoch.max(given);
        }
    }

    /// Has the witness record that the next epoch is given out.
    pub(super) async fn ask_for_epoch(&self) -> Result<(), PoolError> {
        let WitnessRecord(Some((witness, _))) = &self.watched else { return Ok(()) };
        if planted_bugs::active("epochs are not given out") {
            return Ok(());
        }
        witness.give(self.uuid, self.epoch + 1).await.map_err(PoolError::Unnoted)
    }

    /// Has the witness record the epoch in use. This comes after all members carry it, since a device that lacks a
    /// recorded epoch would be refused. It comes before anything is acknowledged in the epoch.
    pub(super) async fn tell_witness(&self) -> Result<(), PoolError> {
        let WitnessRecord(Some((witness, _))) = &self.watched else { return Ok(()) };
        let leg = |(member, device): (&Member, &Arc<dyn crate::io::Device>)| Leg {
            uuid: member.uuid,
            name: device.name().to_owned(),
        };
        let legs = self.present().map(leg).collect();
        witness.note(self.uuid, self.in_use, legs).await.map_err(PoolError::Unnoted)
    }
}
