//! A lock that a task may hold while it waits.

use forebay_common::lock::Mutex;
use forebay_engine::wait::Gate;

/// Lets one task at a time in.
#[derive(Debug, Default)]
pub(crate) struct Turnstile {
    taken: Mutex<bool>,
    free: Gate,
}

/// The right of a task to be inside.
pub(crate) struct Inside<'a>(&'a Turnstile);

impl Turnstile {
    /// Waits until no other task is inside.
    pub(crate) async fn enter(&self) -> Inside<'_> {
        self.free.until(|| (!std::mem::replace(&mut *self.taken.lock(), true)).then(|| Inside(self))).await
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        *self.0.taken.lock() = false;
        self.0.free.wake();
    }
}
