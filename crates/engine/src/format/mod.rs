//! The on-disk format, byte by byte: see docs/on-disk-format.md.
//!
//! Every structure is checked as a whole when it is read. Bytes that were not written as this very structure, in this
//! very place of this very pool, decode to `None`. A structure that a decoder would refuse is refused by its encoder,
//! too.

mod block;
mod body;
mod checksum;
pub mod footer;
pub mod frame;
mod limits;
mod record;
mod segment;

#[cfg(test)]
pub(crate) mod tests;

pub(crate) use block::{is_zero, seal, sealed};
pub use body::{BODY_BASE, body_len, facts_len, record_len};
pub use checksum::{bind, content_hash, key_hash};
pub use footer::Footer;
pub use frame::FrameHead;
pub use limits::{BLOCKS_MAX, DEVICES_MAX, Invalid, SEGMENT_MAX, SEGMENT_MIN, SLOTS_MAX, SegmentId, VERSION};
pub use record::{Body, Facts, Record, USER_RECORD_MAX};
pub use segment::{Place, SegmentHeader, SegmentKind};
