//! Changes of an inode in progress, and the attributes around them.

use std::cell::{Cell, OnceCell};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::attr::{Attr, Time, Wcc};
use crate::caches::inode::Inode;
use crate::caches::shown_time::{Floor, ShownTime};
use crate::caches::stamp::Stamp;
use crate::caches::versions::Changing;
use crate::error::Result;

/// Counts changes begun and ended, to tell whether two overlapped.
#[derive(Debug, Default)]
pub(super) struct Changes {
    begun: AtomicU64,
    ended: AtomicU64,
    /// The change time that clients saw after the last change.
    pub(super) shown: ShownTime,
}

/// The state of an inode's changes just before its attributes are read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Look {
    ended: u64,
    floor: Floor,
}

impl Inode {
    /// Prepares to show attributes that the caller reads afterwards.
    pub(crate) fn look(&self) -> Look {
        let ended = self.changes.ended.load(Ordering::Acquire);
        Look { ended, floor: self.changes.shown.floor() }
    }

    /// Returns attributes that were read after `look`, with the change time that clients are to see.
    pub(crate) fn show(&self, look: Look, attr: Attr) -> Attr {
        let quiet = || self.changes.begun.load(Ordering::Acquire) == look.ended;
        let was_quiet = quiet();
        // Noted before the second question: a change that begins after it exceeds the time that is shown here.
        if was_quiet && look.floor.is_before(attr.ctime) {
            self.changes.shown.seen(attr.ctime);
        }
        Attr { ctime: look.floor.show(attr.ctime, was_quiet && quiet()), ..attr }
    }

    /// Returns true if clients were shown a change time later than `ctime`. They are after each change through this
    /// server.
    pub(crate) fn has_shown_later(&self, ctime: Time) -> bool {
        self.changes.shown.floor().is_after(ctime)
    }

    /// Goes on from the change time that clients saw before the inode left the inode cache.
    pub(crate) fn resume_shown(&self, seen: Time) {
        self.changes.shown.seen(seen);
    }

    /// Moves the change time that clients see, at the end of a change that was carried out. It still counts as begun.
    /// Clients saw the attributes `before` it. Returns the attributes after it, unless another change overlapped: they
    /// could then have the change time of newer ones.
    fn show_change(&self, before: Option<Attr>) -> Option<Attr> {
        let ended = self.changes.ended.load(Ordering::Acquire);
        let alone = || self.changes.begun.load(Ordering::Acquire) == ended + 1;
        let after = self.unmoved_attr().ok().filter(|_| alone());
        self.changes.shown.advance(before.map(|attr| attr.ctime), after.map(|attr| attr.ctime));
        let shown =
            after.map(|attr| Attr { ctime: self.changes.shown.floor().show(attr.ctime, false), ..attr });
        shown.filter(|_| alone())
    }

    /// Begins a change by one of the inode's names. Returns the attributes before it.
    pub(crate) fn begin_named(&self) -> Option<Attr> {
        self.changes.begun.fetch_add(1, Ordering::AcqRel);
        let before = self.attr().ok();
        before.iter().for_each(|attr| self.changes.shown.seen(attr.ctime));
        before
    }

    /// Ends a change by one of the inode's names, which was `done` or not.
    pub(crate) fn end_named(&self, before: Option<Attr>, done: bool) {
        if done {
            self.show_change(before);
        }
        self.changes.ended.fetch_add(1, Ordering::AcqRel);
    }

    /// Begins a change whose before-and-after attributes are to be reported.
    pub(crate) fn begin_change(&self) -> Change<'_> {
        let version = self.versions.change(&self.kernel);
        let begun = self.changes.begun.fetch_add(1, Ordering::AcqRel);
        let alone = self.changes.ended.load(Ordering::Acquire) == begun;
        let (before, after) = (self.attr(), OnceCell::new());
        if let Ok(attr) = &before {
            self.changes.shown.seen(attr.ctime);
        }
        let changed = Cell::new(false);
        Change { object: self, begun: begun + 1, alone, before, changed, after, _version: version }
    }

    /// Returns the state of a directory with these attributes, under which names may be believed. Returns `None` while
    /// a change is in progress.
    pub(crate) fn stamp(&self, attr: &Attr) -> Option<Stamp> {
        Some(Stamp { ctime: attr.backing_ctime, changes: self.quiet()? })
    }

    /// Returns a number that grows with every change made through this server. Returns `None` while a change is in
    /// progress.
    pub(crate) fn quiet(&self) -> Option<u64> {
        let ended = self.changes.ended.load(Ordering::Acquire);
        (self.changes.begun.load(Ordering::Acquire) == ended).then_some(ended)
    }
}

/// A change in progress; [`Change::end`] gives the attributes around it.
pub(crate) struct Change<'a> {
    object: &'a Inode,
    begun: u64,
    alone: bool,
    pub(crate) before: Result<Attr>,
    /// The inode was changed, and clients have not seen that in its change time yet.
    changed: Cell<bool>,
    after: OnceCell<Option<Attr>>,
    _version: Changing<'a>,
}

impl Change<'_> {
    /// Notes that the inode was changed. Its change time then grows, at the latest when the change ends.
    /// Has no effect once the attributes after the change were read.
    pub(crate) fn made(&self) {
        self.changed.set(self.after.get().is_none());
    }

    /// Moves the change time that clients see, once. Returns the attributes if it read them.
    fn show(&self) -> Option<Attr> {
        if self.changed.replace(false) { self.object.show_change(self.before.ok()) } else { None }
    }

    /// Returns the attributes after the change, which has been carried out. They are read once. After
    /// [`Change::made`] their change time is later than every one that a client saw before.
    pub(crate) fn after(&self) -> Option<Attr> {
        *self.after.get_or_init(|| self.show().or_else(|| self.object.attr().ok()))
    }

    /// Returns the attributes after the change, and those before it if no other change overlapped.
    pub(crate) fn end(self) -> Wcc {
        let after = self.after();
        let alone = self.alone && self.object.changes.begun.load(Ordering::Acquire) == self.begun;
        Wcc { before: self.before.ok().filter(|_| alone), after }
    }
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        self.show();
        self.object.changes.ended.fetch_add(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rustix::fs::{Mode, OFlags};

    use super::*;
    use crate::caches::budget::Budget;
    use crate::caches::versions::Versions;

    fn object(dir: &tempfile::TempDir) -> Inode {
        let fd = rustix::fs::open(dir.path(), OFlags::PATH, Mode::empty()).unwrap();
        let kernel = crate::sys::name_to_handle(&fd, c"").unwrap();
        let attr = Attr::from(&rustix::fs::fstat(&fd).unwrap());
        let budget = Budget::new(10, 1 << 20);
        Inode::new(fd, kernel, &attr, &budget, &Versions::new(budget.known().clone(), 0), &Arc::default())
    }

    /// Stands for changes within one tick of the clock: the backing file's change time does not move.
    #[test]
    fn each_change_moves_the_change_time_and_a_refused_one_does_not() {
        let dir = tempfile::tempdir().unwrap();
        let object = object(&dir);
        let first = object.attr().unwrap();
        assert_eq!(first.ctime, first.backing_ctime);
        let mut last = first.ctime;
        for _ in 0..3 {
            let change = object.begin_change();
            change.made();
            let after = change.after().unwrap();
            // The log's record and the reply each say so.
            change.made();
            let wcc = change.end();
            assert_eq!((wcc.before.unwrap().ctime, wcc.after), (last, Some(after)));
            assert!(after.ctime > last && after.backing_ctime == first.backing_ctime);
            last = after.ctime;
            assert_eq!(object.attr().unwrap().ctime, last);
        }
        let refused = object.begin_change().end();
        assert_eq!((refused.before.unwrap().ctime, refused.after.unwrap().ctime), (last, last));
        object.begin_change().made();
        let next = object.attr().unwrap().ctime;
        assert!(next > last, "without attributes after it");
        object.end_named(object.begin_named(), true);
        assert!(object.attr().unwrap().ctime > next, "by name");
    }

    /// The host has moved the change time, or two changes ended at once and neither took it over.
    #[test]
    fn a_time_that_was_shown_between_changes_is_exceeded_by_the_first_that_ends() {
        let dir = tempfile::tempdir().unwrap();
        let object = object(&dir);
        object.begin_change().made();
        let mut shown = object.attr().unwrap();
        // A clock of coarse ticks stands for a while.
        for n in 0.. {
            if shown.backing_ctime == shown.ctime {
                break;
            }
            std::fs::write(dir.path().join(n.to_string()), b"").unwrap();
            shown = object.attr().unwrap();
        }
        let (first, _second) = (object.begin_change(), object.begin_change());
        first.made();
        let after = first.end().after.unwrap();
        assert!(after.ctime > shown.ctime, "{after:?} after {shown:?}");
    }

    /// The kernel moves the change time of a file before it copies the data.
    #[test]
    fn a_change_in_progress_does_not_show_in_the_change_time() {
        let dir = tempfile::tempdir().unwrap();
        let object = object(&dir);
        let before = object.attr().unwrap().ctime;
        let (first, second) = (object.begin_change(), object.begin_change());
        let touch = |name| std::fs::write(dir.path().join(name), b"").unwrap();
        touch("one");
        let seen = object.attr().unwrap();
        assert!(seen.ctime == before && seen.backing_ctime > before, "{seen:?}");
        first.made();
        let during = first.end().after.unwrap();
        assert!(during.ctime > before && during.ctime < during.backing_ctime, "{during:?}");
        touch("two");
        second.made();
        let after = second.end().after.unwrap();
        assert!(after.ctime > during.ctime && after.ctime == after.backing_ctime, "{after:?}");
    }
}
