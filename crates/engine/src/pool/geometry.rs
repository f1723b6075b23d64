//! The layout of a device: superblock copy A in the first block, segments from 1 MiB on, superblock copy B in the
//! last whole block. The first and the last MiB hold no other data.

use crate::buffer::BLOCK;
use crate::format::{SEGMENT_MAX, SEGMENT_MIN};

/// The smallest device, in bytes: 64 MiB.
pub const DEVICE_MIN: u64 = 64 << 20;

/// The largest device, in bytes: 16 TiB.
pub const DEVICE_MAX: u64 = 16 << 40;

/// The offset of the first segment, in bytes.
pub const SEGMENTS_START: u64 = MARGIN;

/// Bytes at each end of a device, up to its last whole block, that hold superblocks only. Other programs keep
/// their signatures there. Formatting wipes them, so a signature that is found later was not written by Forebay.
pub(super) const MARGIN: u64 = 1 << 20;

/// The lowest number of segments, of the pool's size, of a device that is added later.
pub(super) const SEGMENTS_MIN: u32 = 16;

/// One of the two places of the superblock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Copy {
    /// The first block.
    A,
    /// The last whole block.
    B,
}

impl Copy {
    /// Returns the place of this copy on a device of `size` bytes, at least one block.
    pub(super) fn offset(self, size: u64) -> u64 {
        match self {
            Copy::A => 0,
            Copy::B => whole_blocks(size).saturating_sub(BLOCK as u64),
        }
    }

    /// Returns the other superblock copy.
    pub(super) fn other(self) -> Self {
        match self {
            Copy::A => Copy::B,
            Copy::B => Copy::A,
        }
    }
}

/// Returns the segment size of a pool whose smallest device has `smallest` bytes. It is a 64th of that, so that even
/// the smallest pool can write, read, clean and free segments at one time.
pub(super) fn segment_size(smallest: u64) -> u32 {
    let share = (smallest / 64).clamp(u64::from(SEGMENT_MIN), u64::from(SEGMENT_MAX));
    // The clamped value fits.
    1 << share.ilog2()
}

/// Returns the number of segments that fit a device of `size` bytes.
pub(super) fn segments(size: u64, segment_size: u32) -> u32 {
    let room = whole_blocks(size).saturating_sub(2 * MARGIN) / u64::from(segment_size);
    u32::try_from(room).unwrap_or(u32::MAX)
}

/// Returns the bytes of the whole blocks of a device of `size` bytes.
pub(super) fn whole_blocks(size: u64) -> u64 {
    size / BLOCK as u64 * BLOCK as u64
}

/// Returns the size in bytes of the smallest device with `segments` segments of `segment_size` bytes.
pub(super) fn size_for(segments: u32, segment_size: u32) -> u64 {
    2 * MARGIN + u64::from(segments) * u64::from(segment_size)
}

/// Returns the offset of segment number `segment` on its device, in bytes.
pub fn segment_offset(segment: u32, segment_size: u32) -> u64 {
    SEGMENTS_START + u64::from(segment) * u64::from(segment_size)
}
