//! Locks. A thread that finds a lock taken sleeps until it is free. It does not yield its processor repeatedly, as with
//! parking_lot's locks. On a busy host with few processors, yielding takes milliseconds each time.
//!
//! The locks are the standard library's without poisoning: a thread that panics under a lock ends the process, or is a
//! test.
//!
//! With the feature `shuttle` the locks and atomics are those of the checker of that name (decision 032). At each use
//! of one, the checker decides which thread runs next. They work only while the checker runs. Only `crates/threads`
//! asks for the feature.

use std::sync::{LockResult, PoisonError, TryLockError, TryLockResult};
use std::time::Duration;

#[cfg(feature = "shuttle")]
use shuttle::sync;
#[cfg(not(feature = "shuttle"))]
use std::sync;

pub use sync::{MutexGuard, RwLockReadGuard, RwLockWriteGuard, atomic};

use atomic::{AtomicUsize, Ordering::Relaxed};

/// A mutual exclusion lock.
#[derive(Debug, Default)]
pub struct Mutex<T>(sync::Mutex<T>);

/// A lock that readers share, or that one writer holds exclusively.
#[derive(Debug, Default)]
pub struct RwLock<T>(sync::RwLock<T>);

/// A condition variable for a state behind a [`Mutex`]. A thread changes the state under the lock, and notifies while
/// or after it holds the lock. A notification without waiters costs no system call.
#[derive(Debug, Default)]
pub struct Condvar {
    inner: sync::Condvar,
    /// The number of waiters, counted under the lock. So a thread that notifies after a change knows of all waiters for
    /// it.
    waiting: AtomicUsize,
}

impl<T> Mutex<T> {
    /// Returns an unlocked mutex.
    pub const fn new(value: T) -> Self {
        Self(sync::Mutex::new(value))
    }

    /// Waits until no other thread holds the lock.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        even_if_poisoned(self.0.lock())
    }

    /// Returns none while a thread holds the lock.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        at_once(self.0.try_lock())
    }

    /// Returns the value without locking: the exclusive reference proves that no other thread holds the lock.
    pub fn get_mut(&mut self) -> &mut T {
        even_if_poisoned(self.0.get_mut())
    }

    /// Returns the value, and consumes the lock.
    pub fn into_inner(self) -> T {
        even_if_poisoned(self.0.into_inner())
    }
}

impl<T> RwLock<T> {
    /// Returns an unlocked lock.
    pub const fn new(value: T) -> Self {
        Self(sync::RwLock::new(value))
    }

    /// Waits until no thread holds the lock for writing. A thread that holds the lock already must not call this.
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        even_if_poisoned(self.0.read())
    }

    /// Returns none while a thread holds the lock for writing.
    pub fn try_read(&self) -> Option<RwLockReadGuard<'_, T>> {
        at_once(self.0.try_read())
    }

    /// Waits until no other thread holds the lock.
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        even_if_poisoned(self.0.write())
    }
}

impl Condvar {
    /// Returns a condition variable without waiters.
    pub const fn new() -> Self {
        Self { inner: sync::Condvar::new(), waiting: AtomicUsize::new(0) }
    }

    /// Sleeps until notified; may also return without a notification. The lock is free meanwhile.
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

    /// Wakes one waiter.
    pub fn notify_one(&self) {
        if self.waiting.load(Relaxed) > 0 {
            self.inner.notify_one();
        }
    }

    /// Wakes all waiters.
    pub fn notify_all(&self) {
        if self.waiting.load(Relaxed) > 0 {
            self.inner.notify_all();
        }
    }
}

fn even_if_poisoned<T>(result: LockResult<T>) -> T {
    result.unwrap_or_else(PoisonError::into_inner)
}

/// Returns the guard of a lock if the lock was free. A lock that a panic has poisoned counts as free.
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

    /// Threads that take turns notify for each turn after they release the lock. If a needed notification were omitted,
    /// all of them would stay asleep.
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
