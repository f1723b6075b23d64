//! The order of records in the log. Records go to the log in order of their numbers, which were given out under the
//! locks of the changes. So a record that is found after a crash has all earlier records that it builds on.

use std::sync::mpsc::sync_channel;

use forebay_common::lock::Mutex;
use forebay_oplog::Turns;

/// The work to do when it is a number's turn.
type Turn = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct Inner {
    turns: Turns<Turn>,
    /// A thread has its turns done.
    busy: bool,
}

/// The queue of records. No thread waits for the records before its own. A thread that comes too early leaves its work
/// to the thread whose turn it is, which continues with all that follow.
#[derive(Default)]
pub(super) struct Queue {
    inner: Mutex<Inner>,
}

impl Queue {
    /// Sets the first number, `next`.
    pub(super) fn begin(&self, next: u64) {
        self.inner.lock().turns.begin(next);
    }

    /// Has `act` called, by some thread, when it is this number's turn: all before it are through. Each number has its
    /// turn, or is skipped, soon after it was given out.
    pub(super) fn submit(&self, number: u64, act: impl FnOnce() + Send + 'static) {
        self.ready(number, Some(Box::new(act)));
    }

    /// Runs `act` at the turn of `number` and returns its result, or `None` if `act` panicked.
    pub(super) fn turn<T: Send + 'static>(
        &self,
        number: u64,
        act: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let (send, result) = sync_channel(1);
        // The receiver waits for the result, so it still exists.
        self.submit(number, move || drop(send.send(act())));
        result.recv().ok()
    }

    /// This number has no turn.
    pub(super) fn skip(&self, number: u64) {
        self.ready(number, None);
    }

    fn ready(&self, number: u64, turn: Option<Turn>) {
        let mut inner = self.inner.lock();
        inner.turns.ready(number, turn);
        if inner.busy {
            return;
        }
        inner.busy = true;
        while let Some(act) = inner.turns.take() {
            drop(inner);
            act();
            inner = self.inner.lock();
        }
        inner.busy = false;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn turns_come_in_order_of_numbers_whoever_comes_first() {
        let (queue, seen) = (Queue::default(), Arc::new(Mutex::new(Vec::new())));
        queue.begin(1);
        std::thread::scope(|scope| {
            for number in [5, 3, 2, 1] {
                let (queue, seen) = (&queue, seen.clone());
                scope.spawn(move || queue.turn(number, move || seen.lock().push(number)));
            }
            queue.skip(4);
        });
        assert_eq!(*seen.lock(), [1, 2, 3, 5]);
    }

    #[test]
    fn who_comes_early_does_not_wait() {
        let (queue, seen) = (Queue::default(), Arc::new(Mutex::new(Vec::new())));
        queue.begin(1);
        let submit = |number| {
            let seen = seen.clone();
            queue.submit(number, move || seen.lock().push(number));
        };
        submit(4);
        submit(2);
        assert!(seen.lock().is_empty());
        submit(1);
        assert_eq!(*seen.lock(), [1, 2]);
        queue.skip(3);
        assert_eq!(*seen.lock(), [1, 2, 4]);
    }
}
