//! Creations under way: what they make can be seen, and has no place in the log yet.
//!
//! Whoever finds such an object may not change it, or what is in it, before the record of its creation is in the log: else
//! recovery could find the change and not the object.

use std::collections::BTreeSet;
use std::sync::Arc;

use forebay_lock::{Condvar, Mutex};

#[derive(Debug, Default)]
struct Inner {
    last: u64,
    open: BTreeSet<u64>,
}

/// The creations under way on a file system, numbered from 1.
#[derive(Debug, Default)]
pub(crate) struct Making {
    inner: Mutex<Inner>,
    ended: Condvar,
}

/// A creation under way; it ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Ticket {
    making: Arc<Making>,
    number: u64,
}

impl Making {
    pub(crate) fn begin(self: &Arc<Self>) -> Ticket {
        let mut inner = self.inner.lock();
        inner.last += 1;
        let number = inner.last;
        inner.open.insert(number);
        drop(inner);
        Ticket { making: self.clone(), number }
    }

    /// The last creation that may have made what is seen now; 0: none.
    pub(crate) fn latest(&self) -> u64 {
        self.inner.lock().open.last().copied().unwrap_or(0)
    }

    /// Whether all creations up to this one have ended.
    pub(crate) fn is_through(&self, upto: u64) -> bool {
        self.inner.lock().open.first().is_none_or(|first| *first > upto)
    }

    /// Waits for that: as long as other threads take to put records into the log.
    pub(crate) fn wait(&self, upto: u64) {
        let mut inner = self.inner.lock();
        while inner.open.first().is_some_and(|first| *first <= upto) {
            inner = self.ended.wait(inner);
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.making.inner.lock().open.remove(&self.number);
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
