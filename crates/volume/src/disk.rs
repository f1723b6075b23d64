//! The block device that a door serves: reads, writes, flushes, and what is known of its contents.
//!
//! A [`Disk`] behaves as a disk with a volatile write cache. A crash may lose any subset of the writes that no flush
//! followed. It loses no write that was answered before a successful [`Disk::flush`], and none with
//! [`Stability::Durable`].

use std::{future::Future, ops::Range, pin::Pin, sync::Arc};

/// The longest run of zeros in bytes that [`Disk::write_zeroes`] has in memory.
pub const LOGGED_ZEROS: u64 = 64 * forebay_engine::buffer::BLOCK as u64;
/// The most bytes that [`Disk::prefetch`] has in memory.
pub const PREFETCH: u64 = 1 << 20;
/// The most bytes that [`Disk::extents`] has in memory for each extent: a run of dirty bytes, a run of allocated bytes,
/// and the extent. A list that grows may have twice the room that it needs.
pub const EXTENT_MEMORY: u64 = 2 * (2 * size_of::<Range<u64>>() + size_of::<Extent>()) as u64;

/// An operation of a [`Disk`] in progress. Its user polls it to its end: dropping it earlier may block the range.
pub type DiskFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, DiskError>> + Send + 'a>>;

/// A block device as a door (NBD, ublk) sees it. Offsets and lengths are bytes, inside the device; doors check that.
pub trait Disk: Send + Sync + 'static {
    /// Returns size, block sizes and abilities. The size may change (resize); everything else is constant.
    fn shape(&self) -> Shape;
    /// Reads without waiting. Returns false, with undefined contents of `buf`, if that needs a device.
    ///
    /// # Errors
    ///
    /// [`DiskError::Stopping`] if the volume is not in service.
    fn try_read(&self, offset: u64, buf: &mut [u8]) -> Result<bool, DiskError>;
    /// Fills `buf` from `offset`.
    fn read<'a>(&'a self, offset: u64, buf: &'a mut [u8]) -> DiskFuture<'a, ()>;
    /// Writes `data`, which has this stability when the future is ready. It is durable after the next `flush`.
    fn write<'a>(&'a self, offset: u64, data: &'a [u8], stability: Stability) -> DiskFuture<'a, ()>;
    /// Makes everything durable that was answered before the call. Costs nothing if nothing is undurable.
    fn flush(&self) -> DiskFuture<'_, ()>;
    /// Says that the range is not needed. Later reads give zeros or the old contents, never another's.
    fn discard(&self, offset: u64, len: u64, stability: Stability) -> DiskFuture<'_, ()>;
    /// Makes the range read as zeros. With `keep` the backing device must keep the space allocated.
    fn write_zeroes(&self, offset: u64, len: u64, keep: bool, stability: Stability) -> DiskFuture<'_, ()>;
    /// Returns true if [`Disk::write_zeroes`] of a long range without `keep` is faster than a write of zeros.
    fn zeroes_fast(&self) -> DiskFuture<'_, bool>;
    /// Brings the range into the cache.
    fn prefetch(&self, offset: u64, len: u64) -> DiskFuture<'_, ()>;
    /// Returns the extents from `offset` on, at most `most`, that together cover at most `len` bytes.
    fn extents(&self, offset: u64, len: u64, most: usize) -> DiskFuture<'_, Vec<Extent>>;
}

/// The failures that a change survives from its answer on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stability {
    /// None: a crash of the server may lose the change. It suits discards: a client does not rely on them.
    Unstable,
    /// A crash of the server. It suits writes: a client may go on after the crash, and a file system above it does not
    /// learn that answered writes were lost.
    Logged,
    /// A crash of the server, and a power cut.
    Durable,
}

impl Stability {
    /// Returns the stability of a write or of zeros with the flag FUA, or without it.
    pub fn of_write(fua: bool) -> Self {
        if fua { Stability::Durable } else { Stability::Logged }
    }

    /// Returns the stability of a discard with the flag FUA, or without it.
    pub fn of_discard(fua: bool) -> Self {
        if fua { Stability::Durable } else { Stability::Unstable }
    }
}

/// The block devices that a door serves, by name.
pub trait Disks: Send + Sync + 'static {
    /// Returns the names of the devices that can be opened now, in order.
    fn list(&self) -> Vec<String>;
    /// Returns the device of a name, or `None` if there is no such device.
    fn open(&self, name: &str) -> Option<Arc<dyn Disk>>;
}

/// The properties of a block device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Size in bytes.
    pub size: u64,
    /// True if every change is refused with [`DiskError::ReadOnly`].
    pub read_only: bool,
    /// The smallest unit of a request in bytes: offsets and lengths are multiples of it.
    pub minimum_block: u32,
    /// The unit in bytes that needs no read before a write, and that a crash does not tear.
    pub preferred_block: u32,
    /// The longest read or write in bytes.
    pub maximum_payload: u32,
    /// True if the backing device is slow at random access, as a spinning disk is.
    pub rotational: bool,
}

/// A run of bytes with the same properties.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// Length in bytes, above 0.
    pub len: u64,
    /// True if the backing device has no space allocated for it.
    pub hole: bool,
    /// True if it is known to read as zeros.
    pub zero: bool,
    /// True if all of it can be read without the backing device.
    pub cached: bool,
    /// True if the backing device has older contents than a reader sees.
    pub dirty: bool,
}

/// Why an operation of a [`Disk`] failed. A door answers with the errno that the variant names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DiskError {
    /// `EIO`: a device failed for this range.
    #[error("the device failed for this range")]
    Io,
    /// `ENOSPC`: the backing device has no space.
    #[error("the backing device has no space left")]
    NoSpace,
    /// `EINVAL`: the request is outside of the device, or longer than the device takes.
    #[error("the request is outside of the device")]
    Invalid,
    /// `EPERM`: the volume is read-only.
    #[error("the volume is read-only")]
    ReadOnly,
    /// `ESHUTDOWN`: the volume leaves service.
    #[error("the volume leaves service")]
    Stopping,
}
