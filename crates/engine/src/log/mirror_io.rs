//! Reads and writes of slots on the devices, and the handling of failed devices.

use forebay_common::lock::atomic::Ordering;

use crate::buffer::{Buffer, Slice};
use crate::core::Core;
use crate::event::Event;
use crate::format::Place;
use crate::io::{Device, DeviceError, Durability};
use crate::planted_bugs;
use crate::pool::deadline::GivenUp;
use crate::segments::Segment;
use crate::wait::all;

/// Number of neighbouring slots that are read from one device, so that reads of a run stay together.
const PART: u16 = 64;

/// Writes `data` from `slot` on to all of `legs` at once. Failed devices are lost, durably, before this returns.
/// Returns false if no leg that is still in use took the write.
pub(crate) async fn write_legs(
    core: &Core,
    legs: &[(Place, Slice)],
    slot: u16,
    durability: Durability,
) -> bool {
    let writes = legs.iter().filter_map(|(place, data)| {
        let device = core.device(place.device)?;
        Some((place.device, device.write(core.offset(*place, slot), data.clone(), durability)))
    });
    let (devices, writes): (Vec<_>, Vec<_>) = writes.unzip();
    let bytes: u64 = legs.iter().map(|(_, data)| data.len() as u64).sum();
    core.totals.ssd_written.add(bytes);
    let losses = core.losses.load(Ordering::Acquire);
    let mut written = Vec::new();
    for (device, result) in devices.into_iter().zip(all(writes).await) {
        match result {
            Ok(()) => written.push(device),
            // A device may have taken the data in part, so it cannot be trusted as a leg any more.
            Err(_) => lose(core, device).await,
        }
    }
    // This includes losses that another task found.
    if !planted_bugs::active("a frame is acknowledged before a lost leg is recorded") {
        record_losses(core).await;
    }
    if core.losses.load(Ordering::Acquire) != losses {
        // Recovery ignores a device that the pool has given up meanwhile.
        written.retain(|device| core.device(*device).is_some());
    }
    !written.is_empty()
}

/// Returns the leg of a segment to read from: the one whose device has fewer operations in flight. So reads avoid
/// a device that is slow or does not answer. Between equally busy devices, each serves a part of every segment.
pub(crate) fn leg_to_read(core: &Core, segment: &Segment, slot: u16) -> Option<Place> {
    let [first, second] = segment.legs[..] else { return segment.legs.first().copied() };
    let devices = core.devices.read();
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
    core: &Core,
    place: Place,
    slot: u16,
    blocks: usize,
) -> Result<Buffer, DeviceError> {
    let device = core.device(place.device).ok_or(DeviceError::Gone)?;
    let (buffer, result) = device.read(core.offset(place, slot), Buffer::zeroed(blocks)).await;
    if result.is_err_and(DeviceError::is_final) {
        lose(core, place.device).await;
    }
    result.map(|()| buffer)
}

/// Stops using a device. The loss is durable on the remaining devices when this returns.
pub(crate) async fn lose(core: &Core, index: u16) {
    drop_device(core, index);
    // This holds for a second caller as well: no task continues before the loss is durable.
    if !planted_bugs::active("a frame is acknowledged before a lost leg is recorded") {
        record_losses(core).await;
    }
    look_at_devices(core);
}

/// Stops using a device. Nothing may be acknowledged before [`record_losses`] has returned.
fn drop_device(core: &Core, index: u16) {
    let device = {
        let mut devices = core.devices.write();
        let device = devices.get_mut(usize::from(index)).and_then(Option::take);
        if device.is_some() {
            core.unrecorded.lock().push(index);
            core.losses.fetch_add(1, Ordering::Release);
        }
        device
    };
    if let Some(device) = device {
        // A failing device may hang as well, and a change of the pool may be writing to it now.
        device.give_up(GivenUp::Unused);
        let data_lost = core.segments.lose(index);
        let (device, left) = (device.name().to_owned(), core.active());
        core.event(Event::DeviceLost { device, left, data_lost });
        look_at_mirror(core);
    }
}

/// Lets the log continue with fewer devices, or stops it if none is left.
fn look_at_devices(core: &Core) {
    match core.active() {
        // Tasks that wait for the log must get the error even if no task writes.
        0 => drop(core.log.request_frame()),
        _ if core.segments.devices() > 1 => core.log.want_roll(),
        _ => {}
    }
    core.destager.wake();
    core.space.wake();
}

/// Makes the losses durable on the remaining devices, also losses that another task found. Nothing may be
/// acknowledged before.
pub(crate) async fn record_losses(core: &Core) {
    loop {
        let next = core.unrecorded.lock().first().copied();
        let Some(index) = next else { return };
        let given_up = core.members.lose(index, |epoch| core.log.set_epoch(epoch)).await;
        // A device on which the loss could not be recorded is dropped before any task may continue.
        given_up.into_iter().for_each(|other| drop_device(core, other));
        core.unrecorded.lock().retain(|other| *other != index);
        look_at_devices(core);
    }
}

/// Determines again if all dirty data is on two devices, and reports a change.
pub(crate) fn look_at_mirror(core: &Core) {
    let mut known = core.mirror.lock();
    let now = core.log.with_segment(|head| core.segments.is_mirrored(head));
    // A task that sees `mirrored` set must find that the log accepts its data.
    if now {
        core.log.set_mirrored(true);
    }
    core.mirrored.store(now, Ordering::Release);
    if !now {
        core.log.set_mirrored(false);
        // User records may have to be released.
        core.notes.changed.wake();
    }
    match known.replace(now) {
        Some(before) if before == now => return,
        Some(_) if now => core.event(Event::Restored),
        // One device from the start on is no change to report.
        None if now || core.segments.devices() < 2 => {}
        _ => core.event(Event::Degraded { left: core.segments.staying() }),
    }
    drop(known);
    core.destager.throttle.changed.wake();
    core.destager.wake();
    core.space.wake();
}
