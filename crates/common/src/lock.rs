//! Locks. A thread that finds one taken sleeps until it is free; it does not offer its processor round, as parking_lot's
//! do: where there are few processors and much to do, that takes milliseconds each time.
//!
//! These are the standard library's without its memory of panics: whoever panics under a lock ends the process, or is a
//! test.
//!
//! With the feature `shuttle` the locks and atomics are those of the checker of that name, which decides at each use of one
//! which thread runs next (decision 032). They work only while it runs. Only `crates/threads` asks for the feature.

use std::sync::{LockResult, PoisonError, TryLockError, TryLockResult};
use std::time::Duration;

#[cfg(feature = "shuttle")]
use shuttle::sync;
#[cfg(not(feature = "shuttle"))]
use std::sync;

pub use sync::{MutexGuard, RwLockReadGuard, RwLockWriteGuard, atomic};

use atomic::{AtomicUsize, Ordering::Relaxed};

/// Mutual exclusion.
#[derive(Debug, Default)]
pub struct Mutex<T>(sync::Mutex<T>);

/// Shared by readers, or exclusive.
#[derive(Debug, Default)]
pub struct RwLock<T>(sync::RwLock<T>);

/// Where threads wait for a state behind a [`Mutex`]. Who changes that state has the lock, and notifies while or after it
/// has it: where nobody waits, that costs no system call.
#[derive(Debug, Default)]
pub struct Condvar {
    inner: sync::Condvar,
    /// Counted under the lock, so that whoever notifies after a change knows of all who wait for it.
    waiting: AtomicUsize,
}

impl<T> Mutex<T> {
    /// An unlocked one.
    pub const fn new(value: T) -> Self {
        Self(sync::Mutex::new(value))
    }

    /// Waits until nobody else has it.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        even_if_poisoned(self.0.lock())
    }

    /// None while somebody has it.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        at_once(self.0.try_lock())
    }

    /// What is in it, of an owner who knows that nobody else has it.
    pub fn get_mut(&mut self) -> &mut T {
        even_if_poisoned(self.0.get_mut())
    }

    /// What is in it.
    pub fn into_inner(self) -> T {
        even_if_poisoned(self.0.into_inner())
    }
}

impl<T> RwLock<T> {
    /// An unlocked one.
    pub const fn new(value: T) -> Self {
        Self(sync::RwLock::new(value))
    }

    /// Waits until nobody has it for writing. Not to be called by a thread that has it already.
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        even_if_poisoned(self.0.read())
    }

    /// None while somebody has it for writing.
    pub fn try_read(&self) -> Option<RwLockReadGuard<'_, T>> {
        at_once(self.0.try_read())
    }

    /// Waits until nobody else has it.
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        even_if_poisoned(self.0.write())
    }
}

impl Condvar {
    /// Nobody waits.
    pub const fn new() -> Self {
        Self { inner: sync::Condvar::new(), waiting: AtomicUsize::new(0) }
    }

    /// Sleeps until notified, and now and then for no reason; the lock is free meanwhile.
    pub fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        self.waiting.fetch_add(1, Relaxed);
        let guard = even_if_poisoned(self.inner.wait(guard));
        self.waiting.fetch_sub(1, Relaxed);
        guard
    }

    /// Sleeps while `condition` holds, for at most `limit`.
    pub fn wait_while_for<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        limit: Duration,
        condition: impl FnMut(&mut T) -> bool,
    ) -> MutexGuard<'a, T> {
        self.waiting.fetch_add(1, Relaxed);
        let (guard, _) = even_if_poisoned(self.inner.wait_timeout_while(guard, limit, condition));
        self.waiting.fetch_sub(1, Relaxed);
        guard
    }

    /// Wakes one of those who wait.
    pub fn notify_one(&self) {
        if self.waiting.load(Relaxed) > 0 {
            self.inner.notify_one();
        }
    }

    /// Wakes all who wait.
    pub fn notify_all(&self) {
        if self.waiting.load(Relaxed) > 0 {
            self.inner.notify_all();
        }
    }
}

fn even_if_poisoned<T>(result: LockResult<T>) -> T {
    result.unwrap_or_else(PoisonError::into_inner)
}

fn at_once<G>(result: TryLockResult<G>) -> Option<G> {
    match result {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    /// Threads that take turns hand on each turn after the lock: a notification that is thought needless and is not would
    /// leave all of them asleep.
    #[test]
    fn no_notification_is_lost() {
        const THREADS: usize = 4;
        let (turn, changed) = (Mutex::new(0), Condvar::new());
        std::thread::scope(|scope| {
            for me in 0..THREADS {
                let (turn, changed) = (&turn, &changed);
                scope.spawn(move || {
                    for round in 0..5000 {
                        let mine = |now: usize| now == round * THREADS + me;
                        let mut now = turn.lock();
                        while !mine(*now) {
                            let late = Duration::from_secs(60);
                            now = match round % 2 {
                                0 => changed.wait(now),
                                _ => changed.wait_while_for(now, late, |now| !mine(*now)),
                            };
                        }
                        *now += 1;
                        drop(now);
                        changed.notify_all();
                    }
                });
            }
        });
        assert_eq!(*turn.lock(), THREADS * 5000);
        assert_eq!(changed.waiting.load(Relaxed), 0);
    }

    #[test]
    fn a_lock_outlives_a_panic() {
        let lock = Mutex::new(1);
        let died = std::thread::scope(|scope| {
            scope
                .spawn(|| {
                    let _held = lock.lock();
                    panic!("under the lock");
                })
                .join()
        });
        assert!(died.is_err());
        assert_eq!((*lock.lock(), lock.try_lock().map(|value| *value)), (1, None));
    }
}
