//! A result that another thread will give.

use std::future::poll_fn;
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};

struct Slot<T> {
    value: Option<T>,
    waker: Option<Waker>,
}

/// The giving side of a result. The scheduler switches to no other thread while the slot is locked, so a plain mutex is
/// never contended.
pub struct Promise<T>(Arc<Mutex<Slot<T>>>);

impl<T> Promise<T> {
    /// Gives the result.
    pub fn keep(self, value: T) {
        let waker = self.0.lock().ok().and_then(|mut slot| {
            slot.value = Some(value);
            slot.waker.take()
        });
        waker.into_iter().for_each(Waker::wake);
    }
}

/// Returns a promise, and the future that waits for its result.
pub fn promise<T: Send>() -> (Promise<T>, impl Future<Output = T> + Send) {
    let slot = Arc::new(Mutex::new(Slot { value: None, waker: None }));
    let promise = Promise(slot.clone());
    let kept = poll_fn(move |context| {
        let Ok(mut slot) = slot.lock() else { return Poll::Pending };
        match slot.value.take() {
            Some(value) => Poll::Ready(value),
            None => {
                slot.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    });
    (promise, kept)
}
