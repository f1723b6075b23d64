//! The legs of a segment, read into memory, and the frames that they hold.

use std::collections::BTreeSet;
use std::ops::Range;

use super::frames::Last;
use super::headers::ScannedSegment;
use super::outcome::OpenError;
use crate::Seq;
use crate::buffer::{BLOCK, Buffer};
use crate::format::{Body, FrameHead, Place, Record, SegmentId, bind, content_hash, frame, key_hash};
use crate::planted_bugs;
use crate::pool::Pool;

/// The number of bad slots from which on a leg is not read any more: each bad slot may take the device long.
const UNREAD_MOST: usize = 256;

/// A frame with a good head and body.
pub(super) struct Frame {
    pub(super) head: FrameHead,
    pub(super) body: Body,
}

/// The legs of a segment, read into memory.
pub(super) struct Image {
    name: SegmentId,
    legs: Vec<Leg>,
}

/// A leg of a segment, read into memory.
struct Leg {
    place: Place,
    bytes: Buffer,
    /// Slots that could not be read.
    unread: BTreeSet<u16>,
}

impl Image {
    /// Reads all legs of a segment.
    pub(super) async fn read(pool: &Pool, segment: &ScannedSegment) -> Image {
        let name = pool.segment_id(segment.seq);
        let mut legs = Vec::new();
        for place in &segment.legs {
            legs.push(Leg::read(pool, *place, name.slots).await);
        }
        Image { name, legs }
    }

    /// Returns the good frames from the segment's front on, or [`OpenError::Hole`].
    pub(super) fn chain(
        &self,
        segment: &ScannedSegment,
        epoch: u64,
        limit: Option<Seq>,
    ) -> Result<Vec<Frame>, OpenError> {
        let mut frames = Vec::<Frame>::new();
        let (mut start, mut seq) = (1, segment.first_frame);
        // R12, R13.
        let counts = |head: &FrameHead| {
            let old = planted_bugs::active("frames of an older epoch count");
            let behind = planted_bugs::active("frames behind the next segment's first one count");
            (old || head.epoch >= segment.epoch)
                && head.epoch <= epoch
                && (behind || limit.is_none_or(|limit| head.seq < limit))
        };
        while let Some(frame) = self.frame(start).filter(|frame| frame.head.seq == seq && counts(&frame.head))
        {
            start += frame.head.blocks() as u16;
            seq += 1;
            frames.push(frame);
        }
        let later = || {
            let heads = (start..self.name.slots).filter_map(|slot| self.head(slot));
            heads.filter(counts).any(|head| head.seq > seq)
        };
        match limit {
            // R11.
            Some(limit) if seq < limit => Err(OpenError::Hole { frame: seq }),
            // R10.
            None if later() => Err(OpenError::Hole { frame: seq }),
            // R8, or R9: the end.
            None => {
                let begun = self.head(start).filter(|head| head.seq == seq && counts(head));
                self.must_know(start, begun.map_or(1, |head| head.blocks()), seq)?;
                Ok(frames)
            }
            Some(_) => Ok(frames),
        }
    }

    /// Returns an error if frame `seq`, which is bad or missing, may have been acknowledged. That is so only if some of
    /// its blocks could be read on no leg.
    pub(super) fn must_know(&self, start: u16, blocks: usize, seq: Seq) -> Result<(), OpenError> {
        let end = (usize::from(start) + blocks).min(usize::from(self.name.slots));
        let slots: Range<u16> = start..end as u16;
        let unknown = |slot: u16| self.legs.iter().all(|leg| leg.unread.contains(&slot));
        if slots.into_iter().any(unknown) { Err(OpenError::Hole { frame: seq }) } else { Ok(()) }
    }

    fn head(&self, start: u16) -> Option<FrameHead> {
        self.legs.iter().find_map(|leg| frame::decode_head(&leg.slots(start, 1)?, &self.name, start))
    }

    fn frame(&self, start: u16) -> Option<Frame> {
        self.legs.iter().find_map(|leg| self.frame_on(leg, start))
    }

    /// Returns the frame that begins at a slot of one leg; `None` if its checksums are wrong.
    fn frame_on(&self, leg: &Leg, start: u16) -> Option<Frame> {
        let block = leg.slots(start, 1)?;
        let head = frame::decode_head(&block, &self.name, start)?;
        let tail = leg.slots(start + 1 + head.data_blocks, usize::from(head.tail_blocks))?;
        let body = frame::decode_body(&block, &tail, &self.name, start)?;
        Some(Frame { head, body })
    }

    /// Returns the legs that lack some of these frames or their data, if another leg has all.
    pub(super) fn stale_legs(&self, frames: &[Frame]) -> Vec<Place> {
        let is_whole = |leg: &Leg| {
            let whole =
                |frame: &Frame| self.verify(frame).is_none_or(|mended| !mended.bad.contains(&leg.place));
            frames.iter().all(whole)
        };
        let (whole, stale): (Vec<_>, Vec<_>) = self.legs.iter().partition(|leg| is_whole(leg));
        if whole.is_empty() { Vec::new() } else { stale.into_iter().map(|leg| leg.place).collect() }
    }

    /// Returns a frame put together from the good blocks of all legs; `None` if some block is good on no leg.
    pub(super) fn verify(&self, frame: &Frame) -> Option<Last> {
        let start = frame.head.start;
        let blocks = frame.head.blocks();
        let good = |leg: &&Leg| self.frame_on(leg, start).is_some();
        // The data may be unreadable on this leg, and is then taken from the other leg below.
        let mut bytes = self.legs.iter().find(good)?.raw(start, blocks)?;
        for record in &frame.body.records {
            let Record::Data { object, block, slot, checksums } = record else { continue };
            let key = key_hash(&frame.body.objects.get(usize::from(*object))?.key);
            for (i, checksum) in checksums.iter().enumerate() {
                let (slot, block) = (slot + i as u16, block + i as u64);
                let right = |data: &Vec<u8>| {
                    let right = bind(content_hash(data), self.name.pool, key, block, self.name.seq, slot);
                    // The second case marks a block that is known to be damaged.
                    planted_bugs::active("the last frame is taken as it is")
                        || right == *checksum
                        || (right ^ 1 == *checksum && data.iter().all(|byte| *byte == 0))
                };
                let data = self.legs.iter().find_map(|leg| leg.slots(slot, 1).filter(right))?;
                let at = usize::from(slot - start) * BLOCK;
                bytes[at..at + BLOCK].copy_from_slice(&data);
            }
        }
        let differs = |leg: &&Leg| leg.slots(start, blocks).as_ref() != Some(&bytes);
        let bad = self.legs.iter().filter(differs).map(|leg| leg.place).collect();
        Some(Last { start, bytes, bad })
    }
}

impl Leg {
    /// Reads a leg at once, or slot by slot if that fails: a bad sector hides no other sector.
    async fn read(pool: &Pool, place: Place, slots: u16) -> Leg {
        if let Some(bytes) = read_slots(pool, place, 0, usize::from(slots)).await {
            return Leg { place, bytes, unread: BTreeSet::new() };
        }
        let (mut bytes, mut unread) = (Buffer::zeroed(usize::from(slots)), BTreeSet::new());
        for slot in 0..slots {
            if unread.len() >= UNREAD_MOST {
                unread.extend(slot..slots);
                break;
            }
            let from = usize::from(slot) * BLOCK;
            let block = match read_slots(pool, place, slot, 1).await {
                None => read_slots(pool, place, slot, 1).await,
                read => read,
            };
            match block {
                Some(block) => bytes[from..from + BLOCK].copy_from_slice(&block),
                None => _ = unread.insert(slot),
            }
        }
        Leg { place, bytes, unread }
    }

    /// Returns the bytes of `count` slots; `None` if one of them is unreadable or beyond the segment.
    fn slots(&self, start: u16, count: usize) -> Option<Vec<u8>> {
        let whole = self.unread.range(start..).next().is_none_or(|slot| usize::from(slot - start) >= count);
        if whole { self.raw(start, count) } else { None }
    }

    /// Returns the bytes of `count` slots, with zeros for unreadable slots.
    fn raw(&self, start: u16, count: usize) -> Option<Vec<u8>> {
        let from = usize::from(start) * BLOCK;
        self.bytes.get(from..from + count * BLOCK).map(<[u8]>::to_vec)
    }
}

/// Reads blocks of a leg from slot `slot` on. Returns `None` if they cannot be read.
pub(super) async fn read_slots(pool: &Pool, place: Place, slot: u16, blocks: usize) -> Option<Buffer> {
    let device = pool.members.get(usize::from(place.device))?.device.clone()?;
    let offset = pool.offset(place.segment) + u64::from(slot) * BLOCK as u64;
    let (buffer, result) = device.read(offset, Buffer::zeroed(blocks)).await;
    result.ok().map(|()| buffer)
}
