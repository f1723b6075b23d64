//! Waiting for a condition, without threads.

use std::collections::BTreeSet;
use std::future::poll_fn;
use std::task::{Poll, Waker};

use forebay_common::lock::Mutex;

use crate::planted_bugs::threads;

/// A place where tasks wait until something changes.
#[derive(Debug, Default)]
pub struct Gate(Mutex<Vec<Waker>>);

impl Gate {
    /// Wakes all waiting tasks: their conditions may have come true.
    pub fn wake(&self) {
        let woken = std::mem::take(&mut *self.0.lock());
        woken.into_iter().for_each(Waker::wake);
    }

    /// Waits until `ready` returns a value. The task that makes the condition true calls [`Gate::wake`] afterwards.
    pub async fn until<T>(&self, mut ready: impl FnMut() -> Option<T>) -> T {
        poll_fn(|context| {
            if let Some(value) = ready() {
                return Poll::Ready(value);
            }
            self.add(context.waker());
            if threads::active("a change comes between the look and the wait") {
                return Poll::Pending;
            }
            // The condition may have come true before the waker was registered.
            ready().map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }

    /// Has the next [`Gate::wake`] wake a task. A task may wait here many times before that, so full memory is first
    /// searched for wakers that the gate has twice.
    fn add(&self, waker: &Waker) {
        let mut waiting = self.0.lock();
        if waiting.len() == waiting.capacity() {
            let mut seen = BTreeSet::new();
            waiting.retain(|waker| seen.insert((waker.data(), std::ptr::from_ref(waker.vtable()))));
            // A search frees half of the memory, or is not repeated before as many wakers are added.
            let (kept, room) = (waiting.len(), waiting.capacity());
            waiting.reserve(if kept * 2 > room { room } else { 1 });
        }
        waiting.push(waker.clone());
    }
}

/// Waits for `future`, but no longer than `limit` takes. Returns `None` if the limit ended first.
pub async fn before<T>(limit: impl Future<Output = ()>, future: impl Future<Output = T>) -> Option<T> {
    let (mut limit, mut future) = (std::pin::pin!(limit), std::pin::pin!(future));
    poll_fn(|context| match future.as_mut().poll(context) {
        Poll::Ready(value) => Poll::Ready(Some(value)),
        Poll::Pending => limit.as_mut().poll(context).map(|()| None),
    })
    .await
}

/// Waits for `future`, and polls `task` beside it until then.
pub(crate) async fn beside<T>(task: impl Future<Output = ()>, future: impl Future<Output = T>) -> T {
    let (mut task, mut future) = (std::pin::pin!(task), std::pin::pin!(future));
    let mut over = false;
    poll_fn(|context| {
        if let Poll::Ready(value) = future.as_mut().poll(context) {
            return Poll::Ready(value);
        }
        over = over || task.as_mut().poll(context).is_ready();
        Poll::Pending
    })
    .await
}

/// Waits for all of `futures` side by side. Returns their results in order.
pub(crate) async fn all<F: Future + Unpin>(futures: Vec<F>) -> Vec<F::Output> {
    let mut running: Vec<_> = futures.into_iter().map(Some).collect();
    let mut results: Vec<Option<F::Output>> = running.iter().map(|_| None).collect();
    poll_fn(move |context| {
        let mut pending = false;
        for (slot, result) in running.iter_mut().zip(&mut results) {
            let Some(future) = slot else { continue };
            match std::pin::Pin::new(future).poll(context) {
                Poll::Ready(value) => {
                    *result = Some(value);
                    *slot = None;
                }
                Poll::Pending => pending = true,
            }
        }
        if pending { Poll::Pending } else { Poll::Ready(results.drain(..).flatten().collect()) }
    })
    .await
}

/// Yields once, so that other tasks run.
pub(crate) async fn pass() {
    let mut passed = false;
    poll_fn(|context| {
        if std::mem::replace(&mut passed, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_that_waits_again_and_again_for_what_never_comes_takes_no_memory() {
        let gate = Gate::default();
        let mut context = std::task::Context::from_waker(Waker::noop());
        for _ in 0..10_000 {
            let waiting = std::pin::pin!(gate.until(|| None::<()>));
            assert!(waiting.poll(&mut context).is_pending());
        }
        let room = gate.0.lock().capacity();
        assert!(room < 100, "the gate has room for {room} wakers");
    }
}
