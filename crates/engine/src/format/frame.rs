//! Frames, of which the log consists. A frame is one contiguous write: `[head block][data blocks][tail blocks with
//! the part of the body that does not fit the head block]`.

use std::mem::{offset_of, size_of};

use xxhash_rust::xxh3::xxh3_64;
use zerocopy::little_endian::{U16, U32, U64, U128};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::block::{is_zero, seal, sealed};
use super::body;
use super::limits::{Invalid, SLOTS_MAX, SegmentId, VERSION};
use super::record::Body;
use crate::buffer::BLOCK;

const MAGIC: [u8; 8] = *b"FBYFRAME";

/// Bytes of a body that fit the head block.
pub const INLINE: usize = BLOCK - size_of::<Raw>();

/// The fixed part of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHead {
    /// The pool's UUID.
    pub pool: u128,
    /// The pool's epoch when the frame was written.
    pub epoch: u64,
    /// The frame's number, which grows by one with every frame for the pool's whole life.
    pub seq: u64,
    /// The highest frame number known to be durable when this frame was written.
    pub acked: u64,
    /// The `seq` of the oldest log segment that still holds dirty data.
    pub tail: u64,
    /// Segments with a position before this one in the order of eviction are dead.
    pub oldest_position: u64,
    /// Clean segments of that position with a `seq` below this one are dead; `u64::MAX` if all of those are dead.
    pub oldest_seq: u64,
    /// The `seq` of the segment that the frame is in.
    pub segment_seq: u64,
    /// The slot of the head block: 1 or more.
    pub start: u16,
    /// Blocks of data behind the head block.
    pub data_blocks: u16,
    /// Blocks behind the data, with the rest of the body: [`spill_blocks`] of its length.
    pub tail_blocks: u16,
}

#[repr(C)]
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
struct Raw {
    magic: [u8; 8],
    checksum: U64,
    version: U16,
    start: U16,
    data_blocks: U16,
    tail_blocks: U16,
    body_len: U32,
    reserved: U32,
    pool: U128,
    epoch: U64,
    seq: U64,
    acked: U64,
    tail: U64,
    oldest_position: U64,
    oldest_seq: U64,
    segment_seq: U64,
    tail_checksum: U64,
}

const _: () = {
    assert!(offset_of!(Raw, checksum) == 8);
    assert!(offset_of!(Raw, version) == 16);
    assert!(offset_of!(Raw, body_len) == 24);
    assert!(offset_of!(Raw, pool) == 32);
    assert!(offset_of!(Raw, epoch) == 48);
    assert!(offset_of!(Raw, segment_seq) == 96);
    assert!(offset_of!(Raw, tail_checksum) == 104);
    assert!(size_of::<Raw>() == 112);
};

impl FrameHead {
    /// Returns the number of blocks of the whole frame.
    pub fn blocks(&self) -> usize {
        1 + usize::from(self.data_blocks) + usize::from(self.tail_blocks)
    }

    /// Returns the slot behind the frame, if `body_len` matches the frame and the frame ends within `slots`.
    fn end(&self, body_len: usize, slots: u16) -> Option<u16> {
        let end = u16::try_from(usize::from(self.start) + self.blocks()).ok()?;
        let spill = spill_blocks(body_len) == usize::from(self.tail_blocks);
        (self.start > 0 && spill && end <= slots).then_some(end)
    }

    fn data_slots(&self) -> std::ops::Range<u16> {
        self.start + 1..self.start + 1 + self.data_blocks
    }
}

/// Returns the number of tail blocks of a frame with a body of `body_len` bytes.
pub fn spill_blocks(body_len: usize) -> usize {
    body_len.saturating_sub(INLINE).div_ceil(BLOCK)
}

/// Makes `buffer` this frame: the head block at its front, the rest of the body behind the data blocks. The caller's
/// data blocks stay as they are.
///
/// # Errors
/// The frame is one that a decoder would not accept; `buffer` is unchanged then. Records may only name slots of this
/// frame's data.
///
/// # Panics
/// If `buffer` is not as long as the head says.
pub fn encode(head: &FrameHead, body: &Body, buffer: &mut [u8]) -> Result<(), Invalid> {
    assert_eq!(buffer.len(), head.blocks() * BLOCK, "the buffer is the whole frame");
    let body_len = body::body_len(body);
    if head.end(body_len, SLOTS_MAX).is_none() {
        return Err(Invalid("a frame whose blocks are not those that it needs"));
    }
    body::check(body, &head.data_slots())?;
    let bytes = body::encode(body);
    let (inline, spilled) = bytes.split_at(bytes.len().min(INLINE));
    let (block, rest) = buffer.split_at_mut(BLOCK);
    let tail = &mut rest[usize::from(head.data_blocks) * BLOCK..];
    fill(tail, spilled);
    let raw = Raw {
        magic: MAGIC,
        checksum: U64::ZERO,
        version: VERSION.into(),
        start: head.start.into(),
        data_blocks: head.data_blocks.into(),
        tail_blocks: head.tail_blocks.into(),
        // The length fits, since the body fits the blocks of one segment.
        body_len: (body_len as u32).into(),
        reserved: U32::ZERO,
        pool: head.pool.into(),
        epoch: head.epoch.into(),
        seq: head.seq.into(),
        acked: head.acked.into(),
        tail: head.tail.into(),
        oldest_position: head.oldest_position.into(),
        oldest_seq: head.oldest_seq.into(),
        segment_seq: head.segment_seq.into(),
        tail_checksum: xxh3_64(tail).into(),
    };
    let (front, back) = block.split_at_mut(size_of::<Raw>());
    front.copy_from_slice(raw.as_bytes());
    fill(back, inline);
    seal(MAGIC, block);
    Ok(())
}

/// Copies `bytes` to the front of `space` and zeros the rest.
pub(super) fn fill(space: &mut [u8], bytes: &[u8]) {
    let (front, back) = space.split_at_mut(bytes.len());
    front.copy_from_slice(bytes);
    back.fill(0);
}

/// Returns the head in `block`, which was read from slot `start` of `segment`. Returns `None` if there is none, it is
/// damaged, or it belongs somewhere else.
pub fn decode_head(block: &[u8], segment: &SegmentId, start: u16) -> Option<FrameHead> {
    open(block, segment, start).map(|(head, _)| head)
}

/// Returns the body of the frame with this head block and these tail blocks. Returns `None` if the tail was not
/// written with the head, or if [`decode_head`] returns `None`.
pub fn decode_body(block: &[u8], tail: &[u8], segment: &SegmentId, start: u16) -> Option<Body> {
    let (head, raw) = open(block, segment, start)?;
    if tail.len() != usize::from(head.tail_blocks) * BLOCK || xxh3_64(tail) != raw.tail_checksum.get() {
        return None;
    }
    let body_len = raw.body_len.get() as usize;
    join(&block[size_of::<Raw>()..], tail, body_len, |bytes| body::decode(bytes, &head.data_slots()))
}

/// Calls `decode` with the `len` bytes that begin in `inline` and continue in `spilled`, if the rest is zeros.
pub(super) fn join<T>(
    inline: &[u8],
    spilled: &[u8],
    len: usize,
    decode: impl FnOnce(&[u8]) -> Option<T>,
) -> Option<T> {
    let (inline, padding) = inline.split_at(len.min(inline.len()));
    let (spilled, spilled_padding) = spilled.split_at_checked(len - inline.len())?;
    if !is_zero(padding) || !is_zero(spilled_padding) {
        return None;
    }
    if spilled.is_empty() { decode(inline) } else { decode(&[inline, spilled].concat()) }
}

/// Returns the head of a frame if its checksum is right and it belongs to this place of this segment.
fn open<'a>(block: &'a [u8], segment: &SegmentId, start: u16) -> Option<(FrameHead, &'a Raw)> {
    if !sealed(MAGIC, block) {
        return None;
    }
    let (raw, _) = Raw::ref_from_prefix(block).ok()?;
    let head = FrameHead {
        pool: raw.pool.get(),
        epoch: raw.epoch.get(),
        seq: raw.seq.get(),
        acked: raw.acked.get(),
        tail: raw.tail.get(),
        oldest_position: raw.oldest_position.get(),
        oldest_seq: raw.oldest_seq.get(),
        segment_seq: raw.segment_seq.get(),
        start: raw.start.get(),
        data_blocks: raw.data_blocks.get(),
        tail_blocks: raw.tail_blocks.get(),
    };
    let here = head.pool == segment.pool && head.segment_seq == segment.seq && head.start == start;
    let known = raw.version.get() == VERSION && raw.reserved.get() == 0;
    head.end(raw.body_len.get() as usize, segment.slots)?;
    (here && known).then_some((head, raw))
}
