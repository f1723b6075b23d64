//! Creations in progress. A change that sees a new inode waits until the inode's creation has ended.

use std::sync::Arc;

use forebay_common::lock::{Condvar, Mutex};
use forebay_oplog::Creations;

/// The creations in progress on a file system, numbered from 1.
#[derive(Debug, Default)]
pub(crate) struct Making {
    inner: Mutex<Creations>,
    ended: Condvar,
}

/// A creation in progress; it ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Ticket {
    making: Arc<Making>,
    number: u64,
}

impl Making {
    pub(crate) fn begin(self: &Arc<Self>) -> Ticket {
        let number = self.inner.lock().begin();
        Ticket { making: self.clone(), number }
    }

    /// Returns the number of the last creation that may have made an inode seen now; 0 if there was none.
    pub(crate) fn latest(&self) -> u64 {
        self.inner.lock().latest()
    }

    /// Returns true if all creations up to this number have ended.
    pub(crate) fn is_through(&self, upto: u64) -> bool {
        self.inner.lock().is_through(upto)
    }

    /// Waits until all creations up to this number have ended, which takes as long as other threads need to put records
    /// into the log.
    pub(crate) fn wait(&self, upto: u64) {
        let mut inner = self.inner.lock();
        while !inner.is_through(upto) {
            inner = self.ended.wait(inner);
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.making.inner.lock().end(self.number);
        self.making.ended.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_seen_waits_for_the_creations_that_may_have_made_it() {
        let making = Arc::new(Making::default());
        assert_eq!(making.latest(), 0);
        let (first, second) = (making.begin(), making.begin());
        let seen = making.latest();
        let third = making.begin();
        drop(second);
        assert!(!making.is_through(seen));
        drop(first);
        assert!(making.is_through(seen), "a later creation has not made it");
        making.wait(seen);
        assert!(!making.is_through(making.latest()));
        drop(third);
        assert_eq!(making.latest(), 0);
    }
}
