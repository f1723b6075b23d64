//! Clean segments are loaded after service has started.
//!
//! Service starts when the log is replayed. The segments outside of the log are then read from the newest to the
//! oldest. So the first copy of a block is the newest one. A copy does not count if the index has one already, or if
//! the block is among the object's *voids*. These are the ranges that a newer segment invalidates, or that were
//! dropped from the index since service started.
//!
//! Meanwhile any object may have copies that are not in the index
//! ([`State::may_be_copied`](crate::index::object::State::may_be_copied)). So bypass writes and truncations log an
//! invalidation.

use forebay_common::lock::atomic::Ordering;
use std::ops::Range;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::buffer::BLOCK;
use crate::core::Core;
use crate::event::Event;
use crate::format::{Body, Place, Record, SegmentKind};
use crate::index::leaf::{Entry, Hit};
use crate::index::object::CachedObject;
use crate::io::Durability;
use crate::log::footers::read_footer_on;
use crate::log::mirror_io::write_legs;
use crate::segments::SegmentId;
use crate::wait::{all, pass};

/// The number of segments whose records are read at once.
const DEPTH: usize = 16;
/// The number of blocks put into the index between two yields.
const TURN: usize = 1024;

/// The clean segments that recovery leaves to be loaded, oldest first.
#[derive(Default)]
pub(crate) struct Cold {
    steps: Vec<Step>,
}

enum Step {
    /// The ranges of which a segment of the log says that older copies do not count.
    Voids(Vec<Void>),
    /// A segment that is not in the index.
    Load(ColdSegment),
}

type Void = (Arc<CachedObject>, Range<u64>);

#[derive(Clone, Copy)]
struct ColdSegment {
    id: SegmentId,
    kind: SegmentKind,
    /// The lowest epoch of the segment's records. Records of lower epochs belong to another segment.
    epoch: u64,
    /// True if the segment's copies count. Otherwise only its invalidations count.
    trusted: bool,
}

impl Cold {
    /// Adds a newer segment of the log, with the ranges that it invalidates.
    pub(crate) fn push_voids(&mut self, voids: Vec<Void>) {
        self.steps.push(Step::Voids(voids));
    }

    /// Adds a newer segment that is to be loaded.
    pub(crate) fn push_segment(&mut self, id: SegmentId, kind: SegmentKind, epoch: u64, trusted: bool) {
        self.steps.push(Step::Load(ColdSegment { id, kind, epoch, trusted }));
    }

    fn segments(&self) -> usize {
        self.steps.iter().filter(|step| matches!(step, Step::Load(_))).count()
    }

    /// Returns true if there is no segment to load.
    pub(crate) fn is_empty(&self) -> bool {
        self.segments() == 0
    }
}

/// Loads the segments that recovery left, until that is done or the engine closes.
pub(crate) async fn run_warm(core: Arc<Core>, mut cold: Cold) {
    core.warmer.segments.store(cold.segments() as u64, Ordering::Relaxed);
    let mut unused = core.segments.unused();
    while !cold.steps.is_empty() {
        let chunk = cold.steps.split_off(cold.steps.len().saturating_sub(DEPTH));
        let legs = |step: &Step| match step {
            Step::Load(cold) => core.segments.legs_to_load(cold.id, &mut unused),
            Step::Voids(_) => SmallVec::new(),
        };
        let legs: Vec<_> = chunk.iter().map(legs).collect();
        let read = chunk.iter().zip(legs).map(|(step, legs)| Box::pin(read_step(&core, step, legs)));
        let read = all(read.collect()).await;
        for (step, records) in chunk.into_iter().zip(read).rev() {
            if core.closing() {
                return;
            }
            if !take_step(&core, step, records).await {
                cold.steps.clear();
                break;
            }
        }
    }
    end_warming(&core).await;
}

/// Reads the footer of the segment that a step loads. Returns the footer and its place.
async fn read_step(core: &Core, step: &Step, legs: SmallVec<[Place; 2]>) -> Option<(Body, Place)> {
    let Step::Load(cold) = step else { return None };
    // A read that fails may succeed at once when repeated.
    for _ in 0..2 {
        let segment = core.segments.get(cold.id)?;
        for place in &legs {
            let found = read_footer_on(core, *place, segment.seq).await;
            if let Some(footer) = found.filter(|footer| footer.epoch >= cold.epoch) {
                return Some((footer.body, *place));
            }
        }
    }
    None
}

/// Takes a step of loading. Returns false if nothing older counts, since a log segment's invalidations cannot be
/// read any more.
async fn take_step(core: &Core, step: Step, records: Option<(Body, Place)>) -> bool {
    let cold = match step {
        Step::Voids(voids) => {
            voids.into_iter().for_each(|(object, range)| object.lock().void(range, &core.segments));
            return true;
        }
        Step::Load(cold) => cold,
    };
    // If the segment was evicted meanwhile, all older segments were evicted, too.
    let begun = core.segments.begin_load(cold.id);
    if begun.is_some() {
        let place = records.as_ref().map(|(_, place)| *place);
        match records {
            Some((body, _)) => load_late(core, &cold, &body).await,
            None if cold.kind == SegmentKind::Log => {
                core.segments.end_load(cold.id, None);
                return false;
            }
            // A segment that becomes readable again later must not count.
            None => wipe_header(core, cold.id).await,
        }
        core.segments.end_load(cold.id, place);
        core.space.wake();
    }
    core.warmer.done.fetch_add(1, Ordering::Relaxed);
    true
}

/// Takes the blocks of a segment over, some at a time, while clients are served.
async fn load_late(core: &Core, cold: &ColdSegment, body: &Body) {
    let known: Vec<_> =
        body.objects.iter().map(|facts| core.objects.get(&facts.key, &core.segments)).collect();
    let mut left = TURN;
    // The newest records come first, as with segments.
    for record in body.records.iter().rev() {
        let blocks = take_late(core, cold, record, &known);
        left = left.saturating_sub(blocks);
        if left == 0 {
            left = TURN;
            pass().await;
        }
    }
}

/// Puts the blocks of a record into the index. Returns their number.
fn take_late(core: &Core, cold: &ColdSegment, record: &Record, known: &[Arc<CachedObject>]) -> usize {
    if let Some((object, range)) = void(record, known) {
        object.lock().void(range, &core.segments);
    }
    let Record::Data { object, block, slot, checksums } = record else { return 0 };
    let mut state = known[usize::from(*object)].lock();
    if !cold.trusted {
        state.void(*block..block + checksums.len() as u64, &core.segments);
        return checksums.len();
    }
    for (i, checksum) in checksums.iter().enumerate() {
        let slot = slot + i as u16;
        let copy = Entry { segment: cold.id, checksum: *checksum, slot, dirty: false, hit: Hit::No };
        state.add_late(block + i as u64, copy, &core.segments);
    }
    checksums.len()
}

/// Overwrites the header of a segment, so that no later start finds its blocks.
async fn wipe_header(core: &Core, id: SegmentId) {
    let legs = core.segments.get(id).map(|segment| segment.legs).unwrap_or_default();
    for place in legs {
        let zeros = crate::buffer::Slice::from(crate::buffer::Buffer::zeroed(1));
        write_legs(core, &[(place, zeros)], 0, Durability::Now).await;
    }
}

/// Ends the loading: the index has every block that will be loaded.
async fn end_warming(core: &Core) {
    // Segments that were not loaded must never be found again. Only once that is durable may a change go
    // unlogged.
    let frame = if core.segments.free_all_cold() { core.log.request_frame() } else { 0 };
    let over = || core.closing() || core.log.durable() >= frame || core.log.broken().is_some();
    core.log.until(|| over().then_some(())).await;
    if core.log.durable() < frame || core.active() == 0 {
        // Copies that are not in the index may be found again with the devices, so loading does not end.
        return;
    }
    core.segments.set_warming(false);
    for object in core.objects.all() {
        let mut state = object.lock();
        state.voids.clear();
        if state.gone {
            core.objects.remove(&object.key);
        }
    }
    let blocks = core.segments.blocks();
    core.event(Event::Warm { clean_blocks: blocks.0 - blocks.1 });
    core.space.wake();
}

/// Returns the range that a record invalidates.
pub(crate) fn void(record: &Record, known: &[Arc<CachedObject>]) -> Option<Void> {
    let (object, range) = match record {
        Record::Truncate { object, size } => (object, size / BLOCK as u64..u64::MAX),
        Record::Invalidate { object, block, count } => (object, *block..block.saturating_add(*count)),
        Record::Forget { object } => (object, 0..u64::MAX),
        Record::Data { .. }
        | Record::Truncated { .. }
        | Record::Destaged { .. }
        | Record::UserRecord { .. } => {
            return None;
        }
    };
    Some((known[usize::from(*object)].clone(), range))
}
