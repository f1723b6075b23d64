//! Work on files, directories and devices that may not answer: a thread of its own does it, with a deadline.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use crate::serve::STACK;

/// The time that a look at a directory may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// The advice for a reload if a file system does not answer.
pub(crate) const RELOAD_AGAIN: &str = "reload again once it answers, or name another one";

/// The reason why work has no result.
pub(crate) enum Unfinished {
    /// It takes longer than allowed. It goes on, and its result will be dropped.
    Late,
    /// The thread ended without a result, or the system refuses one.
    Failed(String),
}

/// Returns the result of `work`, if it ends within `patience`.
pub(crate) fn within<T: Send + 'static>(
    patience: Duration,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Unfinished> {
    let (send, done) = channel();
    let thread = std::thread::Builder::new().name("forebay-look".into()).stack_size(STACK);
    let run = move || drop(send.send(work()));
    thread.spawn(run).map_err(|error| Unfinished::Failed(error.to_string()))?;
    done.recv_timeout(patience).map_err(|error| match error {
        RecvTimeoutError::Timeout => Unfinished::Late,
        RecvTimeoutError::Disconnected => Unfinished::Failed("the thread has panicked, see the log".into()),
    })
}

/// Returns the result of `work` on `place`, a directory or file. `remedy` is the advice if its file system does not
/// answer.
///
/// # Errors
/// A sentence: the work takes longer than ten seconds, or the system refuses a thread.
pub(crate) fn in_time<T: Send + 'static>(
    place: &str,
    remedy: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, String> {
    within(PATIENCE, work).map_err(|unfinished| match unfinished {
        Unfinished::Late => {
            format!("{place}: the file system does not answer for {PATIENCE:?}; {remedy}")
        }
        Unfinished::Failed(why) => format!("{place} cannot be looked at: {why}"),
    })
}
