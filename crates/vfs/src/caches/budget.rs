//! The memory budget of the caches: the limits and counts of descriptors, names and listings.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::caches::attr_cache::AttrCache;
use crate::caches::dir_cache::Listings;

/// The limits and counts of descriptors of inodes and of names of directories, and the listings in memory.
#[derive(Clone, Debug)]
pub struct Budget(Arc<BudgetInner>);

#[derive(Debug)]
struct BudgetInner {
    open: AtomicUsize,
    limit: AtomicUsize,
    names: AtomicUsize,
    names_limit: usize,
    listings: Arc<Listings>,
    known: Arc<AttrCache>,
    uncommitted: AtomicUsize,
}

/// The bytes that a remembered name takes, if the name has twelve bytes.
pub const NAME_COST: usize = 162;

impl Budget {
    /// Creates a budget of `limit` descriptors, and of `memory` bytes for names and attributes.
    pub fn new(limit: usize, memory: usize) -> Self {
        let limit = AtomicUsize::new(limit);
        let none = || AtomicUsize::new(0);
        let listings = Arc::new(Listings::new(memory / 4));
        let known = Arc::new(AttrCache::new(memory / 8 * 3));
        let names_limit = memory / 8 * 3 / NAME_COST;
        let (open, names, uncommitted) = (none(), none(), none());
        Budget(Arc::new(BudgetInner { open, limit, names, names_limit, listings, known, uncommitted }))
    }

    /// Returns the listings kept in memory.
    pub fn listings(&self) -> &Arc<Listings> {
        &self.0.listings
    }

    /// Counts an open descriptor until it is closed.
    pub(crate) fn count(&self, fd: OwnedFd) -> CountedFd {
        self.0.open.fetch_add(1, Ordering::Relaxed);
        CountedFd { fd, budget: self.clone() }
    }

    fn limit(&self) -> usize {
        self.0.limit.load(Ordering::Relaxed)
    }

    /// Changes the number of descriptors. Descriptors beyond a lower number are closed as the next files are opened.
    pub fn set_limit(&self, limit: usize) {
        self.0.limit.store(limit, Ordering::Relaxed);
    }

    /// Descriptors open now.
    pub fn open(&self) -> usize {
        self.0.open.load(Ordering::Relaxed)
    }

    /// Returns the attribute cache, which has the inodes that are not open.
    pub fn known(&self) -> &Arc<AttrCache> {
        &self.0.known
    }

    /// Returns the number of names that directories remember.
    pub fn names(&self) -> usize {
        self.0.names.load(Ordering::Relaxed)
    }

    pub(crate) fn names_limit(&self) -> usize {
        self.0.names_limit
    }

    /// Takes room for one name; false if there is none.
    pub(crate) fn take_name(&self) -> bool {
        let taken = self.0.names.fetch_add(1, Ordering::Relaxed) < self.names_limit();
        if !taken {
            self.give_names(1);
        }
        taken
    }

    pub(crate) fn give_names(&self, count: usize) {
        self.0.names.fetch_sub(count, Ordering::Relaxed);
    }

    /// Takes room for one more file with uncommitted data, which keeps its descriptors; false if there is none.
    pub(crate) fn take_uncommitted(&self) -> bool {
        let taken = self.0.uncommitted.fetch_add(1, Ordering::Relaxed) < self.limit() / 4;
        if !taken {
            self.release_uncommitted();
        }
        taken
    }

    pub(crate) fn release_uncommitted(&self) {
        self.0.uncommitted.fetch_sub(1, Ordering::Relaxed);
    }

    /// Returns true if inodes hold more descriptors than they may.
    pub(crate) fn exceeded(&self) -> bool {
        self.open() > self.limit()
    }
}

/// A descriptor that gives its place in the budget back when closed.
#[derive(Debug)]
pub(crate) struct CountedFd {
    fd: OwnedFd,
    budget: Budget,
}

impl AsFd for CountedFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for CountedFd {
    fn drop(&mut self) {
        self.budget.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}
