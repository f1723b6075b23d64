//! The lock of the engine's tables. A thread that finds it taken sleeps until it is free; it does not offer its processor
//! round, as parking_lot's do: where there are few processors and much to do, that takes milliseconds each time.

use std::sync::PoisonError;

pub(crate) use std::sync::MutexGuard;

/// A mutex that does not remember panics: whoever panics under it ends the process, or is a test.
#[derive(Debug, Default)]
pub(crate) struct Mutex<T>(std::sync::Mutex<T>);

impl<T> Mutex<T> {
    /// An unlocked one.
    pub(crate) const fn new(value: T) -> Self {
        Mutex(std::sync::Mutex::new(value))
    }

    /// What is in it.
    pub(crate) fn into_inner(self) -> T {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until nobody else has it.
    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
