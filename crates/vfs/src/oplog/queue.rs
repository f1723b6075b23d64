//! Records go to the log in order of their numbers, which were given out under the locks of the changes: so a record that
//! is found after a crash has all those before it that it builds on.

use std::collections::BTreeSet;

use parking_lot::{Condvar, Mutex};

#[derive(Debug, Default)]
struct Inner {
    /// The next number to go to the log.
    next: u64,
    /// Numbers from then on without a record.
    skipped: BTreeSet<u64>,
}

impl Inner {
    fn advance(&mut self) {
        while self.skipped.remove(&self.next) {
            self.next += 1;
        }
    }
}

/// See the file's comment.
#[derive(Debug, Default)]
pub(super) struct Queue {
    inner: Mutex<Inner>,
    moved: Condvar,
}

impl Queue {
    /// The first number is `next`.
    pub(super) fn begin(&self, next: u64) {
        self.inner.lock().next = next;
    }

    /// Runs `act` when it is this number's turn: all before it are through. Each number has its turn, or is skipped, soon
    /// after it was given out.
    pub(super) fn turn<T>(&self, number: u64, act: impl FnOnce() -> T) -> T {
        let mut inner = self.inner.lock();
        while inner.next != number {
            self.moved.wait(&mut inner);
        }
        drop(inner);
        // It stays this number's turn.
        let result = act();
        self.skip(number);
        result
    }

    /// This number has no turn, or has had it.
    pub(super) fn skip(&self, number: u64) {
        let mut inner = self.inner.lock();
        inner.skipped.insert(number);
        inner.advance();
        drop(inner);
        self.moved.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_come_in_order_of_numbers_whoever_comes_first() {
        let (queue, seen) = (Queue::default(), Mutex::new(Vec::new()));
        queue.begin(1);
        std::thread::scope(|scope| {
            for number in [5, 3, 2, 1] {
                let (queue, seen) = (&queue, &seen);
                scope.spawn(move || queue.turn(number, || seen.lock().push(number)));
            }
            queue.skip(4);
        });
        assert_eq!(*seen.lock(), [1, 2, 3, 5]);
    }
}
