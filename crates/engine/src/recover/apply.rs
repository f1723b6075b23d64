//! The records of all segments, applied in order: the newest wins.

use std::sync::Arc;

use super::frames::{Read, footer_of};
use super::headers::Found;
use super::{Recovered, is_log, name};
use crate::buffer::BLOCK;
use crate::format::{Body, Footer, Place, Record};
use crate::leaf::{Entry, SegmentId};
use crate::notes::{Note, Notes};
use crate::object::Object;
use crate::objects::Objects;
use crate::plant;
use crate::pool::Pool;
use crate::segments::{Segment, Segments};
use crate::wait::all;

/// The tables of an engine.
pub(super) struct Applied {
    pub(super) segments: Segments,
    pub(super) objects: Objects,
    pub(super) notes: Notes,
    /// Segments of the log that lack a footer on some leg.
    pub(super) unsealed: Vec<(SegmentId, Footer)>,
    /// Objects the backing store may not know everything of.
    pub(super) unsure: Vec<Arc<Object>>,
    /// The segments that count, by `seq`.
    pub(super) kept: Vec<u64>,
    pub(super) recovered: Recovered,
}

/// Footers read at once.
const DEPTH: usize = 64;

/// A segment with its records.
struct Loaded {
    found: Found,
    bodies: Vec<Body>,
    in_log: bool,
    sealed: bool,
}

pub(super) async fn apply(pool: &Pool, live: Vec<Found>, read: &Read, doubtful: u64) -> Applied {
    let next_seq = live.iter().map(|found| found.seq + 1).max().unwrap_or(1).max(read.reach.tail);
    let mut loaded = load(pool, live, read).await;
    if plant::active("segments are applied newest first") {
        loaded.reverse();
    }
    let segments = Segments::new(next_seq, free(pool, &loaded), totals(pool));
    let objects = Objects::new();
    let kept = loaded.iter().map(|loaded| loaded.found.seq).collect();
    let mut unsealed = Vec::new();
    let notes = Notes::default();
    let mut recovered = Recovered { frames: read.frames, torn: read.torn, ..Recovered::default() };
    for Loaded { found, bodies, in_log, sealed } in loaded {
        let segment = Segment {
            seq: found.seq,
            position: found.position,
            kind: found.kind,
            legs: found.legs.clone(),
            live: 0,
            dirty: 0,
            damaged: 0,
            holds: 0,
            durable: u16::MAX,
            sealed: true,
        };
        let id = segments.restore(segment, in_log);
        let trusted = in_log || found.epoch >= doubtful;
        for body in &bodies {
            apply_body(body, id, (in_log, trusted), &objects, &segments);
            if in_log {
                recovered.notes.extend(notes_of(body, id, &notes, &segments));
            }
        }
        if in_log && !sealed {
            let footer =
                Footer { pool: pool.uuid, segment_seq: found.seq, epoch: found.epoch, body: merged(bodies) };
            unsealed.push((id, footer));
        }
    }
    segments.advance();
    let unsure = objects.all().into_iter().filter(|object| {
        let state = object.lock();
        state.dirty > 0 || state.mtime.is_some() || state.truncating.is_some()
    });
    let unsure = unsure.collect();
    Applied { segments, objects, notes, unsealed, unsure, kept, recovered }
}

/// The notes of a segment of the log, which they keep there.
fn notes_of(body: &Body, id: SegmentId, notes: &Notes, segments: &Segments) -> Vec<Note> {
    let found = body.records.iter().filter_map(|record| match record {
        Record::Note { bytes } => Some(Note { id: notes.keep(id, segments), bytes: bytes.clone() }),
        _ => None,
    });
    found.collect()
}

/// Reads the records of all segments. One of the log's whose records cannot be read any more (they were needed only to
/// say which older copies do not count) takes all older ones with it.
async fn load(pool: &Pool, mut live: Vec<Found>, read: &Read) -> Vec<Loaded> {
    let mut loaded = Vec::<Loaded>::new();
    while !live.is_empty() {
        let rest = live.split_off(live.len().min(DEPTH));
        let footers = all(live.iter().map(|found| Box::pin(load_one(pool, found, read))).collect()).await;
        for (mut found, records) in live.into_iter().zip(footers) {
            let in_log = is_log(&found) && found.seq >= read.reach.tail;
            match records {
                Some(Records { bodies, sealed, only }) => {
                    // The second leg is not in use any more.
                    found.legs = only.map_or(found.legs, |place| smallvec::smallvec![place]);
                    loaded.push(Loaded { found, bodies, in_log, sealed });
                }
                None if is_log(&found) => loaded.clear(),
                None => {}
            }
        }
        live = rest;
    }
    loaded
}

/// What a segment's records say, and the only leg of it that counts.
struct Records {
    bodies: Vec<Body>,
    sealed: bool,
    only: Option<Place>,
}

async fn load_one(pool: &Pool, found: &Found, read: &Read) -> Option<Records> {
    let in_log = is_log(found) && found.seq >= read.reach.tail;
    if let Some(contents) = read.contents.get(&found.seq).filter(|_| in_log) {
        return Some(Records { bodies: contents.bodies.clone(), sealed: contents.sealed, only: None });
    }
    let name = name(pool, found);
    for place in &found.legs {
        if let Some(footer) = footer_of(pool, *place, &name).await.filter(|f| f.epoch >= found.epoch) {
            return Some(Records { bodies: vec![footer.body], sealed: true, only: Some(*place) });
        }
    }
    None
}

/// The segments no live one is in; the first is used first.
fn free(pool: &Pool, loaded: &[Loaded]) -> Vec<Vec<u32>> {
    let unused = |index: u16, segments: u32| {
        let mut used = vec![false; segments as usize];
        let legs = loaded.iter().flat_map(|loaded| &loaded.found.legs);
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

fn apply_body(
    body: &Body,
    id: SegmentId,
    (in_log, trusted): (bool, bool),
    objects: &Objects,
    segments: &Segments,
) {
    let known: Vec<_> = body.objects.iter().map(|facts| objects.get(&facts.key)).collect();
    for record in &body.records {
        apply_record(record, &known, id, (in_log, trusted), segments);
    }
    for (object, facts) in known.iter().zip(&body.objects).filter(|_| in_log) {
        let mut state = object.lock();
        state.size = facts.size;
        state.mtime = facts.mtime;
        state.logged = true;
    }
}

fn apply_record(
    record: &Record,
    known: &[Arc<Object>],
    id: SegmentId,
    (in_log, trusted): (bool, bool),
    segments: &Segments,
) {
    match record {
        Record::Data { object, block, slot, checksums } => {
            let mut state = known[usize::from(*object)].lock();
            if !trusted {
                state.drop_range(*block..block + checksums.len() as u64, segments);
                return;
            }
            for (i, checksum) in checksums.iter().enumerate() {
                let slot = slot + i as u16;
                let copy = Entry { segment: id, checksum: *checksum, slot, dirty: in_log, hit: false };
                state.set_entry(block + i as u64, copy, segments);
            }
        }
        Record::Truncate { object, size } => {
            let mut state = known[usize::from(*object)].lock();
            if plant::active("cuts are not replayed") {
                return;
            }
            state.drop_range(size / BLOCK as u64..u64::MAX, segments);
            if in_log {
                segments.hold(id);
                if let Some(earlier) = state.truncating.replace(id) {
                    segments.release(earlier);
                }
            }
        }
        Record::Truncated { object } => {
            let mut state = known[usize::from(*object)].lock();
            if let Some(segment) = state.truncating.take() {
                segments.release(segment);
            }
        }
        Record::Invalidate { object, block, count } => {
            let mut state = known[usize::from(*object)].lock();
            state.drop_range(*block..block.saturating_add(*count), segments);
        }
        Record::Forget { object } => {
            let mut state = known[usize::from(*object)].lock();
            state.drop_range(0..u64::MAX, segments);
            state.mtime = None;
            if let Some(segment) = state.truncating.take() {
                segments.release(segment);
            }
        }
        // They are handed back, not applied.
        Record::Note { .. } => {}
    }
}

/// The records of several frames as one body.
fn merged(bodies: Vec<Body>) -> Body {
    let mut merged = crate::gathered::Gathered::default();
    let objects = Objects::new();
    for body in bodies {
        merged.absorb_body(body, |facts| objects.get(&facts.key).number);
    }
    merged.into_body()
}
