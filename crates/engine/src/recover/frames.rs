//! The contents of the log's segments: rows R5 to R22 of the table of cases in docs/on-disk-format.md. Each row has a
//! test of that name in `crates/sim/src/recovery`.

use std::collections::HashMap;

use super::headers::{ScannedSegment, is_log};
use super::image::{Frame, Image, read_slots};
use super::outcome::OpenError;
use super::progress::RecoveryProgress;
use crate::Seq;
use crate::buffer::Buffer;
use crate::format::{Body, FrameHead, Place, SegmentId, footer};
use crate::planted_bugs;
use crate::pool::{Pool, PoolError};
use crate::segments::Reach;

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

impl Read {
    /// Returns the state of a reading of the log, before its first frame.
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

/// Returns the contents of a sealed segment by its footer; `None` if no leg has one.
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

/// Reads the log backwards, from the newest segment to the tail. `R14` and its like are the rows of the table in
/// docs/on-disk-format.md.
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
    let may_begin_anywhere = !end_known && planted_bugs::active("a log without a frame begins anywhere");
    match next {
        // R17.
        None if pool.newest() > 0 => return Err(OpenError::Hole { frame: read.next_frame }),
        // R16: the tail segment is missing. Without any frame, the tail is that of the superblocks.
        Some(next) if next.seq > tail && next.previous >= tail.max(1) && !may_begin_anywhere => {
            return Err(OpenError::Hole { frame: next.first_frame.saturating_sub(1) });
        }
        Some(next) if !end_known => read.next_frame = next.first_frame,
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

/// Reads the footer of a segment on one leg; `None` if there is none.
async fn footer_of(pool: &Pool, place: Place, name: &SegmentId) -> Option<crate::format::Footer> {
    let last = read_slots(pool, place, name.slots - 1, 1).await?;
    let blocks = footer::decode_trailer(&last, name)?;
    let whole = read_slots(pool, place, name.slots - blocks, usize::from(blocks)).await?;
    footer::decode(&whole, name)
}
