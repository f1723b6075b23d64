//! Creations in progress. A change that sees a new inode waits until the record of its creation is in the log.

use std::sync::Arc;

use forebay_common::lock::Mutex;
use forebay_engine::wait::Gate;
use forebay_oplog::Creations;

/// The creations in progress on a file system, numbered from 1.
#[derive(Debug, Default)]
pub struct Making {
    inner: Mutex<Creations>,
    ended: Gate,
}

/// A creation in progress; it ends when this is dropped.
#[derive(Debug)]
pub struct Ticket {
    making: Arc<Making>,
    number: u64,
}

impl Making {
    /// Begins a creation. The caller has not made the inode yet.
    pub fn begin(self: &Arc<Self>) -> Ticket {
        let number = self.inner.lock().begin();
        Ticket { making: self.clone(), number }
    }

    /// Returns the number of the last creation that may have made an inode seen now; 0 if there was none.
    pub fn latest(&self) -> u64 {
        self.inner.lock().latest()
    }

    /// Returns true if all creations up to this number have ended.
    pub fn have_ended(&self, upto: u64) -> bool {
        self.inner.lock().have_ended(upto)
    }

    /// Waits until all creations up to this number have ended. That takes as long as their records need to get into the
    /// log.
    pub async fn wait(&self, upto: u64) {
        self.ended.until(|| self.have_ended(upto).then_some(())).await;
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.making.inner.lock().end(self.number);
        self.making.ended.wake();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{at_once, is_pending};

    #[test]
    fn what_is_seen_waits_for_the_creations_that_may_have_made_it() {
        let making = Arc::new(Making::default());
        assert_eq!(making.latest(), 0);
        let (first, second) = (making.begin(), making.begin());
        let seen = making.latest();
        let third = making.begin();
        drop(second);
        assert!(!making.have_ended(seen));
        assert!(is_pending(making.wait(seen)));
        drop(first);
        assert!(making.have_ended(seen), "a later creation has not made it");
        at_once(making.wait(seen));
        assert!(!making.have_ended(making.latest()));
        drop(third);
        assert_eq!(making.latest(), 0);
    }
}
