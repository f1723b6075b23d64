//! The limits of the format, and the identity of a segment.

use crate::buffer::BLOCK;

/// The format's version: in the superblocks and in every other structure.
pub const VERSION: u16 = 1;

/// The highest number of devices of a pool.
pub const DEVICES_MAX: usize = 16;

/// The largest segment, in bytes.
pub const SEGMENT_MAX: u32 = 64 << 20;

/// The smallest segment, in bytes.
pub const SEGMENT_MIN: u32 = 1 << 20;

/// Slots of the largest segment.
pub const SLOTS_MAX: u16 = (SEGMENT_MAX as usize / BLOCK) as u16;

/// The highest number of blocks of an object: offsets are below 2^64.
pub const BLOCKS_MAX: u64 = 1 << 52;

/// The reason why a structure cannot be written: a decoder would not accept it. This is always a mistake of the
/// caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the log was to hold what no log may hold: {0}")]
pub struct Invalid(pub &'static str);

/// The segment that a frame or a footer is read from, as the segment's header describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentId {
    /// The pool's UUID.
    pub pool: u128,
    /// The header's `seq`.
    pub seq: u64,
    /// 4 KiB blocks in the segment, the header's own included: 256 to [`SLOTS_MAX`].
    pub slots: u16,
}
