//! Events that an administrator should know of.

use std::time::Duration;

use crate::io::BackingError;

/// An event of the engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A cache device failed and is not used any more.
    DeviceLost {
        /// Its name.
        device: String,
        /// How many are left.
        left: usize,
    },
    /// A cache device has not answered for long. It is lost next if another one answers. Told once until it has.
    DeviceLate {
        /// Its name.
        device: String,
        /// How long.
        after: Duration,
    },
    /// A cache device joined the pool.
    DeviceAdded {
        /// Its name.
        device: String,
    },
    /// A cache device was drained and left the pool.
    DeviceRemoved {
        /// Its name.
        device: String,
    },
    /// The removal of a cache device was given up: it is in use as before.
    DeviceKept {
        /// Its name.
        device: String,
    },
    /// The log of a pool that never had a second device cannot be read: everything cached was dropped. The backing store
    /// has it all.
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
    /// Every copy of a dirty block is bad: reading it fails.
    Damaged {
        /// The object's key, in hexadecimal.
        object: String,
        /// The block's offset in bytes.
        offset: u64,
    },
    /// Destaging to a volume fails; it is tried again. Told once until it succeeds.
    BackingFailed {
        /// The volume's name.
        volume: String,
        /// Why.
        error: BackingError,
    },
    /// A volume has not answered a request of destaging for long. Told once until it has.
    BackingLate {
        /// Its name.
        volume: String,
        /// How long.
        after: Duration,
    },
    /// Destaging to a volume works again.
    BackingHealed {
        /// The volume's name.
        volume: String,
    },
    /// Not everything dirty is on two devices, or there are no two: writes go through to the backing store.
    Degraded {
        /// Devices left, but for one that is being removed.
        left: usize,
    },
    /// Everything dirty is on two devices again: writes are cached again.
    Restored,
}
