//! A device is taken out of use.
//!
//! While two others are there, nothing more is put on it. With one other, the log goes on on both of them and takes nothing
//! any more that needs two copies: until the others know that it is gone, the loss of either costs nothing.

use super::{Inner, Segments};
use crate::format::SegmentKind;
use crate::index::leaf::SegmentId;

/// The device that is being removed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Retiring {
    device: u16,
    /// The others are about to be told, while segments of the log are on it.
    going: bool,
}

impl Inner {
    /// Whether a device is in use, and is not being removed. False for one that is only about to join.
    pub(super) fn stays(&self, device: usize) -> bool {
        self.is_there(device) && !self.is_retiring(device)
    }

    /// Whether new segments of the log are put on a device.
    pub(super) fn takes_log(&self, device: usize) -> bool {
        self.takes(SegmentKind::Log, device)
    }

    /// Whether new segments are put on a device.
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

    /// Whether one device will be left: what needs two copies is not accepted any more.
    pub(super) fn leaves_one(&self) -> bool {
        self.retiring.is_some_and(|retiring| retiring.going || self.staying() < 2)
    }

    fn log_is_on(&self, device: u16) -> bool {
        let mut segments = self.log.iter().filter_map(|id| self.table.get(id));
        segments.any(|segment| segment.legs.iter().any(|place| place.device == device))
    }
}

impl Segments {
    /// The device that is being taken out of use.
    pub(crate) fn retiring(&self) -> Option<u16> {
        self.inner.lock().retiring.map(|retiring| retiring.device)
    }

    /// Begins to take a device out of use. Returns another one, or the same, that is being taken out already.
    pub(crate) fn retire(&self, device: u16) -> Option<u16> {
        let mut inner = self.inner.lock();
        if let Some(other) = inner.retiring {
            return Some(other.device);
        }
        inner.retiring = Some(Retiring { device, going: false });
        None
    }

    /// It is out of use, or in use as before.
    pub(crate) fn end_retiring(&self) {
        self.inner.lock().retiring = None;
    }

    /// Devices in use that are not being removed.
    pub(crate) fn staying(&self) -> usize {
        self.inner.lock().staying()
    }

    /// Whether a device has died.
    pub(crate) fn is_lost(&self, device: u16) -> bool {
        !self.inner.lock().is_there(device.into())
    }

    /// Whether the others can do without the device that is being removed: no segment of the log is on it, or, where only one
    /// is left, nothing that needs two copies is in the log. Since segment `since` that has not been accepted.
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

    /// Segments on the device that are not part of the log.
    pub(crate) fn not_in_log_on(&self, device: u16) -> Vec<SegmentId> {
        let inner = self.inner.lock();
        let mut found: Vec<SegmentId> = Vec::new();
        for (id, segment) in &inner.table {
            let here = segment.legs.iter().any(|place| place.device == device);
            found.extend((here && !inner.log.contains(id)).then_some(*id));
        }
        found
    }

    /// The `seq` that the next segment will have, at least.
    pub(crate) fn next_seq(&self) -> u64 {
        self.inner.lock().next_seq
    }
}
