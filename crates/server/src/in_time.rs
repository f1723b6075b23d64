//! Work on files and directories whose file system may not answer: a thread of its own does it, with a deadline.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use crate::serve::STACK;

/// The time that the work may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// Returns the result of `work` on `place`. A result that comes too late is dropped.
///
/// # Errors
/// A sentence: the work takes longer than ten seconds, or the system refuses a thread.
pub(crate) fn in_time<T: Send + 'static>(
    place: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, String> {
    let (send, done) = channel();
    let thread = std::thread::Builder::new().name("forebay-look".into()).stack_size(STACK);
    let run = move || drop(send.send(work()));
    thread.spawn(run).map_err(|error| format!("{place} cannot be looked at: {error}"))?;
    done.recv_timeout(PATIENCE).map_err(|error| match error {
        RecvTimeoutError::Timeout => {
            format!(
                "{place}: the file system does not answer for {PATIENCE:?}; reload again once it answers, or name another one"
            )
        }
        RecvTimeoutError::Disconnected => {
            format!("{place} cannot be looked at: the thread has panicked, see the log")
        }
    })
}
