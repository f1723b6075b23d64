//! The traits by which the engine reaches its environment. Production implements them with threads and io_uring, the
//! simulator with virtual devices and virtual time.

use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::time::Duration;

use crate::buffer::{Buffer, Slice};

/// An operation in progress.
///
/// The operation begins when it is made, not when it is first polled, so that several operations run side by side.
/// Dropping it does not undo it. If the I/O pool has no free thread, the thread that polls it first may carry it out
/// and wait for it.
pub type Io<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// An error of a cache device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    /// This request failed; others may succeed.
    #[error("an I/O error")]
    Io,
    /// The device is missing.
    #[error("the device is gone")]
    Gone,
    /// The device has not answered before the deadline and is given up.
    #[error("the device does not answer")]
    Silent,
}

impl DeviceError {
    /// Returns true if every later request to the device fails as well.
    pub fn is_final(self) -> bool {
        matches!(self, DeviceError::Gone | DeviceError::Silent)
    }
}

/// The moment at which a device write becomes durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// At the next successful flush.
    Later,
    /// When the write completes, together with every earlier completed write to the device.
    Now,
}

/// A cache device: a block device or a preallocated file. Offsets and lengths are multiples of 4 KiB.
pub trait Device: Send + Sync + 'static {
    /// Returns the name that the administrator uses for the device: its path.
    fn name(&self) -> &str;
    /// Returns the size in bytes, which never changes while the device is open.
    fn size(&self) -> u64;
    /// Fills `buffer` from `offset`. The buffer comes back in any case. After an error its contents are undefined.
    fn read(&self, offset: u64, buffer: Buffer) -> Io<(Buffer, Result<(), DeviceError>)>;
    /// Writes `data` at `offset`. After an error or a crash any part of it may have been written.
    fn write(&self, offset: u64, data: Slice, durability: Durability) -> Io<Result<(), DeviceError>>;
    /// Makes every write that completed before this call durable.
    fn flush(&self) -> Io<Result<(), DeviceError>>;
    /// Tells the device that `len` bytes at `offset` are not needed. Later reads of them return undefined contents.
    fn discard(&self, offset: u64, len: u64) -> Io<Result<(), DeviceError>>;
}

/// The identity of an object of the backing store over restarts and renames: for a file, a kernel file handle. A key
/// has at most 64 bytes and is never used again for another object.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(smallvec::SmallVec<[u8; 24]>);

/// The longest [`Key`], in bytes.
pub const KEY_MAX: usize = 64;

impl Key {
    /// Returns a key of 1 to [`KEY_MAX`] bytes; `None` for any other length.
    pub fn new(bytes: &[u8]) -> Option<Self> {
        (1..=KEY_MAX).contains(&bytes.len()).then(|| Key(bytes.into()))
    }

    /// Returns the bytes given to [`Key::new`].
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

/// An error of the backing store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BackingError {
    /// The object was removed by its owner, durably: the cache may drop its blocks. An object that is missing for any
    /// other reason does not give this error: the backing store finds a place for its contents, or fails.
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

/// A change of an object that no cache device could record, because none was left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Disowned {
    /// The devices' copies of these blocks do not count. If the range goes to the end (`u64::MAX`), a truncation in
    /// the log is carried out, too.
    Blocks(Range<u64>),
    /// Clean copies of these blocks do not count. Dirty copies do count: the backing store may lack their contents.
    Copies(Range<u64>),
    /// The object is being truncated to `size` bytes, and gets this modification time.
    Cut {
        /// The new size in bytes.
        size: u64,
        /// The time of the truncation.
        mtime: Time,
    },
}

/// The result of an operation on the backing store.
pub type BackingResult<T> = Result<T, BackingError>;

/// The backing store: a tree of files or a block device. The engine never has two writes of overlapping ranges in
/// flight.
pub trait Backing: Send + Sync + 'static {
    /// Returns all volumes that are served; never waits.
    fn volumes(&self) -> Vec<u32>;
    /// Returns the volume that holds the object. A volume fails or hangs as a whole, such as a file system or a block
    /// device. An object never changes its volume. Never waits.
    fn volume(&self, object: &Key) -> u32;
    /// Returns the name that an administrator uses for a volume.
    fn name(&self, volume: u32) -> String;
    /// Returns the size of the object in bytes.
    fn size(&self, object: &Key) -> Io<BackingResult<u64>>;
    /// Returns the sizes in bytes of these objects of one volume, in order. An implementation that must make removals
    /// durable before it returns [`BackingError::Gone`] does so once for all of them.
    fn sizes(&self, objects: Vec<Key>) -> Io<Vec<BackingResult<u64>>> {
        let asked: Vec<_> = objects.iter().map(|object| self.size(object)).collect();
        Box::pin(crate::wait::all(asked))
    }
    /// Reads at `offset` into the front of `buffer`. Fewer bytes than the buffer holds come only at the end of the
    /// object.
    fn read(&self, object: &Key, offset: u64, buffer: Buffer) -> Io<(Buffer, BackingResult<usize>)>;
    /// Reads as [`Backing::read`] does, for a caller that begins nothing else before the read ends. An implementation
    /// may block the thread that polls the result, which spares two changes of thread.
    fn read_inline(&self, object: &Key, offset: u64, buffer: Buffer) -> Io<(Buffer, BackingResult<usize>)> {
        self.read(object, offset, buffer)
    }
    /// Writes all of `data` at `offset`, and grows the object where needed. The data is durable after
    /// [`Backing::sync`].
    fn write(&self, object: &Key, offset: u64, data: Slice) -> Io<BackingResult<()>>;
    /// Truncates the object to `size` bytes, or grows it with zeros. The size is durable after [`Backing::sync`].
    fn truncate(&self, object: &Key, size: u64) -> Io<BackingResult<()>>;
    /// Sets the object's modification time. The time is durable after [`Backing::sync`].
    fn set_mtime(&self, object: &Key, mtime: Time) -> Io<BackingResult<()>>;
    /// Makes everything done to the objects before this call durable. Returns one result for each object, in order. A
    /// failed sync may have lost any of the data. The caller must write it again, since another sync alone does not
    /// help (ATC'20). If a sync of the file by the engine's user has failed since the first of these changes, this one
    /// fails as well.
    fn sync(&self, objects: Vec<Key>) -> Io<Vec<BackingResult<()>>>;
    /// Returns the number of bytes that can still be allocated.
    fn free(&self) -> Io<BackingResult<u64>>;
    /// Records, durably and outside the cache devices, which of their copies do not count. The devices are missing
    /// now and may return at a later start.
    fn disown(&self, pool: u128, object: &Key, what: Disowned) -> Io<BackingResult<()>>;
    /// Returns the changes that [`Backing::disown`] recorded for the pool, in order.
    fn disowned(&self, pool: u128) -> Io<BackingResult<Vec<(Key, Disowned)>>>;
    /// Drops the changes recorded for the pool. The pool itself holds them now.
    fn forget_disowned(&self, pool: u128) -> Io<BackingResult<()>>;
}

/// The reason why the epoch of a pool cannot be recorded or read, as a sentence of the witness.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct WitnessError(pub String);

/// A member of a pool, as a [`Witness`] gets it.
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
    /// The highest epoch recorded as in use; 0 if none is.
    pub in_use: u64,
    /// The highest epoch given out; 0 if none is.
    pub given: u64,
}

/// The record, outside of a pool's devices, of the epoch in use. A device that was left out of the last epochs cannot
/// know that by itself when it returns alone.
pub trait Witness: Send + Sync + 'static {
    /// Records that `epoch` of the pool is given out, durably when the result is `Ok`. No device carries the epoch
    /// before that. So two devices that each return alone never carry one epoch, whenever the power fails.
    fn give(&self, pool: u128, epoch: u64) -> Io<Result<(), WitnessError>>;
    /// Records that `epoch` of the pool is in use and has these members, durably when the result is `Ok`. Nothing is
    /// acknowledged in that epoch before that.
    fn note(&self, pool: u128, epoch: u64, members: Vec<Leg>) -> Io<Result<(), WitnessError>>;
    /// Returns the recorded epochs of the pool.
    fn noted(&self, pool: u128) -> Io<Result<Noted, WitnessError>>;
}

/// A clock.
pub trait Clock: Send + Sync + 'static {
    /// Returns the time since some fixed instant; never goes back.
    fn now(&self) -> Duration;
    /// Waits for `time`.
    fn sleep(&self, time: Duration) -> Io<()>;
}

/// Runs the engine's background tasks.
pub trait Spawn: Send + Sync + 'static {
    /// Runs `task` to its end, side by side with all other tasks. `name` is for people.
    fn spawn(&self, name: &'static str, task: Io<()>);

    /// Runs `task` to its end on the calling thread, beside that thread's other work, beginning soon after the call.
    /// Returns the task if the thread cannot run it.
    fn here(&self, task: Io<()>) -> Option<Io<()>>;
}
