//! The task that removes devices from the pool, one after another. Another device may die for good meanwhile, which
//! this task does too.

use std::time::Duration;

use forebay_engine::ChangeError;
use forebay_engine::io::{Clock as _, Device as _};

use crate::client::Client;
use crate::disk::Disk;
use crate::hits::Fault;
use crate::rng::Rng;

/// The state of the task.
pub struct Leaver {
    /// A client of the engine and the world.
    pub client: Client,
    /// The device that may die.
    pub victim: Disk,
    /// True if the victim dies in this session.
    pub dies: bool,
    /// The source of the task's choices.
    pub rng: Rng,
}

impl Leaver {
    /// Runs as long as there is a device to remove.
    pub async fn run(mut self) {
        let longest = self.rng.pick(&[1, 10, 100, 2000]) * Duration::from_millis(1);
        while let Some(disk) = self.next() {
            let rest = self.rng.time(Duration::ZERO, longest);
            self.client.shared.executor.sleep(rest).await;
            self.remove(disk).await;
            if self.rng.chance(5000) {
                self.add().await;
            }
        }
    }

    /// Takes a device from the removable ones, rather not the one that may die. `None` if no living device is
    /// removable.
    fn next(&mut self) -> Option<Disk> {
        let mut removable = self.client.shared.removable.lock();
        removable.retain(|disk| !disk.is_gone());
        let others = removable.iter().filter(|disk| disk.name() != self.victim.name());
        let others: Vec<String> = others.map(|disk| disk.name().to_owned()).collect();
        let name = match &others[..] {
            [_, ..] if self.rng.chance(8000) => self.rng.pick(&others),
            _ => removable.get(self.rng.index(removable.len()))?.name().to_owned(),
        };
        let at = removable.iter().position(|disk| disk.name() == name)?;
        Some(removable.remove(at))
    }

    /// Removes a device from the pool. If the plan says so, the victim dies during the removal or after it. A device
    /// that the engine keeps is removable again.
    async fn remove(&mut self, disk: Disk) {
        let alive = !self.victim.is_gone();
        if self.dies && alive {
            let most = self.rng.pick(&[10, 40, 100, 400]);
            self.victim.vanish_in(Some(self.rng.below(most)));
        }
        let removed = self.client.remove(&disk).await;
        let hits = &self.client.shared.hits;
        if alive && self.victim.is_gone() && disk.name() != self.victim.name() {
            hits.hit(Fault::DiedInRemoval);
        }
        match removed {
            Ok(()) if self.dies && !self.victim.is_gone() && self.rng.chance(7000) => {
                hits.hit(Fault::DiedAfterRemoval);
                self.victim.vanish();
            }
            Ok(()) => {}
            Err(error) => {
                hits.hit(if matches!(error, ChangeError::Busy(_)) {
                    Fault::RemovalBusy
                } else {
                    Fault::RemovalKept
                });
                self.client.shared.removable.lock().push(disk);
                // Without a pause the task would retry at once, for ever.
                self.client.shared.executor.sleep(Duration::from_secs(1)).await;
            }
        }
    }

    /// Adds a spare device, which may be removed later.
    async fn add(&mut self) {
        if let Some(disk) = self.client.add_device().await {
            self.client.shared.removable.lock().push(disk);
        }
    }
}
