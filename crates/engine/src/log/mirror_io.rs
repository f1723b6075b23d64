//! Reads and writes of slots on the devices, and the handling of failed devices.

use forebay_common::lock::atomic::Ordering;

use crate::buffer::{BLOCK, Buffer, Slice};
use crate::engine::Engine;
use crate::event::Event;
use crate::format::Place;
use crate::io::{Device, DeviceError, Durability};
use crate::maintain::deadline::GivenUp;
use crate::plant;
use crate::pool::SEGMENTS_START;
use crate::segments::Segment;
use crate::wait::all;

/// Number of neighbouring slots that are read from one device, so that reads of a run stay together.
const PART: u16 = 64;

impl Engine {
    /// Returns the offset of a slot on its device, in bytes.
    pub(crate) fn offset(&self, place: Place, slot: u16) -> u64 {
        SEGMENTS_START + u64::from(place.segment) * self.segment_size + u64::from(slot) * BLOCK as u64
    }

    /// Returns the number of slots of a segment.
    pub(crate) fn slots(&self) -> usize {
        self.segment_size as usize / BLOCK
    }

    /// Writes `data` from `slot` on to all of `legs` at once. Failed devices are lost, durably, before this returns.
    /// Returns false if no leg that is still in use took the write.
    pub(crate) async fn write_legs(
        &self,
        legs: &[(Place, Slice)],
        slot: u16,
        durability: Durability,
    ) -> bool {
        let writes = legs.iter().filter_map(|(place, data)| {
            let device = self.device(place.device)?;
            Some((place.device, device.write(self.offset(*place, slot), data.clone(), durability)))
        });
        let (devices, writes): (Vec<_>, Vec<_>) = writes.unzip();
        let bytes: u64 = legs.iter().map(|(_, data)| data.len() as u64).sum();
        self.totals.ssd_written.add(bytes);
        let losses = self.losses.load(Ordering::Acquire);
        let mut written = Vec::new();
        for (device, result) in devices.into_iter().zip(all(writes).await) {
            match result {
                Ok(()) => written.push(device),
                // A device may have taken the data in part, so it cannot be trusted as a leg any more.
                Err(_) => self.lose(device).await,
            }
        }
        // This includes losses that another task found.
        if !plant::active("a frame is acknowledged before a lost leg is recorded") {
            self.record_losses().await;
        }
        if self.losses.load(Ordering::Acquire) != losses {
            // Recovery ignores a device that the pool has given up meanwhile.
            written.retain(|device| self.device(*device).is_some());
        }
        !written.is_empty()
    }

    /// Returns the leg of a segment to read from: the one whose device has fewer operations in flight. So reads avoid
    /// a device that is slow or does not answer. Between equally busy devices, each serves a part of every segment.
    pub(crate) fn leg_to_read(&self, segment: &Segment, slot: u16) -> Option<Place> {
        let [first, second] = segment.legs[..] else { return segment.legs.first().copied() };
        let devices = self.devices.read();
        let under_way = |place: Place| {
            let device = devices.get(usize::from(place.device))?;
            device.as_ref().map(|device| device.under_way())
        };
        let first_is_better = match (under_way(first), under_way(second)) {
            (Some(one), Some(other)) if one == other => (slot / PART).is_multiple_of(2),
            (one, other) => other.is_none_or(|other| one.is_some_and(|one| one < other)),
        };
        Some(if first_is_better { first } else { second })
    }

    /// Reads `blocks` slots of one leg.
    pub(crate) async fn read_leg(
        &self,
        place: Place,
        slot: u16,
        blocks: usize,
    ) -> Result<Buffer, DeviceError> {
        let device = self.device(place.device).ok_or(DeviceError::Gone)?;
        let (buffer, result) = device.read(self.offset(place, slot), Buffer::zeroed(blocks)).await;
        if result.is_err_and(DeviceError::is_final) {
            self.lose(place.device).await;
        }
        result.map(|()| buffer)
    }

    /// Stops using a device. The loss is durable on the remaining devices when this returns.
    pub(crate) async fn lose(&self, index: u16) {
        self.drop_device(index);
        // This holds for a second caller as well: no task continues before the loss is durable.
        if !plant::active("a frame is acknowledged before a lost leg is recorded") {
            self.record_losses().await;
        }
        self.look_at_devices();
    }

    /// Stops using a device. Nothing may be acknowledged before [`Engine::record_losses`] has returned.
    fn drop_device(&self, index: u16) {
        let device = {
            let mut devices = self.devices.write();
            let device = devices.get_mut(usize::from(index)).and_then(Option::take);
            if device.is_some() {
                self.unrecorded.lock().push(index);
                self.losses.fetch_add(1, Ordering::Release);
            }
            device
        };
        if let Some(device) = device {
            // A failing device may hang as well, and a change of the pool may be writing to it now.
            device.give_up(GivenUp::Unused);
            self.segments.lose(index);
            self.event(Event::DeviceLost { device: device.name().to_owned(), left: self.active() });
            self.look_at_mirror();
        }
    }

    /// Lets the log continue with fewer devices, or stops it if none is left.
    fn look_at_devices(&self) {
        match self.active() {
            // Tasks that wait for the log must get the error even if no task writes.
            0 => drop(self.log.kick()),
            _ if self.segments.devices() > 1 => self.log.want_roll(),
            _ => {}
        }
        self.destager.wake();
        self.space.wake();
    }

    /// Makes the losses durable on the remaining devices, also losses that another task found. Nothing may be
    /// acknowledged before.
    pub(crate) async fn record_losses(&self) {
        loop {
            let next = self.unrecorded.lock().first().copied();
            let Some(index) = next else { return };
            let given_up = self.members.lose(index, &self.log).await;
            // A device on which the loss could not be recorded is dropped before any task may continue.
            given_up.into_iter().for_each(|other| self.drop_device(other));
            self.unrecorded.lock().retain(|other| *other != index);
            self.look_at_devices();
        }
    }
}
