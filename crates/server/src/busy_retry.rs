//! Retries for resources of a killed server: they stay in use until the kernel has ended its I/O and freed its memory.

use std::time::{Duration, Instant};

/// The total time that a start waits for such resources.
const LIMIT: Duration = Duration::from_secs(5);

/// The time limit of one start.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BusyRetry(Instant);

impl BusyRetry {
    /// Starts the time limit now.
    pub(crate) fn new() -> Self {
        BusyRetry(Instant::now() + LIMIT)
    }

    /// Calls `take` repeatedly while its error is `busy` and the time limit is not reached.
    pub(crate) fn take<T, E>(
        self,
        what: &str,
        busy: impl Fn(&E) -> bool,
        mut take: impl FnMut() -> Result<T, E>,
    ) -> Result<T, E> {
        let mut said = false;
        loop {
            match take() {
                Err(error) if busy(&error) && Instant::now() < self.0 => {
                    if !std::mem::replace(&mut said, true) {
                        tracing::debug!(
                            "{what} is in use: waiting, as it may be by a server that was killed"
                        );
                    }
                    std::thread::sleep(LIMIT / 100);
                }
                taken => return taken,
            }
        }
    }
}
