//! Changes of files that are in progress. No delegation of such a file is granted: its holder would keep contents from
//! before the change.
//!
//! A change first counts itself, then looks for delegations. A grant first notes its delegation, then looks for
//! changes. These four steps have one order for all threads (`SeqCst`). So the change finds the delegation, or the
//! grant finds the change. Neither needs a lock for that.

use std::hash::BuildHasher;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU32};

use foldhash::fast::FixedState;

use crate::state::Counters;

/// Counters of files. Files with one counter keep each other from delegations for the time of a change.
const COUNTERS: usize = 1024;

/// The numbers of changes that are in progress.
#[derive(Debug)]
pub(crate) struct Changes {
    files: [AtomicU32; COUNTERS],
    /// Changes of files that are not known yet.
    unknown: AtomicU32,
    /// True once a change in progress was in the way of a delegation.
    were_in_way: AtomicBool,
}

impl Default for Changes {
    fn default() -> Self {
        Changes {
            files: [const { AtomicU32::new(0) }; COUNTERS],
            unknown: AtomicU32::new(0),
            were_in_way: AtomicBool::new(false),
        }
    }
}

/// A change of a file in progress. It ends when the value is dropped.
#[derive(Debug)]
#[must_use]
pub struct Changing<'a>(&'a AtomicU32);

impl<'a> Changing<'a> {
    /// Counts a change as in progress until the result is dropped.
    fn begin(count: &'a AtomicU32) -> Self {
        count.fetch_add(1, SeqCst);
        Changing(count)
    }
}

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

impl Changes {
    fn of(&self, file: &[u8]) -> &AtomicU32 {
        &self.files[FixedState::default().hash_one(file) as usize % COUNTERS]
    }

    /// Returns true if a file is being changed, or if a change is in progress whose file is not known.
    pub(crate) fn include(&self, file: &[u8]) -> bool {
        let include = self.of(file).load(SeqCst) > 0 || self.unknown.load(SeqCst) > 0;
        if include {
            self.were_in_way.store(true, SeqCst);
        }
        include
    }
}

impl Counters {
    /// Begins a change of the file with this key. The caller then looks for delegations, with [`Counters::delegations`]
    /// or with [`State::announce`](crate::State::announce). It makes the change, and drops the result when readers see
    /// the change.
    pub fn begin_change(&self, file: &[u8]) -> Changing<'_> {
        Changing::begin(self.changes.of(file))
    }

    /// Returns true if a change by name has to find its file: clients have delegations, or have failed to get one.
    /// Otherwise a stream of such changes could keep the first delegation away for ever.
    pub fn needs_file(&self) -> bool {
        self.delegations.load(SeqCst) > 0 || self.changes.were_in_way.load(SeqCst)
    }

    /// Begins a change of a file that a name leads to, before the file is known. No client gets any delegation until
    /// the result is dropped.
    pub fn begin_change_of_any(&self) -> Changing<'_> {
        Changing::begin(&self.changes.unknown)
    }
}
