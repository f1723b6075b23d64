//! The reasons why a pool cannot be made, opened or changed, and the findings when it can. Each message is one
//! sentence: the problem, the device, and what to do.

use crate::io::{DeviceError, WitnessError};

/// A UUID as people write it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Uuid(pub u128);

impl std::fmt::Display for Uuid {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let id = self.0;
        let (a, b, c) = (id >> 96, (id >> 80) & 0xffff, (id >> 64) & 0xffff);
        write!(f, "{a:08x}-{b:04x}-{c:04x}-{:04x}-{:012x}", (id >> 48) & 0xffff, id & 0xffff_ffff_ffff)
    }
}

impl std::fmt::Debug for Uuid {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{self}")
    }
}

/// The reason why a pool cannot be made, opened or changed. Unless a variant says otherwise, nothing was written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PoolError {
    /// The list of devices is empty.
    #[error("no cache device is named; name at least one")]
    NoDevices,
    /// The list has more than 16 devices.
    #[error("{0} cache devices are more than a pool can have; name at most 16")]
    TooManyDevices(usize),
    /// The device is smaller than the smallest size.
    #[error("{device} has {size} bytes, but {needed} are needed; use a larger device")]
    TooSmall {
        /// The device's name.
        device: String,
        /// The device's size in bytes.
        size: u64,
        /// The bytes needed.
        needed: u64,
    },
    /// The device is larger than the largest size.
    #[error("{device} has {size} bytes, but at most 16 TiB can be used; use a smaller device or a partition")]
    TooLarge {
        /// The device's name.
        device: String,
        /// The device's size in bytes.
        size: u64,
    },
    /// The device is in use, and is formatted only with `force`.
    #[error("{device} holds {what}; name another device, or insist on overwriting this one")]
    InUse {
        /// The device's name.
        device: String,
        /// The contents of the device.
        what: String,
    },
    /// The device cannot be read.
    #[error("{device} cannot be read ({error}); check the device, or leave it out")]
    Unreadable {
        /// The device's name.
        device: String,
        /// The device's error.
        error: DeviceError,
    },
    /// The device cannot be written. Its contents may be overwritten in part.
    #[error("{device} cannot be written ({error}); check the device, or leave it out")]
    Unwritable {
        /// The device's name.
        device: String,
        /// The device's error.
        error: DeviceError,
    },
    /// The device does not return the data that was written to it.
    #[error("{0} does not hold what was just written to it; replace it, or leave it out")]
    Forgetful(String),
    /// Every device is blank, or holds an unfinished format.
    #[error("no pool is on the cache devices; format them first")]
    NoPool,
    /// Formatting was interrupted: this pool never held data.
    #[error(
        "the formatting of {0} was interrupted, and nothing is in the pool yet; format the devices again"
    )]
    Unfinished(String),
    /// One of the pool's devices is blank.
    #[error("{0} is blank, not a member of the pool; start without it and add it with `forebay pool add`")]
    Blank(String),
    /// The device holds data of another program.
    #[error("{device} holds {what}, not a member of the pool; leave it out")]
    Foreign {
        /// The device's name.
        device: String,
        /// The contents of the device.
        what: &'static str,
    },
    /// Both superblocks are damaged, and no other device can help.
    #[error(
        "both superblocks of {0} are damaged, and no other device of its pool is there; name the others too"
    )]
    Damaged(String),
    /// The devices belong to two pools.
    #[error(
        "{first} belongs to pool {first_pool}, but {second} to pool {second_pool}; name the devices of one pool"
    )]
    OtherPool {
        /// A device.
        first: String,
        /// The pool of that device.
        first_pool: Uuid,
        /// A device of another pool.
        second: String,
        /// The pool of that device.
        second_pool: Uuid,
    },
    /// A device is named twice, or one device is a copy of another.
    #[error("{first} and {second} are the same device, or one is a copy of the other; name it once")]
    Duplicate {
        /// A device.
        first: String,
        /// The other name of the device, or the name of its copy.
        second: String,
    },
    /// The pool has the format of a later version.
    #[error("{device} has pool format {version}, newer than this version of Forebay knows; use a newer one")]
    Newer {
        /// The device's name.
        device: String,
        /// The format's version.
        version: u16,
    },
    /// The pool requires features that are unknown here.
    #[error(
        "{device} needs features that this version of Forebay does not have ({bits:#x}); use a newer one"
    )]
    UnknownFeatures {
        /// The device's name.
        device: String,
        /// The bits of the unknown features.
        bits: u64,
    },
    /// The device has shrunk: not all of its segments fit any more. The other devices are not enough.
    #[error(
        "{device} has shrunk to {size} bytes, but its pool uses {needed}, and the pool cannot be used without it; give it \
         back its size and contents, or connect the missing devices"
    )]
    Shrunk {
        /// The device's name.
        device: String,
        /// The current size of the device in bytes.
        size: u64,
        /// The bytes that the device's segments need.
        needed: u64,
    },
    /// Each of two devices was written without the other.
    #[error(
        "{first} and {second} were each used without the other, and both may hold what the other lacks; name only \
         the one whose contents you want"
    )]
    Split {
        /// A device.
        first: String,
        /// A device.
        second: String,
    },
    /// More than one member is missing. Data that is only on two missing members would be lost unnoticed.
    #[error("{} members of the pool are missing ({}), but at most one may be; name the others too", .0.len(), list(.0))]
    TooManyMissing(Vec<Uuid>),
    /// The pool was used without these devices meanwhile.
    #[error(
        "{devices}: out of date, since the cache went on without (to epoch {noted}, and here is epoch {found}); connect the \
         devices that were in use last"
    )]
    OutOfDate {
        /// The names of the present devices.
        devices: String,
        /// The epoch in use that the present devices know.
        found: u64,
        /// The epoch in use that the witness has recorded.
        noted: u64,
    },
    /// The witness cannot be asked which epoch is in use.
    #[error("which devices of the cache were in use last cannot be read: {0}")]
    Unknown(WitnessError),
    /// The witness did not record the new epoch, which the devices may carry. Nothing may be acknowledged any more
    /// until the pool is opened again.
    #[error("which devices of the cache are in use cannot be noted: {0}")]
    Unnoted(WitnessError),
    /// No member is left that could be written. The change is not durable: the pool must not be used any more until
    /// it is opened again.
    #[error("no cache device is left that can be written; check the devices and start again")]
    NoMemberLeft,
    /// The last device cannot be removed.
    #[error("{0} is the last cache device; add another before removing it")]
    LastMember(String),
    /// No active member has this index.
    #[error("the pool has no active member number {0}; `forebay pool status` lists the members")]
    NoSuchMember(u16),
    /// The pool has 16 active members already.
    #[error("the pool has 16 members already; remove one before adding another")]
    Full,
}

fn list(uuids: &[Uuid]) -> String {
    uuids.iter().map(Uuid::to_string).collect::<Vec<_>>().join(", ")
}

/// A finding that did not prevent the opening of the pool.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Notice {
    /// An active member is not among the usable devices.
    #[error(
        "cache device {uuid} (member {index}) is missing; what is only on the others is served from there"
    )]
    Missing {
        /// The member's index.
        index: u16,
        /// The member's UUID.
        uuid: Uuid,
    },
    /// The pool was used without the device, so its contents are out of date.
    #[error("{0} is out of date, since the pool was used without it; add it again with `forebay pool add`")]
    Stale(String),
    /// The device was a member once.
    #[error("{0} is no member of the pool any more; add it again with `forebay pool add`, or leave it out")]
    NotMember(String),
    /// Both superblocks of the device are damaged.
    #[error(
        "{0} is not used, since both its superblocks are damaged; replace it, or add it again after wiping it"
    )]
    Damaged(String),
    /// The device has shrunk: not all of its segments fit any more.
    #[error(
        "{device} is not used, since it has shrunk to {size} bytes, and its pool uses {needed}; replace it, or add it again \
         with `forebay pool add`"
    )]
    Shrunk {
        /// The device's name.
        device: String,
        /// The current size of the device in bytes.
        size: u64,
        /// The bytes that the device's segments need.
        needed: u64,
    },
    /// The adding of the device, or the formatting of a pool with it, was cut short.
    #[error("{0} is not used, since a crash interrupted its adding; add it again with `forebay pool add`")]
    Unfinished(String),
    /// The device cannot be read.
    #[error("{device} is not used, since it cannot be read ({error}); replace it")]
    Unreadable {
        /// The device's name.
        device: String,
        /// The device's error.
        error: DeviceError,
    },
    /// The device does not answer.
    #[error(
        "{0} is not used, since it does not answer; see the kernel's log, and when it answers, add it again with `forebay pool add`"
    )]
    Silent(String),
}
