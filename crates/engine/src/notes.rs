//! Notes: records of the engine's user that travel in the log with data, in the one order there is.
//!
//! What is in a note is none of the engine's business. It keeps the segments of notes in the log until they are let go,
//! and hands back at recovery what it finds in the log: every durable note that was not let go, in order, each once;
//! and before those perhaps some that were let go already.

use std::collections::VecDeque;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::engine::Engine;
use crate::io::BackingError;
use crate::leaf::SegmentId;
use crate::lock::Mutex;
use crate::segments::Segments;
use crate::wait::Gate;
use crate::{Error, Result, Seq};

/// The longest note, in bytes: it fits any frame that is empty.
pub const NOTE_MAX: usize = 4000;

/// Notes may hold this part of what the log may have, before their user is asked to let go of them.
const SHARE: usize = 8;

/// A note's number: grows by one with each, from 1 at every opening.
pub type NoteId = u64;

/// A note that was found in the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// Its number from now on.
    pub id: NoteId,
    /// What was appended.
    pub bytes: Box<[u8]>,
}

#[derive(Debug, Default)]
struct Inner {
    last: NoteId,
    /// Segments with notes that were not let go, oldest first, each with its last one.
    kept: VecDeque<(SegmentId, NoteId)>,
}

/// Which notes keep which segments in the log.
#[derive(Debug, Default)]
pub(crate) struct Notes {
    inner: Mutex<Inner>,
    /// How many wait for notes to be let go.
    wanted: AtomicUsize,
    /// Why their user cannot let go of any more.
    stuck: OnceLock<BackingError>,
    /// Wakes whoever waits for that, and whoever lets go.
    pub(crate) changed: Gate,
}

impl Notes {
    /// Numbers a note that is being put into `segment`, and keeps that in the log.
    pub(crate) fn keep(&self, segment: SegmentId, segments: &Segments) -> NoteId {
        let mut inner = self.inner.lock();
        inner.last += 1;
        let id = inner.last;
        match inner.kept.back_mut() {
            Some((newest, last)) if *newest == segment => *last = id,
            _ => {
                segments.hold(segment);
                inner.kept.push_back((segment, id));
            }
        }
        id
    }

    fn let_go(&self, upto: NoteId, segments: &Segments) {
        let mut inner = self.inner.lock();
        while let Some((segment, _)) = inner.kept.front().copied().filter(|(_, last)| *last <= upto) {
            segments.release(segment);
            inner.kept.pop_front();
        }
    }

    /// The last note there is.
    fn last(&self) -> NoteId {
        self.inner.lock().last
    }

    /// The oldest segment that is kept.
    fn oldest(&self) -> Option<SegmentId> {
        self.inner.lock().kept.front().map(|(segment, _)| *segment)
    }

    /// Whether no segment is kept for a note up to this one.
    fn are_let_go(&self, upto: NoteId) -> bool {
        self.inner.lock().kept.front().is_none_or(|(_, last)| *last > upto)
    }

    /// Asks for all notes to be let go, while the result lives.
    pub(crate) fn want(&self) -> Wanting<'_> {
        self.wanted.fetch_add(1, Ordering::AcqRel);
        self.changed.wake();
        Wanting(self)
    }

    /// Whether no segment is kept.
    pub(crate) fn none_kept(&self) -> bool {
        self.oldest().is_none()
    }
}

impl Engine {
    /// Appends a note of 1 to [`NOTE_MAX`] bytes, waiting for room. It is durable once [`Engine::commit`] of the frame
    /// returned has succeeded, on every device in use, together with everything accepted before it; and is found again
    /// until [`Engine::let_go`].
    ///
    /// # Errors
    /// No cache device is left.
    pub async fn note(&self, bytes: &[u8]) -> Result<(Seq, NoteId)> {
        loop {
            if let Some(noted) = self.try_note(bytes)? {
                return Ok(noted);
            }
            self.log.changed.until(|| self.log.has_room(0).then_some(())).await;
        }
    }

    /// The same without waiting: `None` if there is no room now.
    ///
    /// # Errors
    /// No cache device is left.
    pub fn try_note(&self, bytes: &[u8]) -> Result<Option<(Seq, NoteId)>> {
        self.log.append_note(bytes, &self.notes, &self.segments)
    }

    /// Notes up to this one are not needed any more.
    pub fn let_go(&self, upto: NoteId) {
        self.notes.let_go(upto, &self.segments);
        self.segments.advance();
        self.notes.changed.wake();
        // Nothing may be left to destage: who waits for the log to be less full waits for this.
        self.destager.pace.changed.wake();
        self.space.wake();
    }

    /// Waits until the log needs notes to be let go, and returns the last one there is; `None` once the engine closes.
    /// Whoever appends notes has to ask, and to answer with [`Engine::let_go`]: flushes and removals of devices wait for
    /// it.
    pub async fn notes_due(&self) -> Option<NoteId> {
        let due = || {
            if self.closing() {
                return Some(None);
            }
            let oldest = self.notes.oldest()?;
            let most = self.segments.log_use().share;
            let wanted = self.notes.wanted.load(Ordering::Acquire) > 0;
            // Writes are not cached until everything is on two devices again, which notes must not hold up.
            let lone = self.segments.devices() > 1 && self.segments.keeps_lone(oldest);
            let due = wanted || lone || self.segments.log_since(oldest) * SHARE > most;
            due.then(|| Some(self.notes.last()))
        };
        self.notes.changed.until(due).await
    }

    /// Notes that are there now cannot be let go of before the next opening: whoever waits for it is told so.
    pub fn keep_notes(&self, why: BackingError) {
        // The first reason is as good as others.
        let _ = self.notes.stuck.set(why);
        self.notes.changed.wake();
    }

    /// Waits until everything noted so far is let go, or the engine closes.
    pub(crate) async fn notes_let_go(&self) -> Result<()> {
        let last = self.notes.last();
        let _wanting = self.notes.want();
        let ready = || {
            let through = self.notes.are_let_go(last) || self.closing();
            let stuck = || self.notes.stuck.get().map(|why| Err(Error::Backing(*why)));
            if through { Some(Ok(())) } else { stuck() }
        };
        self.notes.changed.until(ready).await
    }
}

/// Somebody waits for notes to be let go; given up or not.
pub(crate) struct Wanting<'a>(&'a Notes);

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
        let notes = Notes::default();
        let opened = || {
            let opened = segments.open(SegmentKind::Log, 2, 0).unwrap();
            segments.seal(opened.id);
            opened
        };
        let (first, second) = (opened(), opened());
        let ids: Vec<_> = [&first, &first, &second].map(|at| notes.keep(at.id, &segments)).into();
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
