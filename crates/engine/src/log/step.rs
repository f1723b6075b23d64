//! The steps of the writer task.

use forebay_common::lock::atomic::Ordering;

use super::append::FRAME_BODY;
use super::{Closed, Current, Log, Open, State, Step};
use crate::buffer::{BLOCK, Buffer};
use crate::format::{Footer, FrameHead, frame};
use crate::log::gathered::Gathered;
use crate::planted_bugs;
use crate::segments::{Opened, Reach};
use crate::{Completion, Error, Seq};

impl Log {
    /// Returns the next step of the writer task; `None` if there is nothing to do.
    pub(crate) fn next_step(&self, advance: impl FnOnce() -> Reach) -> Option<Step> {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        if state.stepping {
            return None;
        }
        if state.wants_frame() {
            return self.close_frame(state, advance()).map(Step::Write);
        }
        if state.broken.is_some() || (state.closing && state.current.is_some()) {
            // After the stop no task writes further appends.
            state.broken.get_or_insert(Error::Closing);
            return Some(Step::Stop);
        }
        if !state.roll {
            return None;
        }
        // The old segment takes no appends any more.
        state.spare.extend(state.open.take().map(|open| open.buffer));
        state.stepping = true;
        Some(Step::Roll)
    }

    /// Returns the frame to be written now, for a thread other than the writer task.
    pub(crate) fn next_frame(&self, advance: impl FnOnce() -> Reach) -> Option<Closed> {
        let mut state = self.state.lock();
        let alone = !state.stepping || planted_bugs::active("two write frames at once");
        let wanted = alone && state.broken.is_none() && state.wants_frame();
        if wanted { self.close_frame(&mut state, advance()) } else { None }
    }

    /// Ends the step that [`Log::next_step`] or [`Log::next_frame`] returned.
    pub(crate) fn end_step(&self) {
        let mut state = self.state.lock();
        state.stepping = false;
        let more = state.wants_frame() || state.roll || state.closing || state.broken.is_some();
        drop(state);
        if more {
            self.work.wake();
        }
    }

    /// Closes the open frame, and opens the next frame if the segment has room.
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
            // A stopped server is better than a log that cannot be read.
            panic!("{invalid}");
        }
        current.gathered.absorb(gathered);
        current.next = end;
        let segment = current.opened.clone();
        (state.frame_requested, state.stepping) = (false, true);
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

    /// Opens the next frame if the current segment has room for one.
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

    /// Marks a frame as durable. Returns the completions to call.
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

    /// Returns the footer of the segment being written, to be put at its end.
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

    /// Returns the seq of the next frame.
    pub(crate) fn next_seq(&self) -> Seq {
        self.state.lock().next_seq
    }

    /// Continues in segment `opened`, whose header is in slot 0.
    pub(crate) fn continue_in(&self, opened: Opened) {
        let mut state = self.state.lock();
        state.current = Some(Current { opened, next: 1, gathered: Gathered::default() });
        state.roll = false;
        self.open_frame(&mut state);
        drop(state);
        self.changed.wake();
    }
}
