//! Waits: pauses of background tasks, and the wait for clean segments.

use std::time::Duration;

use super::Core;

impl Core {
    /// Waits for `time`, or until the engine closes.
    pub(crate) async fn rest(&self, time: Duration) {
        self.rest_unless(time, || false).await;
    }

    /// Waits for `time`, until the engine closes, or until `over` is true. The task that makes `over` true wakes the
    /// destager's `work`.
    pub(crate) async fn rest_unless(&self, time: Duration, over: impl Fn() -> bool) {
        let mut sleep = self.env.clock.sleep(time);
        let mut closed = Box::pin(self.destager.work.until(|| (self.closing() || over()).then_some(())));
        std::future::poll_fn(|context| {
            let closed = closed.as_mut().poll(context).is_ready();
            if closed || sleep.as_mut().poll(context).is_ready() {
                return std::task::Poll::Ready(());
            }
            std::task::Poll::Pending
        })
        .await;
    }

    /// Waits until all clean segments are loaded, or never will be: no device is left, or the engine closes.
    pub(crate) async fn warmed(&self) {
        let over = || !self.segments.is_warming() || self.closing() || self.log.broken().is_some();
        self.space.until(|| over().then_some(())).await;
    }
}
