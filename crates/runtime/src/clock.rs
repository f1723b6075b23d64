//! The engine's clock in production.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use forebay_engine::io::{Clock, Io};

use crate::executor::{TimerKey, clear_timer, set_timer};

/// The longest sleep: a hundred years, with which no deadline overflows.
const LONGEST: Duration = Duration::from_secs(100 * 365 * 86_400);

/// The monotonic clock of the system, counted from the making of this one. It stands still while the machine is
/// suspended.
#[derive(Clone, Copy, Debug)]
pub struct SystemClock {
    start: Instant,
}

impl SystemClock {
    /// Returns a clock that starts at zero.
    pub fn new() -> Self {
        SystemClock { start: Instant::now() }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    /// Sleeps for `time`. Outside [`block_on`](crate::block_on) the thread sleeps when the future is polled.
    fn sleep(&self, time: Duration) -> Io<()> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Box::pin(Sleep { key: (Instant::now() + time.min(LONGEST), number) })
    }
}

struct Sleep {
    key: TimerKey,
}

impl Future for Sleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let left = self.key.0.saturating_duration_since(Instant::now());
        if !left.is_zero() {
            if set_timer(self.key, context.waker().clone()) {
                return Poll::Pending;
            }
            std::thread::sleep(left);
        }
        Poll::Ready(())
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        clear_timer(self.key);
    }
}
