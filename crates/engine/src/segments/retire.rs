//! Removal of a device from use.
//!
//! While two other devices are present, no more data is put on the leaving device. With one other device, the log
//! continues on both, and accepts no data that needs two copies. So until the removal is recorded, the loss of either
//! device costs nothing.

use super::{Inner, SegmentId, Segments};
use crate::format::SegmentKind;

/// The device that is being removed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Retiring {
    device: u16,
    /// True while the removal is about to be recorded, with segments of the log on the device.
    going: bool,
}

impl Inner {
    /// Returns true if a device is in use, and is not being removed. Returns false for a device that is about to
    /// join.
    pub(super) fn stays(&self, device: usize) -> bool {
        self.is_there(device) && !self.is_retiring(device)
    }

    /// Returns true if new segments of the log are put on a device.
    pub(super) fn takes_log(&self, device: usize) -> bool {
        self.takes(SegmentKind::Log, device)
    }

    /// Returns true if new segments are put on a device.
    pub(super) fn takes(&self, kind: SegmentKind, device: usize) -> bool {
        let needed = kind == SegmentKind::Log && self.staying() < 2;
        self.stays(device) || (needed && self.is_there(device))
    }

    fn is_there(&self, device: usize) -> bool {
        self.totals.get(device).is_some_and(|total| *total > 0)
    }

    fn is_retiring(&self, device: usize) -> bool {
        self.retiring.is_some_and(|retiring| usize::from(retiring.device) == device)
    }

    fn staying(&self) -> usize {
        (0..self.totals.len()).filter(|device| self.stays(*device)).count()
    }

    /// Returns true if one device will be left, so that data that needs two copies is not accepted.
    pub(super) fn leaves_one(&self) -> bool {
        self.retiring.is_some_and(|retiring| retiring.going || self.staying() < 2)
    }

    /// Returns true if a segment of the log has a leg on the device.
    fn log_is_on(&self, device: u16) -> bool {
        let mut segments = self.log.iter().filter_map(|id| self.table.get(id));
        segments.any(|segment| segment.legs.iter().any(|place| place.device == device))
    }
}

impl Segments {
    /// Returns the device that is being removed.
    pub(crate) fn retiring(&self) -> Option<u16> {
        self.inner.lock().retiring.map(|retiring| retiring.device)
    }

    /// Begins the removal of a device. Returns the device that is being removed already, if any.
    pub(crate) fn retire(&self, device: u16) -> Option<u16> {
        let mut inner = self.inner.lock();
        if let Some(other) = inner.retiring {
            return Some(other.device);
        }
        inner.retiring = Some(Retiring { device, going: false });
        None
    }

    /// Ends the removal: the device is out of use, or stays in use.
    pub(crate) fn end_retiring(&self) {
        self.inner.lock().retiring = None;
    }

    /// Returns the number of devices in use that are not being removed.
    pub(crate) fn staying(&self) -> usize {
        self.inner.lock().staying()
    }

    /// Returns true if a device was lost.
    pub(crate) fn is_lost(&self, device: u16) -> bool {
        !self.inner.lock().is_there(device.into())
    }

    /// Returns true if the other devices can do without the device that is being removed. That is so if two devices
    /// stay and no segment of the log is on it, or if it was lost. It is also so if one device stays and the log
    /// holds no data that needs two copies. No such data was accepted since segment `since`.
    pub(crate) fn may_go(&self, device: u16, since: Option<u64>) -> bool {
        let mut inner = self.inner.lock();
        inner.advance();
        let staying = inner.staying();
        let rid = !inner.log_is_on(device) && (staying > 1 || !inner.is_there(device.into()));
        let drained = |since| staying == 1 && inner.dirty == 0 && inner.reach().tail >= since;
        let goes = since.is_some_and(drained);
        if let Some(retiring) = &mut inner.retiring {
            retiring.going = goes;
        }
        rid || goes
    }

    /// Returns the number of dirty blocks to be destaged before the device that is being removed may go; `None` if no
    /// device is being removed.
    pub(crate) fn dirty_before_removal(&self) -> Option<u64> {
        let inner = self.inner.lock();
        let device = inner.retiring?.device;
        if inner.staying() < 2 {
            return Some(inner.dirty);
        }
        let segments: Vec<_> = inner.log.iter().filter_map(|id| inner.table.get(id)).collect();
        let is_on = |segment: &&super::Segment| segment.legs.iter().any(|place| place.device == device);
        // Segments leave the log oldest first, so all up to the last one on the device have to go.
        let last = segments.iter().rposition(is_on).map_or(0, |last| last + 1);
        Some(segments[..last].iter().map(|segment| u64::from(segment.dirty)).sum())
    }

    /// Returns the segments on the device that are not part of the log.
    pub(crate) fn not_in_log_on(&self, device: u16) -> Vec<SegmentId> {
        let inner = self.inner.lock();
        let mut found: Vec<SegmentId> = Vec::new();
        for (id, segment) in &inner.table {
            let here = segment.legs.iter().any(|place| place.device == device);
            found.extend((here && !inner.log.contains(id)).then_some(*id));
        }
        found
    }

    /// Returns the lowest `seq` that the next segment may have.
    pub(crate) fn next_seq(&self) -> u64 {
        self.inner.lock().next_seq
    }
}
