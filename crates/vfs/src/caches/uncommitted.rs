//! The part of a file's acknowledged contents that may still be lost, and the failures of writing it back.

use std::sync::atomic::{AtomicU64, Ordering};

use forebay_common::lock::Mutex;

use crate::caches::budget::Budget;
use crate::error::{Error, Result};

/// The state of one file's contents.
#[derive(Debug)]
pub(crate) struct Uncommitted {
    writes: Mutex<Writes>,
    budget: Budget,
    syncing: Mutex<()>,
    errors: AtomicU64,
}

/// UNSTABLE writes ever made, and how many of them are known to be stable. Neither ever goes back: a COMMIT that ends
/// late must not take a later write for stable.
#[derive(Debug, Default)]
struct Writes {
    made: u64,
    stable: u64,
}

impl Uncommitted {
    pub(crate) fn new(budget: Budget) -> Self {
        Uncommitted { writes: Mutex::default(), budget, syncing: Mutex::default(), errors: AtomicU64::new(0) }
    }

    /// Returns 0 if all written data is stable, or else the number of UNSTABLE writes so far, for
    /// [`Uncommitted::committed`].
    pub(crate) fn writes(&self) -> u64 {
        let writes = self.writes.lock();
        if writes.made == writes.stable { 0 } else { writes.made }
    }

    /// Counts an UNSTABLE write that was made; false if too many files have uncommitted data already and this one
    /// must become stable at once.
    pub(crate) fn wrote(&self) -> bool {
        let mut writes = self.writes.lock();
        if writes.made == writes.stable && !self.budget.take_uncommitted() {
            return false;
        }
        writes.made += 1;
        true
    }

    /// Marks the first `seen` writes as stable.
    pub(crate) fn committed(&self, seen: u64) {
        let mut writes = self.writes.lock();
        if seen > writes.stable {
            writes.stable = seen;
            if writes.made == seen {
                self.budget.release_uncommitted();
            }
        }
    }

    /// Returns the number of syncs of the contents that have failed so far.
    pub(crate) fn errors(&self) -> u64 {
        self.errors.load(Ordering::Acquire)
    }

    /// Runs `sync`, which waits for bytes written since `errors` was [`Uncommitted::errors`]. The kernel reports a
    /// failure once per descriptor, to the first thread that asks. That report may have been about these bytes.
    pub(crate) fn synced(&self, errors: u64, sync: impl FnOnce() -> Result<()>) -> Result<()> {
        // One sync at a time: no thread may find "no error" between another thread's failure and its count.
        let _one = self.syncing.lock();
        sync().inspect_err(|_| {
            self.errors.fetch_add(1, Ordering::AcqRel);
        })?;
        if self.errors() == errors { Ok(()) } else { Err(Error::Os(rustix::io::Errno::IO)) }
    }
}

impl Drop for Uncommitted {
    fn drop(&mut self) {
        // The file is gone, and its data with it.
        if self.writes() != 0 {
            self.budget.release_uncommitted();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_commit_that_ends_late_takes_no_later_write_for_stable() {
        let file = Uncommitted::new(Budget::new(100, 1 << 20));
        file.wrote();
        let (first, second) = (file.writes(), file.writes());
        file.committed(first);
        assert_eq!(file.writes(), 0);
        file.wrote();
        file.committed(second);
        assert_ne!(file.writes(), 0, "the second write was never synced");
    }

    #[test]
    fn a_write_during_a_commit_stays_uncommitted() {
        let file = Uncommitted::new(Budget::new(100, 1 << 20));
        file.wrote();
        let seen = file.writes();
        file.wrote();
        file.committed(seen);
        assert_ne!(file.writes(), 0);
        file.committed(file.writes());
        assert_eq!(file.writes(), 0);
    }

    #[test]
    fn a_quarter_of_the_budget_may_be_uncommitted_and_what_is_gone_does_not_count() {
        let budget = Budget::new(8, 1 << 20);
        let files: Vec<_> = (0..3).map(|_| Uncommitted::new(budget.clone())).collect();
        assert!(files[0].wrote() && files[1].wrote() && files[0].wrote());
        assert!(!files[2].wrote());
        files[0].committed(files[0].writes());
        assert!(files[2].wrote());
        drop(files);
        assert!(Uncommitted::new(budget).wrote());
    }

    #[test]
    fn a_failure_is_one_for_everything_written_before_it_was_told() {
        let file = Uncommitted::new(Budget::new(100, 1 << 20));
        let before = file.errors();
        let failure = Error::Os(rustix::io::Errno::IO);
        assert_eq!(file.synced(before, || Err(failure)), Err(failure));
        assert_eq!(file.synced(before, || Ok(())), Err(failure));
        assert_eq!(file.synced(file.errors(), || Ok(())), Ok(()));
    }
}
