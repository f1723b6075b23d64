//! Opens a pool without a silent device, if the other devices are enough.

use std::sync::Arc;
use std::time::Duration;

use forebay_common::lock::Mutex;

use super::error::PoolError;
use super::looking::{Looked, look_durably};
use super::open::{Seen, decide};
use super::table::Pool;
use crate::event::Event;
use crate::io::{Clock, Device, DeviceError, Witness};
use crate::planted_bugs;
use crate::pool::deadline::{GivenUp, TICKS, Ticks, Watched};
use crate::wait::{all, beside};

/// The limits within which an opening waits for a device.
#[derive(Clone)]
pub struct Patience {
    /// The clock of the deadline.
    pub clock: Arc<dyn Clock>,
    /// The time after which a silent device is left out, if the other devices answer and are enough.
    pub deadline: Duration,
    /// Knows the epoch in use, and so decides whether the other devices are enough.
    pub witness: Option<Arc<dyn Witness>>,
    /// Receives the events for the administrator.
    pub events: Arc<dyn Fn(Event) + Send + Sync>,
}

/// A device that is being read.
struct Looking {
    device: Arc<Watched>,
    looked: Mutex<Option<Looked>>,
    /// True if the event that the start waits for the device was sent.
    awaited: Mutex<bool>,
}

impl Pool {
    /// Opens the pool as [`Pool::open`] does, without the devices that miss the deadline, if the other devices answer
    /// and are enough. [`Pool::notices`] then names the silent devices. Otherwise it waits, and sends
    /// [`Event::DeviceAwaited`].
    ///
    /// # Errors
    /// Those of [`Pool::open`].
    pub async fn open_within(devices: Vec<Arc<dyn Device>>, patience: &Patience) -> Result<Pool, PoolError> {
        let ticks = Arc::new(Ticks::default());
        let looking = |device: &Arc<dyn Device>| Looking {
            device: Watched::new(device.clone(), &ticks),
            looked: Mutex::default(),
            awaited: Mutex::default(),
        };
        let looking: Vec<_> = devices.iter().map(looking).collect();
        let looks = looking.iter().map(|one| {
            Box::pin(async move {
                let looked = look_durably(one.device.as_ref()).await;
                *one.looked.lock() = Some(looked);
            })
        });
        let giving_up = async {
            loop {
                patience.clock.sleep(patience.deadline / TICKS).await;
                ticks.advance();
                patience.give_up_late(&looking).await;
            }
        };
        beside(giving_up, all(looks.collect())).await;
        let looked = looking.into_iter().filter_map(|one| one.looked.into_inner());
        Pool::of(devices, looked.collect())
    }
}

impl Patience {
    /// Gives up the late devices, if all other devices have answered and are enough.
    async fn give_up_late(&self, looking: &[Looking]) {
        let unfinished = || looking.iter().filter(|one| one.looked.lock().is_none());
        let late: Vec<_> = unfinished().filter(|one| one.device.is_late()).collect();
        for one in late.iter().filter(|one| one.device.is_untold()) {
            (self.events)(Event::DeviceLate { device: one.device.name().to_owned(), after: self.deadline });
        }
        if planted_bugs::active("a device is waited for while the pool is opened") {
            return;
        }
        // A device that is not late yet may be needed.
        if late.is_empty() || late.len() < unfinished().count() {
            return;
        }
        let seen = |one: &Looking| Seen {
            name: one.device.name().to_owned(),
            size: one.device.size(),
            contents: one.looked.lock().as_ref().map_or(Err(DeviceError::Silent), |(seen, _)| seen.clone()),
        };
        if self.are_enough(&looking.iter().map(seen).collect::<Vec<_>>()).await {
            late.iter().for_each(|one| one.device.give_up(GivenUp::Late));
            return;
        }
        for one in late.iter().filter(|one| !std::mem::replace(&mut *one.awaited.lock(), true)) {
            (self.events)(Event::DeviceAwaited {
                device: one.device.name().to_owned(),
                after: self.deadline,
            });
        }
    }

    /// Returns true if the pool can be opened with these contents, and no other device knows a newer epoch in use.
    async fn are_enough(&self, seen: &[Seen]) -> bool {
        if planted_bugs::active("a device that is needed is left out of the pool") {
            return true;
        }
        let Ok(decision) = decide(seen) else { return false };
        let Some(witness) = &self.witness else { return true };
        let noted = witness.noted(decision.superblock.pool).await;
        noted.is_ok_and(|noted| noted.in_use <= decision.superblock.in_use)
    }
}

impl std::fmt::Debug for Patience {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Patience").field("deadline", &self.deadline).finish_non_exhaustive()
    }
}
