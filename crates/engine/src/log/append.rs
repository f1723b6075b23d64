//! Appending to the open frame.

use forebay_common::lock::MutexGuard;
use smallvec::SmallVec;

use super::{AppendKind, Appended, Current, Log, Open, Placed, State};
use crate::buffer::BLOCK;
use crate::format::{Facts, Record, bind, content_hash, facts_len, footer, frame, record_len};
use crate::index::object::CachedObject;
use crate::index::page::Page;
use crate::log::user_records::{UserRecordId, UserRecords};
use crate::planted_bugs;
use crate::segments::Segments;
use crate::{Error, Seq};

/// The highest number of data blocks in a frame.
const FRAME_DATA: usize = 512;
/// The highest number of bytes of records in a frame.
pub(super) const FRAME_BODY: usize = 64 * 1024;

impl Log {
    /// Returns true if `data` more blocks and `len` more bytes of records stay within the limits of frame and
    /// segment.
    pub(super) fn fits(&self, current: &Current, open: &Open, data: usize, len: usize) -> bool {
        let (blocks, body) = (open.data + data, open.gathered.len + len);
        let footer = footer::blocks(current.gathered.len + body);
        let used = usize::from(open.start) + 1 + blocks + frame::spill_blocks(body);
        let objects = current.gathered.body.objects.len() + open.gathered.body.objects.len();
        blocks <= self.frame_data() && body <= FRAME_BODY && used + footer <= self.slots && objects < 60_000
    }

    pub(super) fn frame_data(&self) -> usize {
        FRAME_DATA.min(self.slots / 4)
    }

    /// Runs `append` on the open frame if it takes `data` more blocks and `len` more bytes; otherwise asks for
    /// another frame.
    fn with_room<T>(
        &self,
        append_kind: AppendKind,
        data: usize,
        len: usize,
        append: impl FnOnce(&Current, &mut Open) -> T,
    ) -> Result<Option<T>, Error> {
        self.with_room_if(|state| state.takes(append_kind), data, len, append)
    }

    /// Runs `append` on the open frame if `taken` allows it and the frame takes `data` more blocks and `len` more
    /// bytes.
    fn with_room_if<T>(
        &self,
        taken: impl FnOnce(&State) -> bool,
        data: usize,
        len: usize,
        append: impl FnOnce(&Current, &mut Open) -> T,
    ) -> Result<Option<T>, Error> {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        if let Some(error) = state.broken {
            return Err(error);
        }
        if !taken(state) {
            return Ok(None);
        }
        let (Some(current), Some(open)) = (&state.current, &mut state.open) else { return Ok(None) };
        if self.fits(current, open, data, len) {
            // The thread that writes a frame looks for more work afterwards.
            let alone = !state.stepping || planted_bugs::active("two write frames at once");
            let first = open.gathered.is_empty() && alone;
            let value = append(current, open);
            drop(guard);
            if first && !self.lead.get().is_some_and(|lead| lead()) {
                self.work.wake();
            }
            return Ok(Some(value));
        }
        if open.gathered.is_empty() {
            self.end_segment(guard);
        }
        Ok(None)
    }

    /// Appends `pages` (contents with their content hashes) as blocks `block..`. Returns `None` if there is no room
    /// now: the caller waits for [`Log::has_room`]. The segment stays in the log until the caller has put the blocks
    /// into the index and undone one hold.
    pub(crate) fn append_data(
        &self,
        object: &CachedObject,
        facts: &Facts,
        block: u64,
        pages: &[(Page, u64)],
        segments: &Segments,
    ) -> Result<Option<Placed>, Error> {
        self.append_data_if(|state| state.takes(AppendKind::Moved), object, facts, block, pages, segments)
    }

    /// Appends pages that are new to the log. Returns `None` without room, or if some dirty data is not on two
    /// devices, or will not be.
    pub(crate) fn accept_data(
        &self,
        object: &CachedObject,
        facts: &Facts,
        block: u64,
        pages: &[(Page, u64)],
        segments: &Segments,
    ) -> Result<Option<Placed>, Error> {
        self.append_data_if(
            |state| state.mirrored && state.takes(AppendKind::New),
            object,
            facts,
            block,
            pages,
            segments,
        )
    }

    /// Appends blocks if `taken` agrees once the log is locked. Returns their places; `None` without room.
    fn append_data_if(
        &self,
        taken: impl FnOnce(&State) -> bool,
        object: &CachedObject,
        facts: &Facts,
        block: u64,
        pages: &[(Page, u64)],
        segments: &Segments,
    ) -> Result<Option<Placed>, Error> {
        let len = facts_len(facts) + record_len_of_data(pages.len());
        self.with_room_if(taken, pages.len(), len, |current, open| {
            segments.hold(current.opened.id);
            self.put(current, open, object, facts, block, pages)
        })
    }

    /// Appends a block that no contents match: a read of it fails. Otherwise works as [`Log::append_data`].
    pub(crate) fn append_damaged(
        &self,
        object: &CachedObject,
        facts: &Facts,
        block: u64,
        segments: &Segments,
    ) -> Result<Option<Placed>, Error> {
        let zeros = (Page::from(vec![0; BLOCK]), content_hash(&[0; BLOCK]));
        let len = facts_len(facts) + record_len_of_data(1);
        self.with_room(AppendKind::Moved, 1, len, |current, open| {
            segments.hold(current.opened.id);
            let mut placed = self.put(current, open, object, facts, block, &[zeros]);
            placed.checksums[0] ^= 1;
            if let Some(Record::Data { checksums, .. }) = open.gathered.body.records.last_mut() {
                checksums[0] ^= 1;
            }
            placed
        })
    }

    /// Copies blocks into the open frame, which has room for them. Returns their places.
    fn put(
        &self,
        current: &Current,
        open: &mut Open,
        object: &CachedObject,
        facts: &Facts,
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

    /// Appends a truncation, and in the same frame the remaining part of the block at the new end. The segment stays
    /// in the log until the caller undoes one hold for the truncation and one for the block.
    pub(crate) fn append_cut(
        &self,
        append_kind: AppendKind,
        object: &CachedObject,
        facts: &Facts,
        size: u64,
        last: Option<&(Page, u64)>,
        segments: &Segments,
    ) -> Result<Option<(Appended, Option<Placed>)>, Error> {
        let len = facts_len(facts) + 16 + record_len_of_data(1);
        self.with_room(append_kind, usize::from(last.is_some()), len, |current, open| {
            segments.hold(current.opened.id);
            let index = open.gathered.object(object.number, facts.clone());
            open.gathered.record(Record::Truncate { object: index, size });
            let appended = Appended { seq: open.seq, segment: current.opened.id };
            let placed = last.map(|page| {
                segments.hold(current.opened.id);
                let block = size / BLOCK as u64;
                self.put(current, open, object, facts, block, std::slice::from_ref(page))
            });
            (appended, placed)
        })
    }

    /// Appends the record that `record` makes of the object's index, or only the object's facts. Returns the frame;
    /// `None` if there is no room now.
    pub(crate) fn append(
        &self,
        append_kind: AppendKind,
        object: &CachedObject,
        facts: &Facts,
        record: Option<fn(u16, u64, u64) -> Record>,
        first: u64,
        second: u64,
    ) -> Result<Option<Seq>, Error> {
        self.with_room(append_kind, 0, facts_len(facts) + 32, |_, open| {
            let index = open.gathered.object(object.number, facts.clone());
            if let Some(record) = record {
                open.gathered.record(record(index, first, second));
            }
            open.seq
        })
    }

    /// Appends a user record. Returns `None` if there is no room now. `notes` keeps the segment in the log.
    pub(crate) fn append_note(
        &self,
        append_kind: AppendKind,
        bytes: &[u8],
        notes: &UserRecords,
        segments: &Segments,
    ) -> Result<Option<(Seq, UserRecordId)>, Error> {
        let record = Record::UserRecord { bytes: bytes.into() };
        let len = record_len(&record);
        self.with_room(append_kind, 0, len, |current, open| {
            open.gathered.record(record);
            (open.seq, notes.keep(current.opened.id, open.seq, len, segments))
        })
    }

    /// Returns true if the open frame takes `data` more new blocks, or if an append would fail at once. If not even
    /// an empty frame takes them, the segment ends.
    pub(crate) fn has_room(&self, data: usize) -> bool {
        self.has_room_for(AppendKind::New, data)
    }

    /// Returns true if the open frame takes `data` more blocks of the kind `whose`, or if an append would fail at
    /// once.
    pub(crate) fn has_room_for(&self, append_kind: AppendKind, data: usize) -> bool {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        if !state.takes(append_kind) {
            return state.broken.is_some();
        }
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

    /// Ends the segment, since not even an empty frame takes the append.
    fn end_segment(&self, mut state: MutexGuard<'_, State>) {
        state.roll = true;
        drop(state);
        self.work.wake();
    }
}

/// Returns the encoded size of a data record of `blocks` blocks.
fn record_len_of_data(blocks: usize) -> usize {
    let checksums = SmallVec::from_elem(0, blocks);
    record_len(&Record::Data { object: 0, block: 0, slot: 0, checksums })
}
