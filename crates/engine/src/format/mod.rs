//! What is on the devices, byte by byte: see docs/on-disk-format.md.
//!
//! Every structure is checked as a whole when it is read: bytes that were not written as this very structure, in this
//! very place of this very pool, decode to `None`. What a decoder would refuse, its encoder refuses too.

mod block;
mod body;
mod checksum;
pub mod footer;
pub mod frame;
mod record;
mod segment;

#[cfg(test)]
pub(crate) mod tests;

pub(crate) use block::{is_zero, seal, sealed};
pub use body::{BODY_BASE, body_len, facts_len, record_len};
pub use checksum::{bind, content_hash, key_hash};
pub use footer::Footer;
pub use frame::FrameHead;
pub use record::{Body, Facts, Record};
pub use segment::{Place, SegmentHeader, SegmentKind};

use crate::buffer::BLOCK;

/// The format's version: in the superblocks and in every other structure.
pub const VERSION: u16 = 1;

/// Devices that a pool has at most.
pub const DEVICES_MAX: usize = 16;

/// The largest segment, in bytes.
pub const SEGMENT_MAX: u32 = 64 << 20;

/// The smallest segment, in bytes.
pub const SEGMENT_MIN: u32 = 1 << 20;

/// Slots of the largest segment.
pub const SLOTS_MAX: u16 = (SEGMENT_MAX as usize / BLOCK) as u16;

/// Blocks that an object has at most: offsets are below 2^64.
pub const BLOCKS_MAX: u64 = 1 << 52;

/// Why something cannot be written: it would not be accepted when read. Always a mistake of the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the log was to hold what no log may hold: {0}")]
pub struct Invalid(pub &'static str);

/// The segment that a frame or a footer is read from, as the segment's header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentId {
    /// The pool's UUID.
    pub pool: u128,
    /// The header's `seq`.
    pub seq: u64,
    /// 4 KiB blocks in the segment, the header's own included: 256 to [`SLOTS_MAX`].
    pub slots: u16,
}
