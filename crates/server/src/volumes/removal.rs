//! The removal of volumes in service.
//!
//! A removal waits for the backing device of its volume while other commands may change the volume. So a removal that
//! gives up the data can follow one that waits.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use forebay_control::VolumeStatus;
use forebay_engine::io::Clock as _;
use forebay_engine::wait::before;
use forebay_runtime::{SystemClock, block_on_apart};
use forebay_volume::volume::Volume;

use super::patience::{PATIENCE, destage_in_time, destage_while_it_goes_on};
use super::record::Removed;
use super::{Entry, Serving, Volumes, forget_removed, unwritten};

/// How far the backing device has answered when the use of its volume ends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Device {
    /// No request is in progress.
    Quiet,
    /// A request to the device has not ended. The device stays open until it ends.
    Silent,
}

impl Volumes {
    /// Removes a volume in service after all of its data is destaged. With `give_up`, data that cannot be destaged is
    /// dropped.
    pub(super) fn remove(&self, name: &str, give_up: bool) -> Result<Vec<VolumeStatus>, String> {
        let Some(Serving { engine, store }) = self.serving.get() else {
            return Err(format!("volume {name} cannot be destaged: this server has no cache"));
        };
        let entry = self.begin_removal(name, give_up)?;
        let ended = match entry.volume.clone() {
            Some(volume) => end_use(name, &volume, give_up)?,
            None => Device::Quiet,
        };
        let change = self.changing.begin(name);
        let removed = change.as_ref().map_err(Clone::clone).and_then(|_| self.record_end(name, &entry));
        let removed = removed.inspect_err(|_| {
            // The volume stays in service.
            entry.volume.iter().for_each(|volume| volume.resume());
        })?;
        store.release(removed.uuid);
        entry.volume.iter().for_each(|volume| volume.release());
        // If the log or the file fails from here on, the next start ends the removal.
        if forget_removed(engine, store, &removed).is_ok() {
            self.removed.lock().retain(|it| *it != removed);
            let _ = self.keep();
        }
        let backing = entry.record.backing.display();
        let then = match ended {
            Device::Quiet => "is an ordinary device again",
            Device::Silent => "does not answer, and is an ordinary device when its last request ends",
        };
        self.tell("volume-removed", name, format!("volume {name} is removed; {backing} {then}"));
        Ok(Vec::new())
    }

    /// Returns the volume that is to be removed. A volume that is refused has no device any more then.
    fn begin_removal(&self, name: &str, give_up: bool) -> Result<Entry, String> {
        let _change = self.changing.begin(name)?;
        let entry = self.known(name)?;
        if self.settings.volumes.iter().any(|configured| configured.name == name) {
            return Err(format!(
                "volume {name} is in the configuration; remove it there first, and start again"
            ));
        }
        not_attached(&entry)?;
        // A state directory without room is noticed before clients notice anything.
        self.keep().map_err(|error| format!("volume {name} stays: {}", unwritten(&error)))?;
        if entry.volume.is_none() {
            if !give_up {
                let reason = entry.device.as_ref().err().cloned().unwrap_or_default();
                return Err(format!(
                    "volume {name} is not served: {reason}; give up its data with --give-up"
                ));
            }
            // The device, if there is one, has no data that could still be written.
            self.detach(name, true)?;
        }
        Ok(entry)
    }

    /// Records that a volume, whose use has ended, is removed. Other changes may have been made since it was looked up.
    fn record_end(&self, name: &str, entry: &Entry) -> Result<Removed, String> {
        let now = self.known(name).ok().filter(|now| now.record.uuid == entry.record.uuid);
        let now = now.ok_or_else(|| format!("volume {name} was removed meanwhile"))?;
        not_attached(&now)?;
        if self.devices.leaving.load(Ordering::SeqCst) {
            return Err(format!("volume {name} stays: the server stops"));
        }
        let removed = Removed { uuid: now.record.uuid, size: now.record.identity.size };
        self.record_removal(&removed)
            .map_err(|error| format!("volume {name} stays: {}", unwritten(&error)))?;
        Ok(removed)
    }

    /// Records durably that a volume is removed, which decides that it is. After an error nothing has changed.
    fn record_removal(&self, removed: &Removed) -> std::io::Result<()> {
        let _recording = self.recording.lock();
        let mut records = self.records();
        records.volumes.retain(|record| record.uuid != removed.uuid);
        records.removed.push(removed.clone());
        self.write(&records)?;
        self.removed.lock().push(removed.clone());
        self.all.lock().retain(|entry| entry.record.uuid != removed.uuid);
        Ok(())
    }
}

/// Fails if a volume in service has a block device.
fn not_attached(entry: &Entry) -> Result<(), String> {
    let (Some(attached), Some(_)) = (entry.record.ublk, &entry.volume) else { return Ok(()) };
    let name = &entry.record.name;
    let device = forebay_block::ublk::block_device(attached.number);
    Err(format!(
        "volume {name} is attached as {}; detach it first with `forebay volume detach {name}`",
        device.display()
    ))
}

/// Ends the use of a volume that is to be removed: no client has it, and its backing device has all of its data. With
/// `give_up` the data may be in the log only. After an error the volume is in service.
fn end_use(name: &str, volume: &Arc<Volume>, give_up: bool) -> Result<Device, String> {
    let stopping = volume.clone();
    let is_quiet = block_on_apart(async move {
        before(SystemClock::default().sleep(PATIENCE), stopping.stop()).await.is_some()
    });
    let ended = match (is_quiet, give_up) {
        (false, true) => Ok(Device::Silent),
        (false, false) => Err(format!("a request is not answered within {} seconds", PATIENCE.as_secs())),
        (true, true) if destage_while_it_goes_on(volume) => Ok(Device::Quiet),
        (true, true) => Ok(Device::Silent),
        (true, false) => destage_in_time(volume).map(|()| Device::Quiet).map_err(|error| error.to_string()),
    };
    ended.map_err(|error| {
        volume.resume();
        format!("volume {name} stays: its data cannot be destaged: {error}; give it up with --give-up")
    })
}
