//! Creations in progress. A change that sees a new inode waits until the record of its creation is in the log.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_common::lock::Mutex;
use forebay_engine::wait::Gate;
use forebay_oplog::Creations;

/// The creations in progress on a file system, numbered from 1.
#[derive(Debug, Default)]
pub struct Making {
    inner: Mutex<Creations>,
    ended: Gate,
}

/// The creations of which one may have made an inode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Makers {
    /// The inode was made before all creations in progress.
    #[default]
    Earlier,
    /// The creation with this number.
    One(u64),
    /// Any creation up to this number.
    Upto(u64),
}

/// The [`Makers`] of an inode that is shared by threads.
#[derive(Debug, Default)]
pub struct MadeBy(AtomicU64);

impl MadeBy {
    /// Sets the makers.
    pub fn set(&self, makers: Makers) {
        let word = match makers {
            Makers::Earlier => 0,
            Makers::Upto(number) => number << 1,
            Makers::One(number) => number << 1 | 1,
        };
        self.0.store(word, Ordering::Relaxed);
    }

    /// Returns the makers.
    pub fn get(&self) -> Makers {
        match self.0.load(Ordering::Relaxed) {
            0 => Makers::Earlier,
            word if word & 1 == 0 => Makers::Upto(word >> 1),
            word => Makers::One(word >> 1),
        }
    }
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

    /// Returns the creations that may have made an inode seen now.
    pub fn makers(&self) -> Makers {
        match self.inner.lock().latest() {
            0 => Makers::Earlier,
            latest => Makers::Upto(latest),
        }
    }

    /// Returns true if the creations have ended.
    pub fn have_ended(&self, makers: Makers) -> bool {
        match makers {
            Makers::Earlier => true,
            Makers::One(number) => self.inner.lock().has_ended(number),
            Makers::Upto(number) => self.inner.lock().have_ended(number),
        }
    }

    /// Waits until the creations have ended. That takes as long as their records need to get into the log.
    pub async fn wait(&self, makers: Makers) {
        self.ended.until(|| self.have_ended(makers).then_some(())).await;
    }
}

impl Ticket {
    /// Returns the makers of an inode that this creation has made.
    pub fn makers(&self) -> Makers {
        Makers::One(self.number)
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
        assert_eq!(making.makers(), Makers::Earlier);
        let (first, second) = (making.begin(), making.begin());
        let (seen, own) = (making.makers(), second.makers());
        let third = making.begin();
        assert!(is_pending(making.wait(own)));
        drop(second);
        assert!(making.have_ended(own), "another creation did not make it");
        assert!(!making.have_ended(seen));
        assert!(is_pending(making.wait(seen)));
        drop(first);
        assert!(making.have_ended(seen), "a later creation has not made it");
        at_once(making.wait(seen));
        assert!(!making.have_ended(making.makers()));
        drop(third);
        assert_eq!(making.makers(), Makers::Earlier);
    }

    #[test]
    fn threads_read_the_makers_that_were_set() {
        let made_by = MadeBy::default();
        assert_eq!(made_by.get(), Makers::Earlier);
        for makers in [Makers::One(1), Makers::Upto(1), Makers::One(7), Makers::Earlier] {
            made_by.set(makers);
            assert_eq!(made_by.get(), makers);
        }
    }
}
