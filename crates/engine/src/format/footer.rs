//! Footers: all records of a segment in one place, so that recovery need not visit each frame. A footer ends where
//! the segment ends: `[rest of the body][last block: trailer, then the front of the body]`.

use std::mem::{offset_of, size_of};
use std::ops::Range;

use xxhash_rust::xxh3::xxh3_64;
use zerocopy::little_endian::{U16, U32, U64, U128};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::block::{seal, sealed};
use super::body;
use super::frame::{fill, join};
use super::limits::{Invalid, SegmentId, VERSION};
use super::record::Body;
use crate::buffer::{BLOCK, Buffer};

const MAGIC: [u8; 8] = *b"FBYFOOTR";
const INLINE: usize = BLOCK - size_of::<Raw>();

/// All records of a full segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Footer {
    /// The pool's UUID.
    pub pool: u128,
    /// The segment's `seq`.
    pub segment_seq: u64,
    /// The pool's epoch when the footer was written.
    pub epoch: u64,
    /// The records, in the order of the changes.
    pub body: Body,
}

#[repr(C)]
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
struct Raw {
    magic: [u8; 8],
    checksum: U64,
    version: U16,
    blocks: U16,
    body_len: U32,
    segment_seq: U64,
    pool: U128,
    epoch: U64,
    spill_checksum: U64,
}

const _: () = {
    assert!(offset_of!(Raw, checksum) == 8);
    assert!(offset_of!(Raw, version) == 16);
    assert!(offset_of!(Raw, segment_seq) == 24);
    assert!(offset_of!(Raw, pool) == 32);
    assert!(offset_of!(Raw, spill_checksum) == 56);
    assert!(size_of::<Raw>() == 64);
};

/// Returns the number of blocks of a footer with a body of `body_len` bytes.
pub fn blocks(body_len: usize) -> usize {
    1 + body_len.saturating_sub(INLINE).div_ceil(BLOCK)
}

/// Returns the slots that data may be in: between the segment's header and a footer of `blocks` blocks.
fn data_slots(slots: u16, blocks: usize) -> Option<Range<u16>> {
    let end = slots.checked_sub(u16::try_from(blocks).ok()?)?;
    (end >= 1).then_some(1..end)
}

impl Footer {
    /// Returns the footer's blocks, to be written at the end of a segment of `slots` slots.
    ///
    /// # Errors
    /// The footer is one that a decoder would not accept. For example, a record names slots that the footer itself
    /// needs.
    pub fn encode(&self, slots: u16) -> Result<Buffer, Invalid> {
        let body_len = body::body_len(&self.body);
        let blocks = blocks(body_len);
        let data = data_slots(slots, blocks).ok_or(Invalid("a footer longer than its segment"))?;
        body::check(&self.body, &data)?;
        let bytes = body::encode(&self.body);
        let (inline, spilled) = bytes.split_at(bytes.len().min(INLINE));
        let mut buffer = Buffer::zeroed(blocks);
        let (front, last) = buffer.split_at_mut((blocks - 1) * BLOCK);
        fill(front, spilled);
        let raw = Raw {
            magic: MAGIC,
            checksum: U64::ZERO,
            version: VERSION.into(),
            // Both numbers fit, since the footer fits a segment.
            blocks: (blocks as u16).into(),
            body_len: (body_len as u32).into(),
            segment_seq: self.segment_seq.into(),
            pool: self.pool.into(),
            epoch: self.epoch.into(),
            spill_checksum: xxh3_64(front).into(),
        };
        let (trailer, rest) = last.split_at_mut(size_of::<Raw>());
        trailer.copy_from_slice(raw.as_bytes());
        fill(rest, inline);
        seal(MAGIC, last);
        Ok(buffer)
    }
}

/// Returns the number of blocks of the footer of `segment`, from the segment's last block, which is counted. Returns
/// `None` if the segment has no footer, or not a whole one.
pub fn decode_trailer(last: &[u8], segment: &SegmentId) -> Option<u16> {
    open(last, segment).map(|raw| raw.blocks.get())
}

/// Returns the footer of `segment` from all its blocks, as many as [`decode_trailer`] says; `None` if it is not
/// whole.
pub fn decode(blocks: &[u8], segment: &SegmentId) -> Option<Footer> {
    let (spilled, last) = blocks.split_at_checked(blocks.len().checked_sub(BLOCK)?)?;
    let raw = open(last, segment)?;
    if blocks.len() != usize::from(raw.blocks.get()) * BLOCK || xxh3_64(spilled) != raw.spill_checksum.get() {
        return None;
    }
    let data = data_slots(segment.slots, usize::from(raw.blocks.get()))?;
    let inline = &last[size_of::<Raw>()..];
    let body = join(inline, spilled, raw.body_len.get() as usize, |bytes| body::decode(bytes, &data))?;
    Some(Footer { pool: segment.pool, segment_seq: segment.seq, epoch: raw.epoch.get(), body })
}

/// Returns the last block of a footer if its checksum is right and it belongs to this segment.
fn open<'a>(last: &'a [u8], segment: &SegmentId) -> Option<&'a Raw> {
    if !sealed(MAGIC, last) {
        return None;
    }
    let (raw, _) = Raw::ref_from_prefix(last).ok()?;
    let count = usize::from(raw.blocks.get());
    let here = raw.pool.get() == segment.pool && raw.segment_seq.get() == segment.seq;
    let fits = count == blocks(raw.body_len.get() as usize) && data_slots(segment.slots, count).is_some();
    (raw.version.get() == VERSION && here && fits).then_some(raw)
}
