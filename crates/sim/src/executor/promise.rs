//! The result of an operation, for the task that waits for it.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use forebay_common::lock::Mutex;

/// The place where a promise leaves a result for a future.
struct Slot<T> {
    value: Option<T>,
    waker: Option<Waker>,
}

/// A future that waits for a promised result.
pub struct Completion<T>(Arc<Mutex<Slot<T>>>);

/// The giving side of a result.
pub struct Promise<T>(Arc<Mutex<Slot<T>>>);

/// Returns a promise, and the future that waits for its result.
pub fn promise<T>() -> (Promise<T>, Completion<T>) {
    let slot = Arc::new(Mutex::new(Slot { value: None, waker: None }));
    (Promise(slot.clone()), Completion(slot))
}

impl<T> Promise<T> {
    /// Gives the result.
    pub fn keep(self, value: T) {
        let waker = {
            let mut slot = self.0.lock();
            slot.value = Some(value);
            slot.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl<T> Future for Completion<T> {
    type Output = T;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let mut slot = self.0.lock();
        match slot.value.take() {
            Some(value) => Poll::Ready(value),
            None => {
                slot.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}
