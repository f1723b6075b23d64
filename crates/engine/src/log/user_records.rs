//! Notes: records of the engine's user that travel in the log with data, in the one order there is.
//!
//! What is in a note is none of the engine's business. It keeps the segments of notes in the log until they are let go,
//! and hands back at recovery what it finds in the log: every durable note that was not let go, in order, each once;
//! and before those perhaps some that were let go already.

use forebay_common::lock::atomic::{AtomicUsize, Ordering};
use std::collections::VecDeque;
use std::time::Duration;

use crate::buffer::BLOCK;
use crate::destage::throttle::{SLACK, Spread};
use crate::engine::Engine;
use crate::index::leaf::SegmentId;
use crate::io::BackingError;
use crate::log::Whose;
use crate::segments::Segments;
use crate::wait::{Gate, before};
use crate::{Error, Result, Seq};
use forebay_common::lock::Mutex;

/// The longest note, in bytes: it fits any frame that is empty.
pub const USER_RECORD_MAX: usize = 4000;

/// Notes may hold this part of what the log may have, before their user is asked to let go of them.
const SHARE: usize = 8;
/// More than this part they may not take.
const MOST: u64 = 4;
/// So long until the next look, at most: where a thread sleeps, nothing wakes it.
const LOOK: Duration = Duration::from_millis(100);

/// A note's number: grows by one with each, from 1 at every opening.
pub type UserRecordId = u64;

/// A note that was found in the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserRecord {
    /// Its number from now on.
    pub id: UserRecordId,
    /// What was appended.
    pub bytes: Box<[u8]>,
}

#[derive(Debug, Default)]
struct Inner {
    last: UserRecordId,
    /// Segments with notes that were not let go, oldest first.
    kept: VecDeque<Kept>,
    /// The frame of the last note, and what that took of the log, in bytes.
    frame: Seq,
    cost: u64,
    /// Segments that those take which were written again for being needed still.
    carried: usize,
    spread: Spread,
}

#[derive(Clone, Copy, Debug)]
struct Kept {
    segment: SegmentId,
    /// Its last note.
    last: UserRecordId,
    /// What its notes take of the log, in bytes.
    bytes: u64,
}

impl Inner {
    /// What the notes that were not let go take of the log, in bytes.
    fn bytes(&self) -> u64 {
        self.kept.iter().map(|kept| kept.bytes).sum()
    }
}

/// Which notes keep which segments in the log.
#[derive(Debug, Default)]
pub(crate) struct UserRecords {
    inner: Mutex<Inner>,
    /// How many wait for notes to be let go.
    wanted: AtomicUsize,
    /// Why their user cannot let go of all.
    stuck: Mutex<Option<BackingError>>,
    /// Wakes whoever waits for that, and whoever lets go.
    pub(crate) changed: Gate,
}

impl UserRecords {
    /// Numbers a note of `len` bytes that is being put into `frame` in `segment`, and keeps that in the log.
    pub(crate) fn keep(
        &self,
        segment: SegmentId,
        frame: Seq,
        len: usize,
        segments: &Segments,
    ) -> UserRecordId {
        let mut inner = self.inner.lock();
        inner.last += 1;
        let last = inner.last;
        // It is in a frame, of which there would be none but for the first, and in a footer.
        let first = std::mem::replace(&mut inner.frame, frame) != frame;
        let bytes = if first { BLOCK } else { 2 * len } as u64;
        inner.cost = bytes;
        match inner.kept.back_mut() {
            Some(kept) if kept.segment == segment => (kept.last, kept.bytes) = (last, kept.bytes + bytes),
            _ => {
                segments.hold(segment);
                inner.kept.push_back(Kept { segment, last, bytes });
            }
        }
        last
    }

    /// Whether any segment is not kept any more.
    fn let_go(&self, upto: UserRecordId, segments: &Segments) -> bool {
        let mut inner = self.inner.lock();
        let before = inner.kept.len();
        while let Some(kept) = inner.kept.front().copied().filter(|kept| kept.last <= upto) {
            segments.release(kept.segment);
            inner.kept.pop_front();
        }
        inner.carried = 0;
        inner.kept.len() < before
    }

    /// Notes that are still needed were written again; they take so many segments.
    pub(crate) fn carried(&self, segments: usize) {
        self.inner.lock().carried = segments;
    }

    /// The last note there is.
    pub(crate) fn last(&self) -> UserRecordId {
        self.inner.lock().last
    }

    /// The oldest segment that is kept, and its last note.
    pub(crate) fn oldest_kept(&self) -> Option<(SegmentId, UserRecordId)> {
        self.inner.lock().kept.front().map(|kept| (kept.segment, kept.last))
    }

    /// Whether notes hold so much of the log that some have to be let go.
    fn hold_too_much(&self, segments: &Segments) -> bool {
        let (oldest, carried) = {
            let inner = self.inner.lock();
            (inner.kept.front().map(|kept| kept.segment), inner.carried)
        };
        let held = oldest.map_or(0, |oldest| segments.log_since(oldest));
        held.saturating_sub(carried) * SHARE > segments.log_use().share
    }

    /// Whether no segment is kept for a note up to this one.
    fn are_let_go(&self, upto: UserRecordId) -> bool {
        self.inner.lock().kept.front().is_none_or(|kept| kept.last > upto)
    }

    /// Asks for all notes to be let go, while the result lives.
    pub(crate) fn want(&self) -> Wanting<'_> {
        self.wanted.fetch_add(1, Ordering::AcqRel);
        self.changed.wake();
        Wanting(self)
    }

    /// Whether no segment is kept.
    pub(crate) fn none_kept(&self) -> bool {
        self.inner.lock().kept.is_empty()
    }
}

impl Engine {
    /// Appends a note of 1 to [`USER_RECORD_MAX`] bytes, waiting for room; and while notes have to be let go, a little longer the
    /// less of it there is. It is durable once [`Engine::commit`] of the frame returned has succeeded, on every device in
    /// use, together with everything accepted before it; and is found again until [`Engine::let_go`].
    ///
    /// # Errors
    /// No cache device is left, or the engine closes.
    pub async fn note(&self, bytes: &[u8]) -> Result<(Seq, UserRecordId)> {
        self.spread_notes().await;
        loop {
            if let Some(noted) = self.try_note(bytes)? {
                return Ok(noted);
            }
            self.log.until(|| (self.closing() || self.log.has_room(0)).then_some(())).await;
            if self.closing() {
                return Err(Error::Closing);
            }
        }
    }

    /// Waits for its turn, while notes hold much of the log.
    async fn spread_notes(&self) {
        let kept = self.notes.oldest_kept();
        // Without devices nothing is let go, and only who appends finds that the log is broken.
        let stopped = || self.log.broken().is_some() || self.closing() || self.active() == 0;
        let over = || self.notes.oldest_kept() != kept || stopped();
        while !over() && self.notes.hold_too_much(&self.segments) {
            let now = self.env.clock.now();
            let turn = self.admit_note(now);
            let mut left = turn.map_or(LOOK, |turn| turn.saturating_sub(now));
            while left > SLACK && !over() {
                let look = self.env.clock.sleep(left.min(LOOK));
                before(look, self.notes.changed.until(|| over().then_some(()))).await;
                left = turn.map_or(Duration::ZERO, |turn| turn.saturating_sub(self.env.clock.now()));
            }
            if turn.is_some() {
                return;
            }
        }
    }

    /// The turn of the next note; `None`: notes hold as much as they may.
    fn admit_note(&self, now: Duration) -> Option<Duration> {
        let most = self.segments.log_use().share as u64 * self.segment_size / MOST;
        let mut inner = self.notes.inner.lock();
        let (cost, room) = (inner.cost, most.saturating_sub(inner.bytes()));
        inner.spread.admit(now, cost, room)
    }

    /// The same without waiting: `None` if there is no room now.
    ///
    /// # Errors
    /// No cache device is left.
    pub fn try_note(&self, bytes: &[u8]) -> Result<Option<(Seq, UserRecordId)>> {
        self.append_note(Whose::New, bytes)
    }

    pub(crate) fn append_note(&self, whose: Whose, bytes: &[u8]) -> Result<Option<(Seq, UserRecordId)>> {
        self.log.append_note(whose, bytes, &self.notes, &self.segments)
    }

    /// Notes up to this one are not needed any more.
    pub fn let_go(&self, upto: UserRecordId) {
        let any = self.notes.let_go(upto, &self.segments);
        self.segments.advance();
        if any {
            let now = self.env.clock.now();
            self.notes.inner.lock().spread.let_go(now);
        }
        self.notes.changed.wake();
        // Nothing may be left to destage: who waits for the log to be less full waits for this.
        self.destager.throttle.changed.wake();
        self.space.wake();
    }

    /// Waits until the log needs notes to be let go, and returns the last one there is; `None` once the engine closes.
    /// Whoever appends notes has to ask, and to answer with [`Engine::let_go`]: flushes and removals of devices wait for
    /// it.
    pub async fn notes_due(&self) -> Option<UserRecordId> {
        let due = || {
            if self.closing() {
                return Some(None);
            }
            let (oldest, _) = self.notes.oldest_kept()?;
            let wanted = self.notes.wanted.load(Ordering::Acquire) > 0;
            // Writes are not cached until everything is on two devices again, which notes must not hold up.
            let lone = self.segments.devices() > 1 && self.segments.keeps_lone(oldest);
            let in_the_way = || self.segments.is_in_the_way(oldest, self.spare_segments());
            let due = wanted || lone || self.notes.hold_too_much(&self.segments) || in_the_way();
            due.then(|| Some(self.notes.last()))
        };
        self.notes.changed.until(due).await
    }

    /// Some notes cannot be let go of for now, and whoever waits for it is told why; or (`None`) all can be again.
    pub fn keep_notes(&self, why: Option<BackingError>) {
        *self.notes.stuck.lock() = why;
        self.notes.changed.wake();
    }

    /// Waits until everything noted so far is let go, or the engine closes.
    ///
    /// # Errors
    /// It cannot be let go of, or no cache device is left to say so.
    pub(crate) async fn notes_let_go(&self) -> Result<()> {
        let last = self.notes.last();
        let _wanting = self.notes.want();
        let ready = || {
            // What was written again for being needed is not let go.
            let stuck = self.notes.stuck.lock().filter(|_| !self.notes.none_kept());
            let through = self.notes.are_let_go(last) || self.closing();
            let gone = || self.log.broken().map(Err);
            stuck.map(|why| Err(Error::Backing(why))).or_else(|| through.then_some(Ok(()))).or_else(gone)
        };
        self.notes.changed.until(ready).await
    }
}

/// Somebody waits for notes to be let go; given up or not.
pub(crate) struct Wanting<'a>(&'a UserRecords);

impl Drop for Wanting<'_> {
    fn drop(&mut self) {
        self.0.wanted.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::SegmentKind;

    #[test]
    fn a_segment_stays_in_the_log_until_its_last_note_is_let_go() {
        let segments = Segments::new(1, vec![vec![1, 0], vec![1, 0]], vec![2, 2]);
        let notes = UserRecords::default();
        let opened = || {
            let opened = segments.open(SegmentKind::Log, 2, 0).unwrap();
            segments.seal(opened.id);
            opened
        };
        let (first, second) = (opened(), opened());
        let ids: Vec<_> = [&first, &first, &second].map(|at| notes.keep(at.id, 1, 9, &segments)).into();
        assert_eq!(ids, [1, 2, 3]);
        let log_since = |at: SegmentId| {
            segments.advance();
            segments.log_since(at)
        };
        notes.let_go(1, &segments);
        assert_eq!(log_since(first.id), 2);
        notes.let_go(2, &segments);
        assert_eq!((log_since(first.id), log_since(second.id)), (0, 1));
        assert!(notes.are_let_go(2) && !notes.are_let_go(3));
        notes.let_go(u64::MAX, &segments);
        assert!(log_since(second.id) == 0 && notes.none_kept());
    }
}
