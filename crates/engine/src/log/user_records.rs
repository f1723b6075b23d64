//! User records: records of the engine's user that are in the log, in one order with data.
//!
//! The engine does not read the contents of a user record. It keeps the segments of user records in the log until the
//! records are released. Recovery returns every durable record that was not released, in order, each once. Some
//! records that were released already may come before those.

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

/// The longest user record, in bytes. It fits any empty frame.
pub const USER_RECORD_MAX: usize = 4000;

/// User records may hold one part in this number of the log's share before their user is asked to release them.
const SHARE: usize = 8;
/// User records may take at most one part in this number of the log's share.
const MOST: u64 = 4;
/// The longest time until a waiter looks again. A sleeping waiter is not woken by a change.
const LOOK: Duration = Duration::from_millis(100);

/// A user record's number. It grows by one with each record, from 1 at every opening.
pub type UserRecordId = u64;

/// A user record that was found in the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserRecord {
    /// The record's number from now on.
    pub id: UserRecordId,
    /// The bytes that were appended.
    pub bytes: Box<[u8]>,
}

#[derive(Debug, Default)]
struct Inner {
    last: UserRecordId,
    /// Segments with user records that were not released, oldest first.
    kept: VecDeque<Kept>,
    /// The frame of the last user record, and the bytes that this record took of the log.
    frame: Seq,
    cost: u64,
    /// Number of segments taken by user records that were reappended because they are still needed.
    carried: usize,
    spread: Spread,
}

#[derive(Clone, Copy, Debug)]
struct Kept {
    segment: SegmentId,
    /// The last user record of the segment.
    last: UserRecordId,
    /// Bytes of the log that the segment's user records take.
    bytes: u64,
}

impl Inner {
    /// Returns the bytes of the log that unreleased user records take.
    fn bytes(&self) -> u64 {
        self.kept.iter().map(|kept| kept.bytes).sum()
    }
}

/// The segments that user records keep in the log.
#[derive(Debug, Default)]
pub(crate) struct UserRecords {
    inner: Mutex<Inner>,
    /// Number of tasks that wait for user records to be released.
    wanted: AtomicUsize,
    /// The reason why the user cannot release all records.
    stuck: Mutex<Option<BackingError>>,
    /// Wakes the tasks that wait for a release, and the task that releases records.
    pub(crate) changed: Gate,
}

impl UserRecords {
    /// Numbers a user record of `len` bytes that is being put into `frame` in `segment`, and keeps the segment in the
    /// log.
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
        // The record takes space in a frame and in a footer. The first record of a frame pays for the frame, which
        // may exist only for it.
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

    /// Releases the user records up to `upto`. Returns true if any segment is not kept any more.
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

    /// Records the number of segments taken by reappended user records.
    pub(crate) fn carried(&self, segments: usize) {
        self.inner.lock().carried = segments;
    }

    /// Returns the number of the last user record.
    pub(crate) fn last(&self) -> UserRecordId {
        self.inner.lock().last
    }

    /// Returns the oldest segment that is kept, and its last user record.
    pub(crate) fn oldest_kept(&self) -> Option<(SegmentId, UserRecordId)> {
        self.inner.lock().kept.front().map(|kept| (kept.segment, kept.last))
    }

    /// Returns true if user records hold so much of the log that some must be released.
    fn hold_too_much(&self, segments: &Segments) -> bool {
        let (oldest, carried) = {
            let inner = self.inner.lock();
            (inner.kept.front().map(|kept| kept.segment), inner.carried)
        };
        let held = oldest.map_or(0, |oldest| segments.log_since(oldest));
        held.saturating_sub(carried) * SHARE > segments.log_use().share
    }

    /// Returns true if no segment is kept for a user record up to `upto`.
    fn are_let_go(&self, upto: UserRecordId) -> bool {
        self.inner.lock().kept.front().is_none_or(|kept| kept.last > upto)
    }

    /// Asks for the release of all user records, while the result lives.
    pub(crate) fn want(&self) -> Wanting<'_> {
        self.wanted.fetch_add(1, Ordering::AcqRel);
        self.changed.wake();
        Wanting(self)
    }

    /// Returns true if no segment is kept.
    pub(crate) fn none_kept(&self) -> bool {
        self.inner.lock().kept.is_empty()
    }
}

impl Engine {
    /// Appends a user record of 1 to [`USER_RECORD_MAX`] bytes, and waits for room. While records must be released,
    /// the wait grows as room runs out. The record is durable once [`Engine::commit`] of the returned frame has
    /// succeeded. Then it is on every device in use, together with everything accepted before it. Recovery returns it
    /// until [`Engine::let_go`].
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

    /// Waits for the turn of the next user record, while user records hold much of the log.
    async fn spread_notes(&self) {
        let kept = self.notes.oldest_kept();
        // Without devices no record is released, and only an append finds that the log is broken.
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

    /// Returns the turn of the next user record; `None` if user records hold as much as they may.
    fn admit_note(&self, now: Duration) -> Option<Duration> {
        let most = self.segments.log_use().share as u64 * self.segment_size / MOST;
        let mut inner = self.notes.inner.lock();
        let (cost, room) = (inner.cost, most.saturating_sub(inner.bytes()));
        inner.spread.admit(now, cost, room)
    }

    /// Appends a user record without waiting. Returns `None` if there is no room now.
    ///
    /// # Errors
    /// No cache device is left.
    pub fn try_note(&self, bytes: &[u8]) -> Result<Option<(Seq, UserRecordId)>> {
        self.append_note(Whose::New, bytes)
    }

    pub(crate) fn append_note(&self, whose: Whose, bytes: &[u8]) -> Result<Option<(Seq, UserRecordId)>> {
        self.log.append_note(whose, bytes, &self.notes, &self.segments)
    }

    /// Releases the user records up to `upto`: they are not needed any more.
    pub fn let_go(&self, upto: UserRecordId) {
        let any = self.notes.let_go(upto, &self.segments);
        self.segments.advance();
        if any {
            let now = self.env.clock.now();
            self.notes.inner.lock().spread.let_go(now);
        }
        self.notes.changed.wake();
        // Possibly no block is left to destage. Then a task that waits for room in the log waits for this release.
        self.destager.throttle.changed.wake();
        self.space.wake();
    }

    /// Waits until the log needs user records to be released. Returns the number of the last record; `None` once the
    /// engine closes. The user that appends records must call this, and answer with [`Engine::let_go`]. Flushes and
    /// removals of devices wait for that.
    pub async fn notes_due(&self) -> Option<UserRecordId> {
        let due = || {
            if self.closing() {
                return Some(None);
            }
            let (oldest, _) = self.notes.oldest_kept()?;
            let wanted = self.notes.wanted.load(Ordering::Acquire) > 0;
            // Writes are not cached until all data is on two devices again. User records must not hold that up.
            let lone = self.segments.devices() > 1 && self.segments.keeps_lone(oldest);
            let in_the_way = || self.segments.is_in_the_way(oldest, self.spare_segments());
            let due = wanted || lone || self.notes.hold_too_much(&self.segments) || in_the_way();
            due.then(|| Some(self.notes.last()))
        };
        self.notes.changed.until(due).await
    }

    /// Records that some user records cannot be released for now, so that waiters get the error `why`; or (`None`)
    /// that all can be released again.
    pub fn keep_notes(&self, why: Option<BackingError>) {
        *self.notes.stuck.lock() = why;
        self.notes.changed.wake();
    }

    /// Waits until all present user records are released, or the engine closes.
    ///
    /// # Errors
    /// The records cannot be released, or no cache device is left to record the release.
    pub(crate) async fn notes_let_go(&self) -> Result<()> {
        let last = self.notes.last();
        let _wanting = self.notes.want();
        let ready = || {
            // Reappended records that are still needed do not count as released.
            let stuck = self.notes.stuck.lock().filter(|_| !self.notes.none_kept());
            let through = self.notes.are_let_go(last) || self.closing();
            let gone = || self.log.broken().map(Err);
            stuck.map(|why| Err(Error::Backing(why))).or_else(|| through.then_some(Ok(()))).or_else(gone)
        };
        self.notes.changed.until(ready).await
    }
}

/// A mark that a task waits for user records to be released. Dropped when the wait ends or is given up.
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
