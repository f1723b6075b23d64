//! What the writer does, one step after another.

use forebay_common::lock::atomic::Ordering;

use super::append::FRAME_BODY;
use super::{Closed, Current, Log, Open, State, Step};
use crate::buffer::{BLOCK, Buffer};
use crate::format::{Footer, FrameHead, frame};
use crate::log::gathered::Gathered;
use crate::plant;
use crate::segments::{Opened, Reach};
use crate::{Completion, Error, Seq};

impl Log {
    /// What the writer does next; `None` if there is nothing to do.
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
            // Nobody writes what would be appended from now on.
            state.broken.get_or_insert(Error::Closing);
            return Some(Step::Stop);
        }
        if !state.roll {
            return None;
        }
        // Nothing may be appended to the old segment any more.
        state.spare.extend(state.open.take().map(|open| open.buffer));
        state.stepping = true;
        Some(Step::Roll)
    }

    /// The frame to be written now, for who is not the writer.
    pub(crate) fn next_frame(&self, advance: impl FnOnce() -> Reach) -> Option<Closed> {
        let mut state = self.state.lock();
        let alone = !state.stepping || plant::active("two write frames at once");
        let wanted = alone && state.broken.is_none() && state.wants_frame();
        if wanted { self.close_frame(&mut state, advance()) } else { None }
    }

    /// What [`Log::next_step`] or [`Log::next_frame`] gave has been done.
    pub(crate) fn end_step(&self) {
        let mut state = self.state.lock();
        state.stepping = false;
        let more = state.wants_frame() || state.roll || state.closing || state.broken.is_some();
        drop(state);
        if more {
            self.work.wake();
        }
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
        (state.kick, state.stepping) = (false, true);
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
