//! User records: records of the engine's user that are in the log, in one order with data.
//!
//! The engine does not read the contents of a user record. It keeps the segments of user records in the log until the
//! records are released. Recovery returns every durable record that was not released, in order, each once. Some
//! records that were released already may come before those.

use forebay_common::lock::Mutex;
use forebay_common::lock::atomic::{AtomicUsize, Ordering};
use std::collections::VecDeque;

use crate::Seq;
use crate::buffer::BLOCK;
use crate::io::BackingError;
use crate::log::spread::Spread;
use crate::segments::{SegmentId, Segments};
use crate::wait::Gate;

/// User records may hold one part in this number of the log's share before their user is asked to release them.
const SHARE: usize = 8;

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
pub(super) struct Inner {
    last: UserRecordId,
    /// Segments with user records that were not released, oldest first.
    kept: VecDeque<Kept>,
    /// The frame of the last user record, and the bytes that this record took of the log.
    frame: Seq,
    pub(super) cost: u64,
    /// Number of segments taken by user records that were reappended because they are still needed, or that replaced
    /// older ones.
    carried: usize,
    /// Bytes of the log taken by user records that replaced older ones. No release makes them fewer.
    replacing: u64,
    pub(super) spread: Spread,
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
    /// Returns the bytes of the log that unreleased user records take, without those that replaced older ones.
    pub(super) fn bytes(&self) -> u64 {
        let all: u64 = self.kept.iter().map(|kept| kept.bytes).sum();
        all.saturating_sub(self.replacing)
    }
}

/// The segments that user records keep in the log.
#[derive(Debug, Default)]
pub(crate) struct UserRecords {
    pub(super) inner: Mutex<Inner>,
    /// Number of tasks that wait for user records to be released.
    pub(super) wanted: AtomicUsize,
    /// The reason why the user cannot release all records.
    pub(super) stuck: Mutex<Option<BackingError>>,
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
    pub(super) fn release_user_records(&self, upto: UserRecordId, segments: &Segments) -> bool {
        let mut inner = self.inner.lock();
        let before = inner.kept.len();
        while let Some(kept) = inner.kept.front().copied().filter(|kept| kept.last <= upto) {
            segments.release(kept.segment);
            inner.kept.pop_front();
        }
        (inner.carried, inner.replacing) = (0, 0);
        inner.kept.len() < before
    }

    /// Records that user records in `segments` segments are needed still, or have replaced the released ones. Those
    /// that have replaced others take `bytes` bytes.
    pub(crate) fn replaced(&self, segments: usize, bytes: u64) {
        let mut inner = self.inner.lock();
        (inner.carried, inner.replacing) = (segments, bytes);
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
    pub(super) fn hold_too_much(&self, segments: &Segments) -> bool {
        let (oldest, carried) = {
            let inner = self.inner.lock();
            (inner.kept.front().map(|kept| kept.segment), inner.carried)
        };
        let held = oldest.map_or(0, |oldest| segments.log_since(oldest));
        held.saturating_sub(carried) * SHARE > segments.log_use().share
    }

    /// Returns true if no segment is kept for a user record up to `upto`.
    pub(super) fn are_let_go(&self, upto: UserRecordId) -> bool {
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
        notes.release_user_records(1, &segments);
        assert_eq!(log_since(first.id), 2);
        notes.release_user_records(2, &segments);
        assert_eq!((log_since(first.id), log_since(second.id)), (0, 1));
        assert!(notes.are_let_go(2) && !notes.are_let_go(3));
        notes.release_user_records(u64::MAX, &segments);
        assert!(log_since(second.id) == 0 && notes.none_kept());
    }
}
