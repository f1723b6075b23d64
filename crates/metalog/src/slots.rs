//! The slots of a file system that no RENAME uses now.

use forebay_common::lock::Mutex;
use forebay_engine::wait::Gate;

/// The number of RENAMEs that may be between their system call and the durable frame of their user record.
const MOST: usize = 256;

/// The free slots of a file system. Slots are made when they are first needed.
#[derive(Debug)]
pub struct Slots<S> {
    most: usize,
    inner: Mutex<Inner<S>>,
    freed: Gate,
}

#[derive(Debug)]
struct Inner<S> {
    free: Vec<S>,
    made: usize,
}

impl<S> Default for Slots<S> {
    fn default() -> Self {
        Slots::new(MOST)
    }
}

impl<S> Slots<S> {
    /// Returns an empty pool that makes at most `most` slots.
    pub fn new(most: usize) -> Self {
        Slots { most, inner: Mutex::new(Inner { free: Vec::new(), made: 0 }), freed: Gate::default() }
    }

    /// Returns true if a RENAME that needs a slot now has to wait.
    pub fn are_taken(&self) -> bool {
        let inner = self.inner.lock();
        inner.free.is_empty() && inner.made == self.most
    }

    /// Takes a slot for a RENAME. The caller gives it back once the record is durable, or the RENAME has failed. Waits
    /// until a slot is free, for as long as a frame of the log takes. So the caller must not have a number yet, for
    /// which the records of other changes would wait.
    pub async fn take<E>(&self, make: impl Fn(usize) -> Result<S, E>) -> Result<S, E> {
        let ready = || {
            let mut inner = self.inner.lock();
            if let Some(slot) = inner.free.pop() {
                return Some(Ok(slot));
            }
            if inner.made == self.most {
                return None;
            }
            let made = make(inner.made);
            inner.made += usize::from(made.is_ok());
            Some(made)
        };
        self.freed.until(ready).await
    }

    /// Makes a slot available again.
    pub fn give_back(&self, slot: S) {
        self.inner.lock().free.push(slot);
        self.freed.wake();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{at_once, is_pending};

    #[test]
    fn who_finds_no_slot_gets_the_next_one_that_is_given_back() {
        let slots = Slots::new(3);
        let take = || slots.take(|number| if number < 3 { Ok(number) } else { Err(number) });
        let taken: Vec<_> = (0..3).map(|_| at_once(take()).unwrap()).collect();
        assert_eq!(taken, [0, 1, 2]);
        assert!(slots.are_taken() && is_pending(take()), "there are three");
        for slot in taken {
            slots.give_back(slot);
            assert_eq!(at_once(take()), Ok(slot));
        }
    }

    #[test]
    fn a_slot_that_could_not_be_made_is_made_later() {
        let slots = Slots::new(1);
        assert_eq!(at_once(slots.take(|_| Err::<usize, _>("no space"))), Err("no space"));
        assert!(!slots.are_taken());
        assert_eq!(at_once(slots.take(Ok::<_, &str>)), Ok(0));
    }
}
