//! The task that loses devices in turn. A device vanishes, clients go on, and the device comes back and is added again.
//! After the engine reports that everything is on two devices, another device vanishes.

use std::time::Duration;

use forebay_engine::io::{Clock as _, Device as _};

use crate::client::Client;
use crate::disk::Disk;
use crate::hits::Fault;
use crate::rng::Rng;

/// The state of the task.
pub struct Turner {
    /// A client of the engine and the world.
    pub client: Client,
    /// Every device.
    pub disks: Vec<Disk>,
    /// The source of the task's choices.
    pub rng: Rng,
}

impl Turner {
    /// Runs for ever.
    pub async fn run(mut self) {
        let longest = self.rng.pick(&[1, 20, 500, 5000]) * Duration::from_millis(1);
        let mut before = None;
        loop {
            let rest = self.rng.time(Duration::ZERO, longest) + Duration::from_micros(10);
            self.client.shared.executor.sleep(rest).await;
            if self.rng.chance(5000) {
                before = self.lose_one(before);
            } else {
                self.bring_back().await;
            }
        }
    }

    /// Lets a device vanish if the engine can do without it. `before` is the name of the device that vanished last.
    fn lose_one(&mut self, before: Option<String>) -> Option<String> {
        let shared = self.client.shared.clone();
        let lost = shared.lost.lock().clone();
        let members = shared.members.lock().clone();
        let used = self.disks.iter().filter(|disk| {
            let is_this = |name: &String| name == disk.name();
            members.iter().any(is_this) && !lost.iter().any(is_this)
        });
        let used: Vec<Disk> = used.cloned().collect();
        // The engine may not have noticed yet that a device has vanished.
        if used.len() < 2 || used.iter().any(Disk::is_gone) || !self.client.engine.is_mirrored() {
            return before;
        }
        let disk = self.rng.pick(&used);
        shared.tell(|| format!("{} goes", disk.name()));
        disk.vanish();
        shared.hits.hit(Fault::Vanished);
        if before.is_some_and(|before| before != disk.name()) {
            shared.hits.hit(Fault::GoneInTurn);
        }
        Some(disk.name().to_owned())
    }

    /// Lets one of the lost devices appear with its old contents, and adds it to the pool again.
    async fn bring_back(&mut self) {
        let lost = self.client.shared.lost.lock().clone();
        let gone = self.disks.iter().filter(|disk| lost.iter().any(|name| name == disk.name()));
        let gone: Vec<Disk> = gone.cloned().collect();
        if !gone.is_empty() {
            let disk = self.rng.pick(&gone);
            disk.appear();
            self.client.add_again(&disk).await;
        }
    }
}
