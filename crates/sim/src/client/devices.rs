//! An administrator's changes of the pool while clients work.

use std::sync::Arc;

use forebay_engine::ChangeError;
use forebay_engine::io::Device as _;

use super::Client;
use crate::disk::Disk;
use crate::hits::Fault;

impl Client {
    /// Adds a spare device, if there is one. Returns the device on success.
    pub async fn add_device(&mut self) -> Option<Disk> {
        self.add_foreign().await;
        let disk = self.shared.spares.lock().pop()?;
        self.shared.tell(|| format!("add {}", disk.name()));
        self.shared.joined.lock().push(disk.clone());
        let result = self.engine.add_device(Arc::new(disk.clone()), false).await;
        self.shared.tell(|| format!("add {}: {:?}", disk.name(), result.is_ok()));
        result.ok()?;
        self.shared.outdated.lock().retain(|name| name != disk.name());
        self.shared.hits.hit(Fault::DeviceAdded);
        Some(disk)
    }

    /// Tries to add a device of another owner, if there is one. The engine must refuse it and leave it unchanged.
    async fn add_foreign(&mut self) {
        let others = self.shared.foreign.lock().clone();
        if others.is_empty() {
            return;
        }
        let disk = self.rng.pick(&others);
        let before = disk.contents();
        let added = self.engine.add_device(Arc::new(disk.clone()), false).await;
        self.shared.hits.hit(Fault::ForeignAdded);
        if added.is_ok() || disk.contents() != before {
            self.shared.fail(format!("{} is another's, and was added: {added:?}", disk.name()));
        }
    }

    /// Adds again a device that has dropped out, with its old contents. In about half of the cases an administrator has
    /// cleared its ends before, so that the device counts as a new one.
    pub async fn add_again(&mut self, disk: &Disk) {
        let name = disk.name();
        let anew = self.rng.chance(5000);
        if anew {
            disk.forget_pool();
        }
        self.shared.tell(|| format!("add {name} again, as a new one: {anew}"));
        // A crash may come after the device is in the pool and before the client hears of that.
        self.shared.adding.lock().push(name.to_owned());
        let result = self.engine.add_device(Arc::new(disk.clone()), false).await;
        self.shared.tell(|| format!("add {name} again: {result:?}"));
        self.shared.adding.lock().retain(|other| other != name);
        if result.is_ok() {
            self.shared.outdated.lock().retain(|other| other != name);
            self.shared.lost.lock().retain(|other| other != name);
            let mut members = self.shared.members.lock();
            members.retain(|other| other != name);
            members.push(name.to_owned());
            self.shared.hits.hit(if anew { Fault::AddedAnew } else { Fault::AddedAgain });
        }
    }

    /// Removes one of the removable devices from the pool, if there is one.
    pub(super) async fn remove_device(&mut self) {
        let Some(disk) = self.shared.removable.lock().pop() else { return };
        // The removal fails if another device has died, because the pool then needs this one.
        let _ = self.remove(&disk).await;
    }

    /// Removes a device from the pool.
    ///
    /// # Errors
    /// The device stays in the pool.
    pub async fn remove(&mut self, disk: &Disk) -> Result<(), ChangeError> {
        self.shared.tell(|| format!("remove {}", disk.name()));
        let result = self.engine.remove_device(disk.name()).await;
        self.shared.tell(|| format!("remove {}: {result:?}", disk.name()));
        if result.is_ok() {
            self.shared.hits.hit(Fault::DeviceRemoved);
            // The device is out of the pool for good: its contents must not count any more.
            disk.vanish();
            self.shared.left.lock().push(disk.name().to_owned());
        }
        result
    }
}
