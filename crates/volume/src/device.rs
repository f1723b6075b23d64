//! The backing device of a volume.

use std::ops::Range;

use forebay_engine::buffer::{Buffer, Slice};
use forebay_engine::io::{BackingResult, Io};

/// A backing block device or file. Offsets and lengths are bytes. No operation makes the device longer.
pub trait BackingDevice: Send + Sync + 'static {
    /// Returns the size in bytes.
    fn size(&self) -> u64;
    /// Returns true if the device is slow at random access, as a spinning disk is.
    fn is_rotational(&self) -> bool;
    /// Returns how many times the device has lost, or may have lost, changes that it had accepted and not synced, as by
    /// the loss of a connection. The first sync that begins after that fails, once for all changes before it.
    fn losses(&self) -> u64 {
        0
    }
    /// Returns true if a failure that leaves this host running, such as the loss of a connection, may lose changes that
    /// the device has accepted and not synced.
    fn is_remote(&self) -> bool {
        false
    }
    /// Reads at `offset` into the front of `buffer`. Fewer bytes come only at the end of the device.
    fn read(&self, offset: u64, buffer: Buffer) -> Io<(Buffer, BackingResult<usize>)>;
    /// Writes all of `data`. The data is durable after [`BackingDevice::sync`].
    fn write(&self, offset: u64, data: Slice) -> Io<BackingResult<()>>;
    /// Makes everything done before this call durable. A failed sync may have lost any of it.
    fn sync(&self) -> Io<BackingResult<()>>;
    /// Says that the range is not needed: later reads of it give zeros or the old contents. Durable after
    /// [`BackingDevice::sync`]. A device that has no such operation does nothing.
    fn discard(&self, offset: u64, len: u64) -> Io<BackingResult<()>>;
    /// Makes the range read as zeros. With `keep` its space stays allocated. Durable after [`BackingDevice::sync`].
    fn write_zeroes(&self, offset: u64, len: u64, keep: bool) -> Io<BackingResult<()>>;
    /// Returns true if [`BackingDevice::write_zeroes`] without `keep` is faster than a write of zeros. A
    /// device that cannot tell, such as an NBD export, returns false.
    fn zeroes_fast(&self) -> Io<bool> {
        Box::pin(std::future::ready(false))
    }
    /// Returns the parts of the range that have space allocated, in order. Other parts read as zeros. There are `most`
    /// parts at most, and `most` is above 0. With that number, nothing is known of what follows the last one. A
    /// remote device may forget a change that the cache still has, so it returns the whole range.
    fn allocated(&self, offset: u64, len: u64, most: usize) -> Io<BackingResult<Vec<Range<u64>>>>;
}
