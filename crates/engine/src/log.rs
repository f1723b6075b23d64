//! The log: one total order of everything acknowledged.
//!
//! Requests append to the open frame; the writer task closes it, writes it to both legs at once, and opens the next
//! one meanwhile. One frame is in flight at a time: that a frame exists proves that the one before it was durable.

use std::sync::atomic::{AtomicU64, Ordering};

use smallvec::SmallVec;

use crate::buffer::{BLOCK, Buffer};
use crate::format::{
    Facts, Footer, FrameHead, Record, bind, content_hash, facts_len, footer, frame, record_len,
};
use crate::gathered::Gathered;
use crate::leaf::{Page, SegmentId};
use crate::notes::{NoteId, Notes};
use crate::object::Object;
use crate::segments::{Opened, Reach, Segments};
use crate::wait::Gate;
use crate::{Completion, Error, Seq};
use forebay_lock::{Mutex, MutexGuard};

/// Data blocks of a frame at most.
const FRAME_DATA: usize = 512;
/// Bytes of records of a frame at most.
const FRAME_BODY: usize = 64 * 1024;

/// The frame that requests append to.
#[derive(Debug)]
struct Open {
    seq: Seq,
    start: u16,
    data: usize,
    gathered: Gathered,
    /// The head block, then data.
    buffer: Buffer,
}

/// The segment being written.
#[derive(Debug)]
struct Current {
    opened: Opened,
    /// The first slot no closed frame uses.
    next: u16,
    gathered: Gathered,
}

#[derive(Default)]
struct State {
    current: Option<Current>,
    open: Option<Open>,
    next_seq: Seq,
    waiting: Vec<(Seq, Completion)>,
    spare: Vec<Buffer>,
    /// The segment is full or lost a leg: the next one is needed.
    roll: bool,
    /// A frame is wanted though it may be empty: space waits for it.
    kick: bool,
    /// There is no next segment yet.
    full: bool,
    closing: bool,
    broken: Option<Error>,
}

/// A frame on its way to the legs.
#[derive(Debug)]
pub(crate) struct Closed {
    pub(crate) seq: Seq,
    pub(crate) segment: Opened,
    /// The frame's first slot.
    pub(crate) start: u16,
    /// The first slot behind it.
    pub(crate) end: u16,
    pub(crate) reach: Reach,
    pub(crate) buffer: Buffer,
}

/// What the writer task does next.
pub(crate) enum Step {
    Write(Closed),
    Roll,
    Stop,
}

/// Where blocks were put.
#[derive(Clone, Debug)]
pub(crate) struct Placed {
    pub(crate) seq: Seq,
    pub(crate) segment: SegmentId,
    pub(crate) slot: u16,
    pub(crate) checksums: SmallVec<[u32; 2]>,
}

/// Where a record was put.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Appended {
    pub(crate) seq: Seq,
    pub(crate) segment: SegmentId,
}

/// See the file's comment.
pub(crate) struct Log {
    pool: u128,
    epoch: AtomicU64,
    slots: usize,
    durable: AtomicU64,
    state: Mutex<State>,
    /// The writer waits here for work.
    pub(crate) work: Gate,
    /// Others wait here for room and for durability.
    pub(crate) changed: Gate,
}

impl Log {
    /// A log whose next frame is `next_seq`, in segments of `slots` blocks.
    pub(crate) fn new(pool: u128, epoch: u64, slots: usize, next_seq: Seq) -> Self {
        Log {
            pool,
            epoch: AtomicU64::new(epoch),
            slots,
            durable: AtomicU64::new(next_seq - 1),
            state: Mutex::new(State { next_seq, roll: true, ..State::default() }),
            work: Gate::default(),
            changed: Gate::default(),
        }
    }

    pub(crate) fn set_epoch(&self, epoch: u64) {
        self.epoch.store(epoch, Ordering::Relaxed);
    }

    pub(crate) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Relaxed)
    }

    /// The highest frame that is durable, with all before it.
    pub(crate) fn durable(&self) -> Seq {
        self.durable.load(Ordering::Acquire)
    }

    /// The frame that is being gathered or would be next: once it is durable, so is everything appended so far.
    pub(crate) fn last_appended(&self) -> Seq {
        let state = self.state.lock();
        let empty = state.open.as_ref().is_none_or(|open| open.gathered.is_empty());
        if empty { state.next_seq - 1 } else { state.next_seq }
    }

    /// The frame's limits and the segment's, with `data` more blocks and `len` more bytes of records.
    fn fits(&self, current: &Current, open: &Open, data: usize, len: usize) -> bool {
        let (blocks, body) = (open.data + data, open.gathered.len + len);
        let footer = footer::blocks(current.gathered.len + body);
        let used = usize::from(open.start) + 1 + blocks + frame::spill_blocks(body);
        let objects = current.gathered.body.objects.len() + open.gathered.body.objects.len();
        blocks <= self.frame_data() && body <= FRAME_BODY && used + footer <= self.slots && objects < 60_000
    }

    fn frame_data(&self) -> usize {
        FRAME_DATA.min(self.slots / 4)
    }

    /// Runs `append` on the open frame if it takes `data` blocks and `len` bytes more; else asks for another frame.
    fn with_room<T>(
        &self,
        data: usize,
        len: usize,
        append: impl FnOnce(&Current, &mut Open) -> T,
    ) -> Result<Option<T>, Error> {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        if let Some(error) = state.broken {
            return Err(error);
        }
        let (Some(current), Some(open)) = (&state.current, &mut state.open) else { return Ok(None) };
        if self.fits(current, open, data, len) {
            let first = open.gathered.is_empty();
            let value = append(current, open);
            drop(guard);
            if first {
                self.work.wake();
            }
            return Ok(Some(value));
        }
        if open.gathered.is_empty() {
            self.end_segment(guard);
        }
        Ok(None)
    }

    /// Appends `pages` (contents with their content hashes) as blocks `block..`. `None`: there is no room now; wait for
    /// [`Log::has_room`]. The segment stays in the log until the caller, having put the blocks into the index, undoes
    /// one hold.
    pub(crate) fn append_data(
        &self,
        object: &Object,
        facts: &Facts,
        block: u64,
        pages: &[(Page, u64)],
        segments: &Segments,
    ) -> Result<Option<Placed>, Error> {
        let len = facts_len(facts) + record_len_of_data(pages.len());
        self.with_room(pages.len(), len, |current, open| {
            segments.hold(current.opened.id);
            self.put(current, open, (object, facts), block, pages)
        })
    }

    /// Appends a block that no contents match: reading it fails. As [`Log::append_data`] otherwise.
    pub(crate) fn append_damaged(
        &self,
        object: &Object,
        facts: &Facts,
        block: u64,
        segments: &Segments,
    ) -> Result<Option<Placed>, Error> {
        let zeros = (Page::from(vec![0; BLOCK]), content_hash(&[0; BLOCK]));
        let len = facts_len(facts) + record_len_of_data(1);
        self.with_room(1, len, |current, open| {
            segments.hold(current.opened.id);
            let mut placed = self.put(current, open, (object, facts), block, &[zeros]);
            placed.checksums[0] ^= 1;
            if let Some(Record::Data { checksums, .. }) = open.gathered.body.records.last_mut() {
                checksums[0] ^= 1;
            }
            placed
        })
    }

    fn put(
        &self,
        current: &Current,
        open: &mut Open,
        (object, facts): (&Object, &Facts),
        block: u64,
        pages: &[(Page, u64)],
    ) -> Placed {
        let slot = open.start + 1 + open.data as u16;
        let mut checksums = SmallVec::with_capacity(pages.len());
        for (i, (page, content)) in pages.iter().enumerate() {
            let at = (1 + open.data + i) * BLOCK;
            open.buffer[at..at + BLOCK].copy_from_slice(page);
            let (slot, block) = (slot + i as u16, block + i as u64);
            checksums.push(bind(*content, self.pool, object.key_hash, block, current.opened.seq, slot));
        }
        open.data += pages.len();
        let index = open.gathered.object(object.number, facts.clone());
        open.gathered.record(Record::Data { object: index, block, slot, checksums: checksums.clone() });
        Placed { seq: open.seq, segment: current.opened.id, slot, checksums }
    }

    /// Appends a cut, and in the same frame what is left of the block it goes through. The segment stays in the log
    /// until the caller undoes one hold for the cut, and one for the block.
    pub(crate) fn append_cut(
        &self,
        object: &Object,
        facts: &Facts,
        size: u64,
        last: Option<&(Page, u64)>,
        segments: &Segments,
    ) -> Result<Option<(Appended, Option<Placed>)>, Error> {
        let len = facts_len(facts) + 16 + record_len_of_data(1);
        self.with_room(usize::from(last.is_some()), len, |current, open| {
            segments.hold(current.opened.id);
            let index = open.gathered.object(object.number, facts.clone());
            open.gathered.record(Record::Truncate { object: index, size });
            let appended = Appended { seq: open.seq, segment: current.opened.id };
            let placed = last.map(|page| {
                segments.hold(current.opened.id);
                let block = size / BLOCK as u64;
                self.put(current, open, (object, facts), block, std::slice::from_ref(page))
            });
            (appended, placed)
        })
    }

    /// Appends what `record` makes of the object's index, or only the object's facts. `None`: no room now. Returns the
    /// frame and the segment it is in.
    pub(crate) fn append(
        &self,
        object: &Object,
        facts: &Facts,
        record: Option<fn(u16, u64, u64) -> Record>,
        (first, second): (u64, u64),
    ) -> Result<Option<(Seq, SegmentId)>, Error> {
        self.with_room(0, facts_len(facts) + 32, |current, open| {
            let index = open.gathered.object(object.number, facts.clone());
            if let Some(record) = record {
                open.gathered.record(record(index, first, second));
            }
            (open.seq, current.opened.id)
        })
    }

    /// Appends a note. `None`: no room now. `notes` keeps the segment in the log.
    pub(crate) fn append_note(
        &self,
        bytes: &[u8],
        notes: &Notes,
        segments: &Segments,
    ) -> Result<Option<(Seq, NoteId)>, Error> {
        let record = Record::Note { bytes: bytes.into() };
        let len = record_len(&record);
        self.with_room(0, len, |current, open| {
            open.gathered.record(record);
            (open.seq, notes.keep(current.opened.id, open.seq, len, segments))
        })
    }

    /// Whether the open frame takes `data` more blocks, or an append would fail at once. If not even an empty one
    /// does, the segment is at its end.
    pub(crate) fn has_room(&self, data: usize) -> bool {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let (Some(current), Some(open)) = (&state.current, &state.open) else {
            return state.broken.is_some();
        };
        if state.broken.is_some() || self.fits(current, open, data.min(self.frame_data()), 4096) {
            return true;
        }
        if open.gathered.is_empty() {
            self.end_segment(guard);
        }
        false
    }

    /// Not even an empty frame takes what is to be appended.
    fn end_segment(&self, mut state: MutexGuard<'_, State>) {
        state.roll = true;
        drop(state);
        self.work.wake();
    }

    /// Calls `done` once frame `seq` is durable or the log is broken; at once if that is so already.
    pub(crate) fn when_durable(&self, seq: Seq, done: Completion) {
        let result = {
            let mut state = self.state.lock();
            match state.broken {
                _ if self.durable() >= seq => Ok(()),
                Some(error) => Err(error),
                None => {
                    state.waiting.push((seq, done));
                    return;
                }
            }
        };
        done(result);
    }

    /// Waits until frame `seq` is durable.
    pub(crate) async fn committed(&self, seq: Seq) -> Result<(), Error> {
        let ready = || match self.state.lock().broken {
            _ if self.durable() >= seq => Some(Ok(())),
            broken => broken.map(Err),
        };
        self.changed.until(ready).await
    }

    /// Waits until the first segment is there, and the pool's new epoch in a frame.
    pub(crate) async fn started(&self) -> Result<(), Error> {
        let ready = || {
            let state = self.state.lock();
            state.broken.map(Err).or_else(|| state.current.is_some().then_some(Ok(())))
        };
        self.changed.until(ready).await?;
        self.committed(self.kick()).await
    }

    /// The segment being written, if anything was written to it.
    pub(crate) fn used_segment(&self) -> Option<SegmentId> {
        let state = self.state.lock();
        let used = |current: &&Current| !current.gathered.is_empty();
        state.current.as_ref().filter(used).map(|current| current.opened.id)
    }

    /// The segment being written.
    pub(crate) fn segment(&self) -> Option<SegmentId> {
        self.state.lock().current.as_ref().map(|current| current.opened.id)
    }

    /// Whether that segment is not written any more.
    pub(crate) fn has_left(&self, segment: SegmentId) -> bool {
        let state = self.state.lock();
        state.broken.is_some() || state.current.as_ref().is_some_and(|current| current.opened.id != segment)
    }

    /// Wants a frame soon, even an empty one; returns its number.
    pub(crate) fn kick(&self) -> Seq {
        let mut state = self.state.lock();
        state.kick = true;
        let seq = state.next_seq;
        drop(state);
        self.work.wake();
        seq
    }

    /// Wants the next segment: this one lost a leg.
    pub(crate) fn want_roll(&self) {
        self.state.lock().roll = true;
        self.work.wake();
    }

    /// The writer waits for a segment to become free, or does not any more.
    pub(crate) fn set_full(&self, full: bool) {
        if std::mem::replace(&mut self.state.lock().full, full) != full {
            self.changed.wake();
        }
    }

    /// Whether nothing can be appended until a segment becomes free.
    pub(crate) fn is_full(&self) -> bool {
        self.state.lock().full
    }

    /// Lets the writer end once everything appended is written.
    pub(crate) fn close(&self) {
        self.state.lock().closing = true;
        self.work.wake();
    }

    /// No leg takes writes any more: everybody waiting learns it.
    pub(crate) fn break_down(&self, error: Error) -> Vec<Completion> {
        let mut state = self.state.lock();
        state.broken = Some(error);
        state.waiting.drain(..).map(|(_, done)| done).collect()
    }

    /// Why nothing can be appended any more, if so.
    pub(crate) fn broken(&self) -> Option<Error> {
        self.state.lock().broken
    }

    /// What the writer does next; `None` if there is nothing to do.
    pub(crate) fn next_step(&self, advance: impl FnOnce() -> Reach) -> Option<Step> {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let wanted = |open: &Open| state.kick || !open.gathered.is_empty();
        if state.open.as_ref().is_some_and(wanted) {
            state.kick = false;
            return self.close_frame(state, advance()).map(Step::Write);
        }
        if state.broken.is_some() || (state.closing && state.current.is_some()) {
            return Some(Step::Stop);
        }
        if !state.roll {
            return None;
        }
        // Nothing may be appended to the old segment any more.
        state.spare.extend(state.open.take().map(|open| open.buffer));
        Some(Step::Roll)
    }

    /// Closes the open frame and opens the next if the segment has room.
    fn close_frame(&self, state: &mut State, reach: Reach) -> Option<Closed> {
        let current = state.current.as_mut()?;
        let Open { seq, start, data, gathered, mut buffer } = state.open.take()?;
        let spill = frame::spill_blocks(gathered.len);
        let end = start + (1 + data + spill) as u16;
        let head = FrameHead {
            pool: self.pool,
            epoch: self.epoch(),
            seq,
            acked: self.durable(),
            tail: reach.tail,
            oldest_position: reach.oldest.0,
            oldest_seq: if reach.oldest.1 { u64::MAX } else { reach.oldest.2 },
            segment_seq: current.opened.seq,
            start,
            data_blocks: data as u16,
            tail_blocks: spill as u16,
        };
        if let Err(invalid) = frame::encode(&head, &gathered.body, &mut buffer[..(1 + data + spill) * BLOCK])
        {
            // Better no server than a log that cannot be read.
            panic!("{invalid}");
        }
        current.gathered.absorb(gathered);
        current.next = end;
        let segment = current.opened.clone();
        state.next_seq = seq + 1;
        self.open_frame(state);
        Some(Closed { seq, segment, start, end, reach, buffer })
    }

    fn empty(seq: Seq, start: u16, buffer: Buffer) -> Open {
        Open { seq, start, data: 0, gathered: Gathered::default(), buffer }
    }

    fn buffer(&self, spare: &mut Vec<Buffer>) -> Buffer {
        spare.pop().unwrap_or_else(|| Buffer::zeroed(1 + self.frame_data() + frame::spill_blocks(FRAME_BODY)))
    }

    fn open_frame(&self, state: &mut State) {
        if state.roll {
            return;
        }
        let Some(current) = &state.current else { return };
        let open = Self::empty(state.next_seq, current.next, self.buffer(&mut state.spare));
        if self.fits(current, &open, 1, 256) {
            state.open = Some(open);
        } else {
            state.spare.push(open.buffer);
            state.roll = true;
        }
    }

    /// A frame is durable. Returns whom to tell.
    pub(crate) fn wrote(&self, seq: Seq, buffer: Option<Buffer>) -> Vec<Completion> {
        let mut state = self.state.lock();
        if let Some(buffer) = buffer.filter(|_| state.spare.len() < 3) {
            state.spare.push(buffer);
        }
        self.durable.store(seq, Ordering::Release);
        let waiting = std::mem::take(&mut state.waiting);
        let (due, rest): (Vec<_>, Vec<_>) = waiting.into_iter().partition(|(wanted, _)| *wanted <= seq);
        state.waiting = rest;
        due.into_iter().map(|(_, done)| done).collect()
    }

    /// The footer of the segment being written, to be put at its end.
    pub(crate) fn footer(&self) -> Option<(Opened, Footer)> {
        let state = self.state.lock();
        let current = state.current.as_ref()?;
        let footer = Footer {
            pool: self.pool,
            segment_seq: current.opened.seq,
            epoch: self.epoch(),
            body: current.gathered.body.clone(),
        };
        Some((current.opened.clone(), footer))
    }

    /// The seq of the next frame.
    pub(crate) fn next_seq(&self) -> Seq {
        self.state.lock().next_seq
    }

    /// Goes on in `opened`, whose header is in slot 0.
    pub(crate) fn continue_in(&self, opened: Opened) {
        let mut state = self.state.lock();
        state.current = Some(Current { opened, next: 1, gathered: Gathered::default() });
        state.roll = false;
        self.open_frame(&mut state);
        drop(state);
        self.changed.wake();
    }
}

/// Encoded size of a data record of `blocks` blocks.
fn record_len_of_data(blocks: usize) -> usize {
    let checksums = SmallVec::from_elem(0, blocks);
    record_len(&Record::Data { object: 0, block: 0, slot: 0, checksums })
}
