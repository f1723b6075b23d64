//! The segments on the devices: rows R1 to R4 of the table of cases in docs/on-disk-format.md.

use std::collections::BTreeMap;

use smallvec::SmallVec;

use super::frames::Read;
use super::progress::RecoveryProgress;
use crate::buffer::{BLOCK, Buffer};
use crate::format::{Place, SegmentHeader, SegmentKind};
use crate::io::DeviceError;
use crate::planted_bugs;
use crate::pool::Pool;
use crate::segments::{Order, Reach};
use crate::wait::all;

/// The number of headers read at once.
const DEPTH: usize = 64;

/// A segment as its headers describe it.
#[derive(Clone, Debug)]
pub(super) struct ScannedSegment {
    pub(super) seq: u64,
    pub(super) position: u64,
    pub(super) kind: SegmentKind,
    pub(super) epoch: u64,
    pub(super) first_frame: u64,
    pub(super) previous: u64,
    pub(super) legs: SmallVec<[Place; 2]>,
}

impl ScannedSegment {
    pub(super) fn order(&self) -> Order {
        (self.position, self.kind == SegmentKind::Log, self.seq)
    }
}

/// Reads the headers of all segments on all present devices. Returns the segments in order of `seq`, and the places
/// of unreadable headers.
pub(super) async fn scan(pool: &Pool, progress: &RecoveryProgress) -> (Vec<ScannedSegment>, Vec<Place>) {
    progress.begin(pool.present().map(|(member, _)| member.segments as usize).sum());
    let mut found = BTreeMap::<u64, ScannedSegment>::new();
    let mut unread = Vec::new();
    for (member, device) in pool.present() {
        let numbers: Vec<u32> = (0..member.segments).collect();
        for chunk in numbers.chunks(DEPTH) {
            let reads = chunk.iter().map(|n| device.read(pool.offset(*n), Buffer::zeroed(1)));
            for (segment, (block, result)) in chunk.iter().zip(all(reads.collect()).await) {
                progress.advance();
                let here = Place { device: member.index, segment: *segment };
                let (block, result) = match result {
                    Err(DeviceError::Io) => device.read(pool.offset(*segment), block).await,
                    result => (block, result),
                };
                // R4.
                if result.is_err() {
                    unread.push(here);
                }
                let header =
                    result.ok().and_then(|()| SegmentHeader::decode(&block[..BLOCK], pool.uuid, here));
                // R1.
                let early = planted_bugs::active("segments from before a device came back count");
                let Some(header) = header.filter(|header| early || header.epoch >= member.since_epoch) else {
                    continue;
                };
                merge(&mut found, header);
            }
        }
    }
    (found.into_values().collect(), unread)
}

/// Returns true if the segment is one of the log.
pub(super) fn is_log(found: &ScannedSegment) -> bool {
    found.kind == SegmentKind::Log
}

/// Adds a header to the segments found. Headers of one segment on two devices are its two legs.
fn merge(found: &mut BTreeMap<u64, ScannedSegment>, header: SegmentHeader) {
    let new = ScannedSegment {
        seq: header.seq,
        position: header.position,
        kind: header.kind,
        epoch: header.epoch,
        first_frame: header.first_frame,
        previous: header.previous,
        legs: SmallVec::from_slice(&[header.here]),
    };
    let known =
        found.entry(header.seq).or_insert_with(|| ScannedSegment { legs: SmallVec::new(), ..new.clone() });
    // R2, R3: a start that was interrupted used this number as well; the later segment counts.
    if new.epoch > known.epoch && !planted_bugs::active("a segment of an older life counts") {
        *known = new;
    } else if new.epoch == known.epoch {
        known.legs.push(header.here);
    }
}

/// Returns the segments that count, in the order in which they are freed. The copies in a doubtful segment of the log
/// do not count, but the invalidations in it do. If `doubtful` is above any epoch, invalidations may stay unknown for
/// long. Then only the log counts, and the other segments must be wiped.
pub(super) fn live(mut found: Vec<ScannedSegment>, read: &Read, doubtful: u64) -> Vec<ScannedSegment> {
    let reach = read.reach;
    if read.dropped {
        return Vec::new();
    }
    found.iter_mut().for_each(|found| found.legs.retain(|place| !read.stale.contains(place)));
    let counts = |found: &ScannedSegment| {
        let in_log = is_log(found) && found.seq >= reach.tail;
        in_log
            || (found.order() >= reach.oldest
                && doubtful < u64::MAX
                && (is_log(found) || found.epoch >= doubtful))
    };
    let mut live: Vec<_> = found.into_iter().filter(counts).collect();
    live.sort_unstable_by_key(ScannedSegment::order);
    if let Some(missing) = missing_log(&live, reach) {
        live.retain(|found| found.order() > missing || (is_log(found) && found.seq >= reach.tail));
    }
    live
}

/// Returns the places of segments that are not `kept`, but that a later recovery could find. The records that
/// invalidate them may be missing by then.
pub(super) fn dropped(
    found: &[ScannedSegment],
    reach: Reach,
    kept: &[u64],
    unread: Vec<Place>,
) -> Vec<Place> {
    let counted = |found: &&ScannedSegment| is_log(found) || found.order() >= reach.oldest;
    let gone = found.iter().filter(counted).filter(|found| !kept.contains(&found.seq));
    let mut gone: Vec<_> = gone.collect();
    // The oldest segments come first: the records that invalidate a segment are wiped after it.
    gone.sort_unstable_by_key(|found| found.order());
    gone.into_iter().flat_map(|found| found.legs.iter().copied()).chain(unread).collect()
}

/// Returns the newest segment that was in the log, should still be present and is not. Its invalidations of older
/// copies are unknown.
fn missing_log(live: &[ScannedSegment], reach: Reach) -> Option<Order> {
    let mut logs = live.iter().filter(|found| is_log(found)).rev().peekable();
    while let Some(log) = logs.next() {
        let expected = (log.previous, true, log.previous);
        let there = logs.peek().is_some_and(|next| next.seq == log.previous);
        if log.previous == 0 || expected < reach.oldest {
            return None;
        }
        if !there {
            return Some(expected);
        }
    }
    None
}
