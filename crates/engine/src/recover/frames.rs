//! The contents of the log's segments: rows R5 to R22 of the table of cases in docs/on-disk-format.md. Each row has a
//! test of that name in `crates/sim/src/recovery`.

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;

use super::headers::{ScannedSegment, is_log};
use super::outcome::OpenError;
use super::progress::RecoveryProgress;
use crate::Seq;
use crate::buffer::{BLOCK, Buffer};
use crate::format::{Body, FrameHead, Place, Record, SegmentId, bind, content_hash, footer, frame, key_hash};
use crate::planted_bugs;
use crate::pool::{Pool, PoolError};
use crate::segments::Reach;

/// The number of bad slots from which on a leg is not read any more: each bad slot may take the device long.
const UNREAD_MOST: usize = 256;
/// More than the number of frames that may follow the last frame whose number is known.
const UNREAD: Seq = 1 << 32;

/// The records of a segment.
#[derive(Clone, Debug)]
pub(super) struct Contents {
    /// The bodies of all frames, or the footer's body alone.
    pub(super) bodies: Vec<Body>,
    /// True if a footer is on every leg.
    pub(super) sealed: bool,
}

/// The last frame, as it should be on every leg.
#[derive(Debug)]
pub(super) struct Last {
    pub(super) start: u16,
    /// The bytes of the whole frame.
    pub(super) bytes: Vec<u8>,
    /// The legs that lack the frame.
    pub(super) bad: Vec<Place>,
}

/// The contents of the log, as read by recovery.
#[derive(Debug)]
pub(super) struct Read {
    pub(super) reach: Reach,
    pub(super) next_frame: Seq,
    /// The records by segment `seq`, for segments of the log only.
    pub(super) contents: HashMap<u64, Contents, foldhash::fast::FixedState>,
    pub(super) last: Option<Last>,
    pub(super) frames: u64,
    pub(super) torn: bool,
    /// Legs that lack frames which another leg has.
    pub(super) stale: Vec<Place>,
    /// True if nothing on the devices counts, since the log had a hole.
    pub(super) dropped: bool,
}

/// A frame with a good head and body.
struct Frame {
    head: FrameHead,
    body: Body,
}

/// The legs of a segment, read into memory.
struct Image {
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

impl Read {
    fn new(reach: Reach, next_frame: Seq) -> Self {
        Read {
            reach,
            next_frame,
            contents: HashMap::default(),
            last: None,
            frames: 0,
            torn: false,
            stale: Vec::new(),
            dropped: false,
        }
    }

    /// Returns the state of a log that does not count any more: no segment, and a frame number that was never used.
    fn nothing(pool: &Pool, found: &[ScannedSegment]) -> Self {
        let next_seq = found.iter().map(|found| found.seq).max().unwrap_or(0).max(pool.newest()) + 1;
        let next_seq = next_seq.max(pool.reach().tail);
        let first_frame = found.iter().map(|found| found.first_frame).max().unwrap_or(1).max(pool.durable());
        let reach = Reach::new(next_seq, next_seq, 0);
        Read { dropped: true, ..Read::new(reach, first_frame + UNREAD) }
    }

    /// Reads a segment frame by frame. `limit` is the first frame of the next segment.
    async fn add_frames(
        &mut self,
        pool: &Pool,
        segment: &ScannedSegment,
        limit: Option<Seq>,
    ) -> Result<Vec<Frame>, OpenError> {
        let image = Image::read(pool, segment).await;
        let mut frames = image.chain(segment, pool.epoch, limit)?;
        let mut proven = frames.len();
        if limit.is_none()
            && let Some(last) = frames.last()
        {
            // R6, R7: the last frame is verified. R5: the next frame proves every other frame durable.
            proven -= 1;
            self.last = image.verify(last).filter(|_| !planted_bugs::active("the last frame is not counted"));
            if self.last.is_none() {
                image.must_know(last.head.start, last.head.blocks(), last.head.seq)?;
                frames.pop();
                self.torn = true;
            }
        }
        self.frames += frames.len() as u64;
        if !planted_bugs::active("a stale leg counts at recovery") {
            // R19.
            self.stale.extend(image.stale_legs(&frames[..proven.min(frames.len())]));
        }
        Ok(frames)
    }
}

impl Image {
    async fn read(pool: &Pool, segment: &ScannedSegment) -> Image {
        let name = pool.segment_id(segment.seq);
        let mut legs = Vec::new();
        for place in &segment.legs {
            legs.push(Leg::read(pool, *place, name.slots).await);
        }
        Image { name, legs }
    }

    /// Returns the good frames from the segment's front on, or [`OpenError::Hole`].
    fn chain(
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
    fn must_know(&self, start: u16, blocks: usize, seq: Seq) -> Result<(), OpenError> {
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

    fn frame_on(&self, leg: &Leg, start: u16) -> Option<Frame> {
        let block = leg.slots(start, 1)?;
        let head = frame::decode_head(&block, &self.name, start)?;
        let tail = leg.slots(start + 1 + head.data_blocks, usize::from(head.tail_blocks))?;
        let body = frame::decode_body(&block, &tail, &self.name, start)?;
        Some(Frame { head, body })
    }

    /// Returns the legs that lack some of these frames or their data, if another leg has all.
    fn stale_legs(&self, frames: &[Frame]) -> Vec<Place> {
        let is_whole = |leg: &Leg| {
            let whole =
                |frame: &Frame| self.verify(frame).is_none_or(|mended| !mended.bad.contains(&leg.place));
            frames.iter().all(whole)
        };
        let (whole, stale): (Vec<_>, Vec<_>) = self.legs.iter().partition(|leg| is_whole(leg));
        if whole.is_empty() { Vec::new() } else { stale.into_iter().map(|leg| leg.place).collect() }
    }

    /// Returns a frame put together from the good blocks of all legs; `None` if some block is good on no leg.
    fn verify(&self, frame: &Frame) -> Option<Last> {
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

async fn read_footer(pool: &Pool, segment: &ScannedSegment) -> Option<Contents> {
    let name = pool.segment_id(segment.seq);
    let (mut body, mut legs) = (None, 0);
    for place in &segment.legs {
        if let Some(footer) = footer_of(pool, *place, &name).await.filter(|f| f.epoch >= segment.epoch) {
            body = Some(footer.body);
            legs += 1;
        }
    }
    Some(Contents { bodies: vec![body?], sealed: legs == segment.legs.len() })
}

/// Reads the log from its end back to its tail.
pub(super) async fn read_log(
    pool: &Pool,
    found: &[ScannedSegment],
    progress: &RecoveryProgress,
) -> Result<Read, OpenError> {
    let tail = pool.reach().tail;
    progress.begin(found.iter().filter(|found| is_log(found) && found.seq >= tail).count());
    let read = read_back(pool, found, progress).await;
    if !matches!(read, Err(OpenError::Hole { .. })) {
        return read;
    }
    // R21: data on a device that went missing meanwhile is not lost.
    for (_, device) in pool.present() {
        if let (_, Err(error)) = device.read(0, Buffer::zeroed(1)).await
            && error.is_final()
        {
            return Err(PoolError::Unreadable { device: device.name().to_owned(), error }.into());
        }
    }
    // R22: such a pool only ever held data that the backing store has as well.
    if pool.members.len() == 1 { Ok(Read::nothing(pool, found)) } else { read }
}

async fn read_back(
    pool: &Pool,
    found: &[ScannedSegment],
    progress: &RecoveryProgress,
) -> Result<Read, OpenError> {
    let mut read = Read::new(pool.reach(), 1);
    // The next newer segment. Frames from its first frame on do not count in the older segment.
    let mut next: Option<&ScannedSegment> = None;
    let mut end_known = false;
    for segment in found.iter().filter(|found| is_log(found)).rev() {
        if end_known && segment.seq < read.reach.tail {
            break;
        }
        // R14, R15: if a segment is missing between the two, its frames would follow the frames of this one.
        let adjoins = next.is_none_or(|next| next.previous == segment.seq);
        let footer = if end_known && adjoins { read_footer(pool, segment).await } else { None };
        let contents = match footer {
            Some(contents) => contents,
            None => {
                let limit = next.map(|next| next.first_frame);
                let frames = read.add_frames(pool, segment, limit).await?;
                let may_miss = planted_bugs::active("the newest segment may be missing");
                // R17.
                if next.is_none() && segment.seq < pool.newest() && !may_miss {
                    return Err(OpenError::Hole { frame: segment.first_frame + frames.len() as Seq });
                }
                if let Some(last) = frames.last().filter(|_| !end_known) {
                    end_known = true;
                    read.next_frame = last.head.seq + 1;
                    // R20.
                    read.reach = later(read.reach, &last.head);
                }
                Contents { bodies: frames.into_iter().map(|frame| frame.body).collect(), sealed: false }
            }
        };
        read.contents.insert(segment.seq, contents);
        progress.advance();
        next = Some(segment);
    }
    let tail = read.reach.tail;
    match next {
        // R17.
        None if pool.newest() > 0 => return Err(OpenError::Hole { frame: read.next_frame }),
        Some(next) if !end_known => read.next_frame = next.first_frame,
        // R16: the tail segment is missing.
        Some(next) if next.seq > tail && next.previous >= tail.max(1) => {
            return Err(OpenError::Hole { frame: next.first_frame.saturating_sub(1) });
        }
        _ => {}
    }
    // R18.
    if read.next_frame <= pool.durable()
        && !planted_bugs::active("frames that were acknowledged may be missing")
    {
        return Err(OpenError::Hole { frame: read.next_frame });
    }
    read.contents.retain(|seq, _| *seq >= tail);
    Ok(read)
}

/// Returns the reach of a frame, if it goes further than the reach in the superblocks.
fn later(stored: Reach, head: &FrameHead) -> Reach {
    if planted_bugs::active("the reach of the last frame does not count") {
        return stored;
    }
    let said = Reach::new(head.tail, head.oldest_position, head.oldest_seq);
    Reach { tail: stored.tail.max(said.tail), oldest: stored.oldest.max(said.oldest) }
}

async fn footer_of(pool: &Pool, place: Place, name: &SegmentId) -> Option<crate::format::Footer> {
    let last = read_slots(pool, place, name.slots - 1, 1).await?;
    let blocks = footer::decode_trailer(&last, name)?;
    let whole = read_slots(pool, place, name.slots - blocks, usize::from(blocks)).await?;
    footer::decode(&whole, name)
}

async fn read_slots(pool: &Pool, place: Place, slot: u16, blocks: usize) -> Option<Buffer> {
    let device = pool.members.get(usize::from(place.device))?.device.clone()?;
    let offset = pool.offset(place.segment) + u64::from(slot) * BLOCK as u64;
    let (buffer, result) = device.read(offset, Buffer::zeroed(blocks)).await;
    result.ok().map(|()| buffer)
}
