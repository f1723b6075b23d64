//! Events that an administrator should know of.

use std::time::Duration;

use crate::io::{BackingError, Key};

/// An event of the engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A cache device failed and is not used any more.
    DeviceLost {
        /// The device's name.
        device: String,
        /// Number of devices left.
        left: usize,
        /// True if the device had the last copies of data that the backing store lacks.
        data_lost: bool,
    },
    /// A cache device has not answered for long, and is lost next if another device answers. The event is sent once,
    /// until the device answers.
    DeviceLate {
        /// The device's name.
        device: String,
        /// How long the device has not answered.
        after: Duration,
    },
    /// A cache device has not answered for long while the pool is opened, and the pool cannot be opened without it. The
    /// start waits for it. Reported once for each device.
    DeviceAwaited {
        /// The device's name.
        device: String,
        /// How long the device has not answered.
        after: Duration,
    },
    /// A cache device joined the pool.
    DeviceAdded {
        /// The device's name.
        device: String,
    },
    /// A cache device was drained and left the pool.
    DeviceRemoved {
        /// The device's name.
        device: String,
    },
    /// The removal of a cache device was given up: the device stays in use.
    DeviceKept {
        /// The device's name.
        device: String,
    },
    /// The log of a pool that never had a second device cannot be read. All cached data was dropped. The backing
    /// store has all of it.
    LogDropped,
    /// Every clean copy that was on the cache devices at the start is loaded.
    Warm {
        /// Clean blocks of 4 KiB on the devices now.
        clean_blocks: u64,
    },
    /// A bad copy of a dirty block was rewritten from the other leg.
    Repaired {
        /// The device with the bad copy.
        device: String,
    },
    /// A bad clean copy was dropped; the backing store has the data.
    Dropped {
        /// The device with the bad copy.
        device: String,
    },
    /// Every copy of a dirty block is bad: a read of the block fails.
    Damaged {
        /// The name of the object's volume.
        volume: String,
        /// The object.
        object: Key,
        /// The block's offset in bytes.
        offset: u64,
    },
    /// Destaging to a volume fails, and is tried again. The event is sent once, until destaging succeeds.
    BackingFailed {
        /// The volume's name.
        volume: String,
        /// The error of the backing store.
        error: BackingError,
    },
    /// A volume has not answered a destage request for long. The event is sent once, until the volume answers.
    BackingLate {
        /// The volume's name.
        volume: String,
        /// How long the volume has not answered.
        after: Duration,
    },
    /// Destaging to a volume works again.
    BackingHealed {
        /// The volume's name.
        volume: String,
    },
    /// Some dirty data is not on two devices, or fewer than two devices are left: writes go through to the backing
    /// store.
    Degraded {
        /// Number of devices left, without a device that is being removed.
        left: usize,
    },
    /// All dirty data is on two devices again: writes are cached again.
    Restored,
}
