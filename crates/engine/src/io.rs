//! What the engine needs of the world around it. Production runs it on threads and io_uring; the simulator on virtual
//! devices and virtual time.

use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::time::Duration;

use crate::buffer::{Buffer, Slice};

/// An operation under way. It begins when it is made, not when it is first polled, so that several run side by side;
/// dropping it does not undo it. Where whoever carries it out has no hands left, it may instead be carried out by the
/// thread that polls it first, which then waits for it.
pub type Io<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// What went wrong with a cache device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    /// This request failed; others may succeed.
    #[error("an I/O error")]
    Io,
    /// The device is not there any more.
    #[error("the device is gone")]
    Gone,
}

/// When a device write is durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// At the next successful flush.
    Later,
    /// When the write completes, together with every earlier completed write to the device.
    Now,
}

/// A cache device: a block device or a preallocated file. Offsets and lengths are multiples of 4 KiB.
pub trait Device: Send + Sync + 'static {
    /// What the administrator calls it: its path.
    fn name(&self) -> &str;
    /// Bytes; never changes while open.
    fn size(&self) -> u64;
    /// Fills `buffer` from `offset`. The buffer comes back in any case; after an error its contents mean nothing.
    fn read(&self, offset: u64, buffer: Buffer) -> Io<(Buffer, Result<(), DeviceError>)>;
    /// Writes `data` at `offset`. After an error or a crash any part of it may have been written.
    fn write(&self, offset: u64, data: Slice, durability: Durability) -> Io<Result<(), DeviceError>>;
    /// Makes every write that completed before this call durable.
    fn flush(&self) -> Io<Result<(), DeviceError>>;
    /// Tells the device that `len` bytes at `offset` are not needed; what they read as afterwards is not defined.
    fn discard(&self, offset: u64, len: u64) -> Io<Result<(), DeviceError>>;
}

/// What identifies an object of the backing store over restarts and renames: for a file, a kernel file handle. At most
/// 64 bytes; never used again for another object.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(smallvec::SmallVec<[u8; 24]>);

/// The longest [`Key`], in bytes.
pub const KEY_MAX: usize = 64;

impl Key {
    /// A key of 1 to [`KEY_MAX`] bytes; `None` for any other length.
    pub fn new(bytes: &[u8]) -> Option<Self> {
        (1..=KEY_MAX).contains(&bytes.len()).then(|| Key(bytes.into()))
    }

    /// The bytes given to [`Key::new`].
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// A time of the backing store's clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time {
    /// Seconds since 1970-01-01 UTC.
    pub sec: i64,
    /// Nanoseconds, below 1,000,000,000.
    pub nsec: u32,
}

/// What went wrong with the backing store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BackingError {
    /// The object was removed by its owner, durably: what the cache has of it may be dropped. One that is missing for any other
    /// reason is not gone: the backing store finds a place for its contents, or fails.
    #[error("the file is gone")]
    Gone,
    /// No space left (ENOSPC).
    #[error("no space is left on the backing store")]
    NoSpace,
    /// Over quota (EDQUOT).
    #[error("a quota of the backing store is exceeded")]
    Quota,
    /// Anything else, by its errno.
    #[error("the backing store fails with errno {0}")]
    Io(i32),
}

/// What was done to an object while no cache device was there to say so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Disowned {
    /// What the devices have of these blocks does not count. To the end (`u64::MAX`): a cut is carried out, too.
    Blocks(Range<u64>),
    /// Clean copies of these blocks do not count; what is dirty does: the backing store may lack it.
    Copies(Range<u64>),
    /// The object is being cut to `size` bytes, and gets this modification time.
    Cut {
        /// Bytes.
        size: u64,
        /// Of the cut.
        mtime: Time,
    },
}

/// The result of an operation on the backing store.
pub type BackingResult<T> = Result<T, BackingError>;

/// The slow store below: a tree of files or a block device. The engine never has two writes of overlapping ranges under
/// way.
pub trait Backing: Send + Sync + 'static {
    /// All volumes that are served; never waits.
    fn volumes(&self) -> Vec<u32>;
    /// The volume that holds the object: what fails or hangs as one, such as a file system or a block device. Always the
    /// same for a key; never waits.
    fn volume(&self, object: &Key) -> u32;
    /// What an administrator calls a volume.
    fn name(&self, volume: u32) -> String;
    /// Bytes in the object now.
    fn size(&self, object: &Key) -> Io<BackingResult<u64>>;
    /// Bytes in each of these objects of one volume now, in order. An implementation that has to make removals durable before
    /// it says [`BackingError::Gone`] does so once for all of them.
    fn sizes(&self, objects: Vec<Key>) -> Io<Vec<BackingResult<u64>>> {
        let asked: Vec<_> = objects.iter().map(|object| self.size(object)).collect();
        Box::pin(crate::wait::all(asked))
    }
    /// Reads at `offset` into the front of `buffer`; fewer bytes than it holds only at the end of the object.
    fn read(&self, object: &Key, offset: u64, buffer: Buffer) -> Io<(Buffer, BackingResult<usize>)>;
    /// Writes all of `data` at `offset`, growing the object where needed. Durable after [`Backing::sync`].
    fn write(&self, object: &Key, offset: u64, data: Slice) -> Io<BackingResult<()>>;
    /// Cuts or grows (with zeros) the object to `size` bytes. Durable after [`Backing::sync`].
    fn truncate(&self, object: &Key, size: u64) -> Io<BackingResult<()>>;
    /// Sets the object's modification time. Durable after [`Backing::sync`].
    fn set_mtime(&self, object: &Key, mtime: Time) -> Io<BackingResult<()>>;
    /// Makes everything done to the objects before this call durable; one result for each, in order. After a failure
    /// any of it may be lost: it has to be written again, not only synced again (ATC'20).
    fn sync(&self, objects: Vec<Key>) -> Io<Vec<BackingResult<()>>>;
    /// Bytes that can still be allocated.
    fn free(&self) -> Io<BackingResult<u64>>;
    /// Notes, durably and not on the cache devices, what does not count of what they have: they are gone, and may be
    /// there again at a later start.
    fn disown(&self, pool: u128, object: &Key, what: Disowned) -> Io<BackingResult<()>>;
    /// What was noted of the pool, in order.
    fn disowned(&self, pool: u128) -> Io<BackingResult<Vec<(Key, Disowned)>>>;
    /// The pool itself says so now.
    fn forget_disowned(&self, pool: u128) -> Io<BackingResult<()>>;
}

/// Why the epoch of a pool cannot be noted or read: a sentence of whoever keeps it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct WitnessError(pub String);

/// A member of a pool as a [`Witness`] is told of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leg {
    /// The device's UUID.
    pub uuid: u128,
    /// The device's name: its path.
    pub name: String,
}

/// The epochs of a pool that a [`Witness`] knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Noted {
    /// The highest epoch noted as in use; 0 if none is.
    pub in_use: u64,
    /// The highest epoch given out; 0 if none is.
    pub given: u64,
}

/// Knows, outside of a pool's devices, which epoch of the pool is in use. A device that was left out of the last epochs
/// cannot know that by itself when it is there alone.
pub trait Witness: Send + Sync + 'static {
    /// Notes that `epoch` of the pool is given out. Durable when the result is `Ok`; until then no device carries that epoch. So two
    /// devices that are each there alone never carry the same one, whenever the power fails.
    fn give(&self, pool: u128, epoch: u64) -> Io<Result<(), WitnessError>>;
    /// Notes that `epoch` of the pool is in use and has these members. Durable when the result is `Ok`; until then nothing
    /// is acknowledged in that epoch.
    fn note(&self, pool: u128, epoch: u64, members: Vec<Leg>) -> Io<Result<(), WitnessError>>;
    /// Returns what was noted of the pool.
    fn noted(&self, pool: u128) -> Io<Result<Noted, WitnessError>>;
}

/// Time as the engine sees it.
pub trait Clock: Send + Sync + 'static {
    /// Since some fixed instant; never goes back.
    fn now(&self) -> Duration;
    /// Ends after `time`.
    fn sleep(&self, time: Duration) -> Io<()>;
}

/// Runs the engine's background tasks.
pub trait Spawn: Send + Sync + 'static {
    /// Runs `task` to its end, side by side with everything else. `name` is for people.
    fn spawn(&self, name: &'static str, task: Io<()>);

    /// Runs `task` to its end on the calling thread, from soon after the call on and beside whatever else that does. Gives it
    /// back if the thread cannot.
    fn here(&self, task: Io<()>) -> Option<Io<()>>;
}
