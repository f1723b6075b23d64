//! The unlink throttle: lets a few removals at a time into a file system. More threads would only wait for each other.
//! A file system removes names under a few locks of its own, which it hands from one sleeper to the next. The work that
//! frees the inodes waits behind all of them.

use std::time::Duration;

use forebay_common::lock::{Condvar, Mutex};

/// The number of removals in the file system at once. On XFS with 32 clients, 4 give a sixth more removals than no
/// throttle, and 8 give no more.
const MOST: usize = 4;
/// The time after which a waiting removal joins those inside, since those may be waiting for a disk.
const PATIENCE: Duration = Duration::from_millis(5);

/// Counts those inside.
#[derive(Default)]
pub(crate) struct UnlinkThrottle {
    inside: Mutex<usize>,
    left: Condvar,
}

/// Dropped when its thread is through.
pub(crate) struct Inside<'a>(&'a UnlinkThrottle);

impl UnlinkThrottle {
    /// Waits for a moment if there are enough inside.
    pub(crate) fn enter(&self) -> Inside<'_> {
        self.enter_within(PATIENCE)
    }

    /// Waits for a place among the removals, at most for this time. Then enters in any case.
    fn enter_within(&self, patience: Duration) -> Inside<'_> {
        let mut inside = self.inside.lock();
        if *inside >= MOST {
            inside = self.left.wait_while_for(inside, patience, |inside| *inside >= MOST);
        }
        *inside += 1;
        Inside(self)
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        *self.0.inside.lock() -= 1;
        self.0.left.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    use super::*;

    #[test]
    fn no_more_than_that_are_inside_while_they_get_on() {
        let (gate, inside, through) = (UnlinkThrottle::default(), AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..4 * MOST {
                scope.spawn(|| {
                    for _ in 0..200 {
                        let entered = gate.enter_within(Duration::from_secs(600));
                        assert!(inside.fetch_add(1, SeqCst) < MOST);
                        std::thread::yield_now();
                        inside.fetch_sub(1, SeqCst);
                        drop(entered);
                        through.fetch_add(1, SeqCst);
                    }
                });
            }
        });
        assert_eq!(through.into_inner(), 4 * MOST * 200);
    }

    #[test]
    fn who_has_waited_goes_in_all_the_same() {
        let gate = UnlinkThrottle::default();
        let inside: Vec<_> = (0..2 * MOST).map(|_| gate.enter_within(Duration::ZERO)).collect();
        assert_eq!(inside.len(), 2 * MOST);
        drop(inside);
        assert_eq!(*gate.inside.lock(), 0);
    }
}
