//! The state of volumes for people and programs.

use forebay_control::VolumeStatus;

use super::record::Record;
use super::{Entry, Volumes};
use crate::cache::config_mode;

impl Volumes {
    /// Returns a sentence for each volume that is not served, or whose device is not connected, and one if NBD is not
    /// served.
    pub(crate) fn troubles(&self) -> Vec<String> {
        let trouble = |entry: &Entry| match &entry.device {
            Err(reason) => Some(format!("volume {} is not served: {reason}", entry.record.name)),
            Ok(device) => Some(format!("volume {}: {}", entry.record.name, device.trouble()?)),
        };
        let door = self.door_trouble.lock().clone();
        self.all.lock().iter().filter_map(trouble).chain(door).collect()
    }

    /// Returns the state of all volumes.
    pub(crate) fn statuses(&self) -> Vec<VolumeStatus> {
        self.all.lock().clone().iter().map(|entry| self.status(entry)).collect()
    }

    /// Returns the status of a volume for the control protocol. A volume that is refused has the reason, and zeros as
    /// counters.
    pub(super) fn status(&self, Entry { record, device, volume }: &Entry) -> VolumeStatus {
        let counted = volume.as_ref().map(|volume| volume.counted()).unwrap_or_default();
        let reason = device.as_ref().err().cloned();
        let mode = volume.as_ref().map_or(self.settings.mode, |volume| config_mode(volume.mode()));
        VolumeStatus {
            name: record.name.clone(),
            uuid: crate::cache::written(record.uuid),
            backing: record.backing.clone(),
            size_bytes: record.identity.size,
            state: if reason.is_none() { "serving" } else { "refused" }.to_owned(),
            reason,
            own_mode: record.mode,
            mode,
            read_only: record.read_only,
            serial: record.identity.serial.clone(),
            dirty_bytes: volume.as_ref().map_or_else(|| self.dirty_of(record), |volume| volume.dirty_bytes()),
            device: self.devices.number(&record.name).map(forebay_block::ublk::block_device),
            no_device: None,
            caution: None,
            nbd: self.door.get().filter(|_| volume.is_some()).cloned(),
            reads: counted.reads,
            read_bytes: counted.read_bytes,
            writes: counted.writes,
            written_bytes: counted.written_bytes,
            flushes: counted.flushes,
            discarded_bytes: counted.discarded_bytes,
            errors: counted.errors,
        }
    }

    /// Returns the dirty bytes of a volume that is not served.
    fn dirty_of(&self, record: &Record) -> u64 {
        let serving = self.serving.get();
        let object = serving.and_then(|it| it.engine.known(&forebay_volume::key::key(record.uuid)));
        object.map_or(0, |object| object.dirty_blocks() * forebay_engine::buffer::BLOCK as u64)
    }
}
