//! Applies the records of the log in order: the newest wins (rows R23 to R30 of the table of cases in
//! docs/on-disk-format.md). Segments that are not part of the log any more are loaded after service has started
//! (`recover/load_clean.rs`).

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use foldhash::fast::FixedState;

use super::frames::{Contents, Read};
use super::headers::{ScannedSegment, is_log};
use super::outcome::Recovered;
use crate::format::{Body, Footer, Record};
use crate::index::leaf::{Entry, Hit};
use crate::index::object::{CachedObject, State};
use crate::index::objects::Objects;
use crate::log::user_records::{UserRecord, UserRecords};
use crate::planted_bugs;
use crate::pool::Pool;
use crate::recover::load_clean::{Cold, void};
use crate::segments::{Segment, SegmentId, Segments, Warmth};
use crate::volume::all::Volumes;

/// The tables of an engine, as recovered.
pub(super) struct Applied {
    pub(super) segments: Segments,
    pub(super) objects: Objects,
    pub(super) notes: UserRecords,
    /// Segments of the log that lack a footer on some leg.
    pub(super) unsealed: Vec<(SegmentId, Footer)>,
    /// Objects with changes that the backing store may lack.
    pub(super) unsure: Vec<Arc<CachedObject>>,
    /// The segments to be loaded once service has started.
    pub(super) cold: Cold,
    pub(super) recovered: Recovered,
}

/// Applies the log's records. Segments that are not part of the log are only put into the table.
pub(super) fn apply(
    pool: &Pool,
    mut live: Vec<ScannedSegment>,
    read: &mut Read,
    doubtful: u64,
    volumes: Arc<Volumes>,
) -> Applied {
    let next_seq = live.iter().map(|found| found.seq + 1).max().unwrap_or(1).max(read.reach.tail);
    if planted_bugs::active("segments are applied newest first") {
        live.reverse();
    }
    let segments = Segments::new(next_seq, free(pool, &live), totals(pool));
    let objects = Objects::new(volumes);
    let mut unsealed = Vec::new();
    let notes = UserRecords::default();
    let mut cold = Cold::default();
    let mut recovered = Recovered { frames: read.frames, torn: read.torn, ..Recovered::default() };
    for found in live {
        let in_log = is_log(&found) && found.seq >= read.reach.tail;
        let warmth = if in_log { Warmth::Warm } else { Warmth::Cold };
        let segment = Segment::new(found.seq, found.position, found.kind, found.legs.clone());
        let id = segments.restore(segment.found(warmth), in_log);
        if !in_log {
            cold.push_segment(id, found.kind, found.epoch, found.epoch >= doubtful);
            continue;
        }
        let Some(Contents { bodies, sealed }) = read.contents.remove(&found.seq) else {
            panic!("segment {} of the log was not read", found.seq);
        };
        let mut voids = Vec::new();
        for body in &bodies {
            voids.extend(apply_body(body, id, &objects, &segments));
            recovered.notes.extend(notes_of(body, id, &notes, &segments));
        }
        cold.push_voids(voids);
        // R29.
        if !sealed {
            let footer =
                Footer { pool: pool.uuid, segment_seq: found.seq, epoch: found.epoch, body: merged(bodies) };
            unsealed.push((id, footer));
        }
    }
    segments.advance();
    segments.set_warming(!cold.is_empty());
    let unsure = objects.all().into_iter().filter(|object| {
        let state = object.lock();
        state.dirty > 0 || state.mtime.is_some() || state.truncating.is_some()
    });
    let unsure = unsure.collect();
    Applied { segments, objects, notes, unsealed, unsure, cold, recovered }
}

/// Returns the user records of a segment of the log. They keep the segment in the log.
fn notes_of(body: &Body, id: SegmentId, notes: &UserRecords, segments: &Segments) -> Vec<UserRecord> {
    let found = body.records.iter().filter_map(|record| match record {
        Record::UserRecord { bytes } => {
            let id = notes.keep(id, 0, bytes.len(), segments);
            Some(UserRecord { id, bytes: bytes.clone() })
        }
        _ => None,
    });
    found.collect()
}

/// Returns the unused segments of each device. The first one is used first.
fn free(pool: &Pool, live: &[ScannedSegment]) -> Vec<Vec<u32>> {
    let unused = |index: u16, segments: u32| {
        let mut used = vec![false; segments as usize];
        let legs = live.iter().flat_map(|found| &found.legs);
        for place in legs.filter(|place| place.device == index) {
            if let Some(used) = used.get_mut(place.segment as usize) {
                *used = true;
            }
        }
        (0..segments).rev().filter(|segment| !used[*segment as usize]).collect()
    };
    let members = pool.members.iter();
    members.map(|m| if m.device.is_some() { unused(m.index, m.segments) } else { Vec::new() }).collect()
}

fn totals(pool: &Pool) -> Vec<u32> {
    pool.members.iter().map(|member| if member.device.is_some() { member.segments } else { 0 }).collect()
}

/// Applies records of the log. Returns the ranges that they invalidate.
fn apply_body(
    body: &Body,
    id: SegmentId,
    objects: &Objects,
    segments: &Segments,
) -> Vec<(Arc<CachedObject>, Range<u64>)> {
    let known: Vec<_> = body.objects.iter().map(|facts| objects.get(&facts.key, segments)).collect();
    body.records.iter().for_each(|record| apply_record(record, &known, id, segments));
    for (object, facts) in known.iter().zip(&body.objects) {
        let mut state = object.lock();
        state.size = facts.size;
        state.mtime = facts.mtime;
        state.logged = true;
    }
    body.records.iter().filter_map(|record| void(record, &known)).collect()
}

/// Applies one record of segment `id` to the index. `known` are the objects of the record's frame, by their number in
/// it.
fn apply_record(record: &Record, known: &[Arc<CachedObject>], id: SegmentId, segments: &Segments) {
    let cut = matches!(record, Record::Truncate { .. });
    if cut && planted_bugs::active("cuts are not replayed") {
        return;
    }
    // R24 to R27.
    if let Some((object, range)) = void(record, known) {
        object.lock().drop_range(range, segments);
    }
    match record {
        // R23.
        Record::Data { object, block, slot, checksums } => {
            let mut state = known[usize::from(*object)].lock();
            for (i, checksum) in checksums.iter().enumerate() {
                let mut slot = slot + i as u16;
                if planted_bugs::active("slots beyond 255 wrap at recovery") {
                    slot &= 0xff;
                }
                let copy = Entry { segment: id, checksum: *checksum, slot, dirty: true, hit: Hit::No };
                state.set_entry(block + i as u64, copy, segments);
            }
        }
        Record::Truncate { .. } if planted_bugs::active("a logged cut does not hold its segment") => {}
        Record::Truncate { object, .. } => {
            // R24.
            segments.hold(id);
            if let Some(earlier) = known[usize::from(*object)].lock().truncating.replace(id) {
                segments.release(earlier);
            }
        }
        // R25.
        Record::Truncated { object } => carried_out(&mut known[usize::from(*object)].lock(), segments),
        // R30.
        Record::Destaged { object, block, count } => {
            let mut state = known[usize::from(*object)].lock();
            for block in state.cached(*block..block.saturating_add(*count)) {
                if let Some(copy) = state.entry(block).copied() {
                    state.cleaned(block, &copy, segments);
                }
            }
        }
        // R27.
        Record::Forget { object } => {
            let mut state = known[usize::from(*object)].lock();
            state.mtime = None;
            carried_out(&mut state, segments);
        }
        // R26 is done by the drop of the range. R28: user records are returned, not applied.
        Record::Invalidate { .. } | Record::UserRecord { .. } => {}
    }
}

/// Ends the truncation in progress: its segment may leave the log.
fn carried_out(state: &mut State, segments: &Segments) {
    if let Some(segment) = state.truncating.take() {
        segments.release(segment);
    }
}

/// Returns the records of several frames as one body.
fn merged(bodies: Vec<Body>) -> Body {
    let mut merged = crate::log::gathered::Gathered::default();
    let mut numbers = HashMap::<_, _, FixedState>::default();
    for body in bodies {
        merged.absorb_body(body, |facts| {
            let next = numbers.len() as u64;
            *numbers.entry(facts.key.clone()).or_insert(next)
        });
    }
    merged.into_body()
}
