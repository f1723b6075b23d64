//! The place where an operation's outcome meets the waiting future, on any thread.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use forebay_common::lock::Mutex;

/// The state that the completing thread and the waiting future share.
pub struct Slot<T>(Mutex<State<T>>);

enum State<T> {
    Empty(Option<Waker>),
    Done(Option<T>),
}

impl<T> Slot<T> {
    /// Returns a slot without an outcome.
    pub fn new() -> Arc<Self> {
        Arc::new(Slot(Mutex::new(State::Empty(None))))
    }

    /// Stores the outcome and wakes the waiting future.
    pub fn complete(&self, outcome: T) {
        let before = std::mem::replace(&mut *self.0.lock(), State::Done(Some(outcome)));
        if let State::Empty(Some(waker)) = before {
            waker.wake();
        }
    }
}

/// A future that ends with the outcome. Polling it again after that never ends.
pub enum Completion<T> {
    /// The outcome was known when the future was made. `None` once the future has ended.
    Ready(Option<T>),
    /// The outcome will be in the slot.
    Waiting(Arc<Slot<T>>),
}

impl<T> Completion<T> {
    /// Returns a future that ends at its first poll.
    pub fn ready(outcome: T) -> Self {
        Completion::Ready(Some(outcome))
    }
}

impl<T: Unpin> Future for Completion<T> {
    type Output = T;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        match self.get_mut() {
            Completion::Ready(outcome) => outcome.take().map_or(Poll::Pending, Poll::Ready),
            Completion::Waiting(slot) => match &mut *slot.0.lock() {
                State::Done(outcome) => outcome.take().map_or(Poll::Pending, Poll::Ready),
                State::Empty(waker) => {
                    match waker {
                        Some(waker) => waker.clone_from(context.waker()),
                        None => *waker = Some(context.waker().clone()),
                    }
                    Poll::Pending
                }
            },
        }
    }
}
