//! Changes of an inode in progress, and the attributes around them.

use std::cell::OnceCell;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::attr::{Attr, Wcc};
use crate::caches::inode::Inode;
use crate::caches::stamp::Stamp;
use crate::caches::versions::Changing;
use crate::error::Result;

/// Counts changes begun and ended, to tell whether two overlapped.
#[derive(Debug, Default)]
pub(super) struct Changes {
    begun: AtomicU64,
    ended: AtomicU64,
}

impl Inode {
    /// Begins a change whose before-and-after attributes are to be reported.
    pub(crate) fn begin_change(&self) -> Change<'_> {
        let version = self.versions.change(&self.kernel);
        let begun = self.changes.begun.fetch_add(1, Ordering::AcqRel);
        let alone = self.changes.ended.load(Ordering::Acquire) == begun;
        let (before, after) = (self.attr(), OnceCell::new());
        Change { object: self, begun: begun + 1, alone, before, after, _version: version }
    }

    /// Returns the state of a directory with these attributes, under which names may be believed. Returns `None` while
    /// a change is in progress.
    pub(crate) fn stamp(&self, attr: &Attr) -> Option<Stamp> {
        Some(Stamp { ctime: attr.ctime, changes: self.quiet()? })
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
    after: OnceCell<Option<Attr>>,
    _version: Changing<'a>,
}

impl Change<'_> {
    /// Returns the attributes after the change, which has been carried out. They are read once.
    pub(crate) fn after(&self) -> Option<Attr> {
        *self.after.get_or_init(|| self.object.attr().ok())
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
        self.object.changes.ended.fetch_add(1, Ordering::AcqRel);
    }
}
