//! What a killed server had is in use a little longer: the kernel ends its I/O and frees its memory first.

use std::time::{Duration, Instant};

/// How long a start waits for that, all together.
const LINGER: Duration = Duration::from_secs(5);

/// The patience of one start.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Linger(Instant);

impl Linger {
    /// From now on.
    pub(crate) fn new() -> Self {
        Linger(Instant::now() + LINGER)
    }

    /// Takes `what`, again and again while it is `busy` and the time is not over.
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
                    std::thread::sleep(LINGER / 100);
                }
                taken => return taken,
            }
        }
    }
}
