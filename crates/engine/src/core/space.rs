//! The room in the log and on the cache devices.

use forebay_common::lock::atomic::Ordering;

use super::Core;
use crate::segments::LogUse;
use crate::volume::Volume;
use crate::volume::throttle::{FULL, Load};

/// Unused segments of each device that clients must leave while a volume is in trouble.
const TROUBLE_RESERVE: usize = 4;

impl Core {
    /// Returns how full the log is: 1 is its share of the pool, which overwritten blocks may exceed. The dirty blocks
    /// of volumes in trouble count for those volumes only. The other volumes share the rest.
    pub(crate) fn log_load(&self, volume: &Volume) -> Load {
        let LogUse { segments, share, dirty, left } = self.segments.log_use();
        let (share, slots) = (share.max(1) as f64, self.slots() as f64);
        let set_apart = if volume.is_troubled() { 0 } else { self.destager.volumes.troubled_blocks() };
        let dirty = dirty.saturating_sub(set_apart) as f64 / (share * slots - set_apart as f64).max(slots);
        let space = segments as f64 / share;
        // The last unused segments are for reappends. Otherwise the log tail could never move.
        let last =
            self.destager.volumes.any_troubled() && self.segments.unused_everywhere() < TROUBLE_RESERVE;
        let space = if last { space.max(FULL) } else { space };
        Load { dirty, space, share: share * slots, freed: left * slots }
    }

    /// Returns true if there are more than `spare` unused segments for the log. With `given_up`, segments count that
    /// become unused once that is durable.
    pub(crate) fn finds_segments(&self, spare: usize, given_up: bool) -> bool {
        self.segments.could_open(self.segments.devices().min(2), spare, given_up)
    }

    /// Returns true if clean blocks can be written without evicting others, as of the last segment that was opened or
    /// freed.
    pub(crate) fn has_room(&self) -> bool {
        self.roomy.load(Ordering::Relaxed)
    }

    /// Finds out if clean blocks can be written without evicting others, for [`Core::has_room`].
    pub(crate) fn look_for_room(&self) {
        let free = self.segments.least_free(&self.active_devices(), true);
        self.roomy.store(free > self.spare_segments() + 1, Ordering::Relaxed);
    }

    /// Returns true if every device has `segments` free segments, counting those that a frame will free.
    pub(crate) fn has_free(&self, segments: usize) -> bool {
        self.segments.least_free(&self.active_devices(), true) >= segments
    }

    /// Returns the indexes of the devices in use.
    pub(crate) fn active_devices(&self) -> Vec<u16> {
        let devices = self.devices.read();
        (0..devices.len() as u16).filter(|index| devices[usize::from(*index)].is_some()).collect()
    }

    /// Returns the number of segments of each device to be kept free.
    pub(crate) fn spare_segments(&self) -> usize {
        6.max(self.segments.log_use().share / 32)
    }
}
