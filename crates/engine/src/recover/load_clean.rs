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

use forebay_common::lock::atomic::{AtomicU64, Ordering};
use std::ops::Range;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::buffer::BLOCK;
use crate::engine::Engine;
use crate::event::Event;
use crate::format::{Body, Place, Record, SegmentKind};
use crate::index::leaf::{Entry, SegmentId};
use crate::index::object::Object;
use crate::io::Durability;
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

type Void = (Arc<Object>, Range<u64>);

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

/// The progress of loading, in segments of the cache devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CleanLoading {
    /// Number of segments that were loaded or skipped.
    pub done: u64,
    /// Number of segments to load when service started.
    pub segments: u64,
}

/// The counters behind [`CleanLoading`].
#[derive(Debug, Default)]
pub(crate) struct CleanLoader {
    done: AtomicU64,
    segments: AtomicU64,
}

impl Engine {
    /// Returns the progress of loading the clean segments; `None` when it is over.
    pub fn warming(&self) -> Option<CleanLoading> {
        let get = |number: &AtomicU64| number.load(Ordering::Relaxed);
        let warming = CleanLoading { done: get(&self.warmer.done), segments: get(&self.warmer.segments) };
        self.segments.is_warming().then_some(warming)
    }

    /// Waits until all clean segments are loaded, or never will be: no device is left, or the engine closes.
    pub async fn warmed(&self) {
        let over = || !self.segments.is_warming() || self.closing() || self.log.broken().is_some();
        self.space.until(|| over().then_some(())).await;
    }

    /// Loads the segments that recovery left, until that is done or the engine closes.
    pub(crate) async fn run_warm(self: Arc<Self>, mut cold: Cold) {
        self.warmer.segments.store(cold.segments() as u64, Ordering::Relaxed);
        let mut unused = self.segments.unused();
        while !cold.steps.is_empty() {
            let chunk = cold.steps.split_off(cold.steps.len().saturating_sub(DEPTH));
            let legs = |step: &Step| match step {
                Step::Load(cold) => self.segments.legs_to_load(cold.id, &mut unused),
                Step::Voids(_) => SmallVec::new(),
            };
            let legs: Vec<_> = chunk.iter().map(legs).collect();
            let read = chunk.iter().zip(legs).map(|(step, legs)| Box::pin(self.read_step(step, legs)));
            let read = all(read.collect()).await;
            for (step, records) in chunk.into_iter().zip(read).rev() {
                if self.closing() {
                    return;
                }
                if !self.take_step(step, records).await {
                    cold.steps.clear();
                    break;
                }
            }
        }
        self.end_warming().await;
    }

    async fn read_step(&self, step: &Step, legs: SmallVec<[Place; 2]>) -> Option<(Body, Place)> {
        let Step::Load(cold) = step else { return None };
        // A read that fails may succeed at once when repeated.
        for _ in 0..2 {
            let segment = self.segments.get(cold.id)?;
            for place in &legs {
                let found = self.read_footer_on(*place, segment.seq).await;
                if let Some(footer) = found.filter(|footer| footer.epoch >= cold.epoch) {
                    return Some((footer.body, *place));
                }
            }
        }
        None
    }

    /// Takes a step of loading. Returns false if nothing older counts, since a log segment's invalidations cannot be
    /// read any more.
    async fn take_step(&self, step: Step, records: Option<(Body, Place)>) -> bool {
        let cold = match step {
            Step::Voids(voids) => {
                voids.into_iter().for_each(|(object, range)| object.lock().void(range, &self.segments));
                return true;
            }
            Step::Load(cold) => cold,
        };
        // If the segment was evicted meanwhile, all older segments were evicted, too.
        let begun = self.segments.begin_load(cold.id);
        if begun.is_some() {
            let place = records.as_ref().map(|(_, place)| *place);
            match records {
                Some((body, _)) => self.load_late(&cold, &body).await,
                None if cold.kind == SegmentKind::Log => {
                    self.segments.end_load(cold.id, None);
                    return false;
                }
                // A segment that becomes readable again later must not count.
                None => self.wipe_header(cold.id).await,
            }
            self.segments.end_load(cold.id, place);
            self.space.wake();
        }
        self.warmer.done.fetch_add(1, Ordering::Relaxed);
        true
    }

    async fn load_late(&self, cold: &ColdSegment, body: &Body) {
        let known: Vec<_> =
            body.objects.iter().map(|facts| self.objects.get(&facts.key, &self.segments)).collect();
        let mut left = TURN;
        // The newest records come first, as with segments.
        for record in body.records.iter().rev() {
            let blocks = self.take_late(cold, record, &known);
            left = left.saturating_sub(blocks);
            if left == 0 {
                left = TURN;
                pass().await;
            }
        }
    }

    /// Puts the blocks of a record into the index. Returns their number.
    fn take_late(&self, cold: &ColdSegment, record: &Record, known: &[Arc<Object>]) -> usize {
        if let Some((object, range)) = void(record, known) {
            object.lock().void(range, &self.segments);
        }
        let Record::Data { object, block, slot, checksums } = record else { return 0 };
        let mut state = known[usize::from(*object)].lock();
        if !cold.trusted {
            state.void(*block..block + checksums.len() as u64, &self.segments);
            return checksums.len();
        }
        for (i, checksum) in checksums.iter().enumerate() {
            let slot = slot + i as u16;
            let copy = Entry { segment: cold.id, checksum: *checksum, slot, dirty: false, hit: false };
            state.add_late(block + i as u64, copy, &self.segments);
        }
        checksums.len()
    }

    async fn wipe_header(&self, id: SegmentId) {
        let legs = self.segments.get(id).map(|segment| segment.legs).unwrap_or_default();
        for place in legs {
            let zeros = crate::buffer::Slice::from(crate::buffer::Buffer::zeroed(1));
            self.write_legs(&[(place, zeros)], 0, Durability::Now).await;
        }
    }

    /// Ends the loading: the index has every block that will be loaded.
    async fn end_warming(&self) {
        // Segments that were not loaded must never be found again. Only once that is durable may a change go
        // unlogged.
        let frame = if self.segments.let_go_all_cold() { self.log.kick() } else { 0 };
        let over = || self.closing() || self.log.durable() >= frame || self.log.broken().is_some();
        self.log.until(|| over().then_some(())).await;
        if self.log.durable() < frame || self.active() == 0 {
            // Copies that are not in the index may be found again with the devices, so loading does not end.
            return;
        }
        self.segments.set_warming(false);
        for object in self.objects.all() {
            let mut state = object.lock();
            state.voids.clear();
            if state.gone {
                self.objects.remove(&object.key);
            }
        }
        let blocks = self.segments.blocks();
        self.event(Event::Warm { clean_blocks: blocks.0 - blocks.1 });
        self.space.wake();
    }
}

/// Returns the range that a record invalidates.
pub(crate) fn void(record: &Record, known: &[Arc<Object>]) -> Option<Void> {
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
