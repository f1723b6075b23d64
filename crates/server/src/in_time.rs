//! Work on files, directories and devices that may not answer: a thread of its own does it, with a deadline.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, SendError, sync_channel};
use std::time::{Duration, Instant};

use forebay_vfs::WalkProgress;

use crate::serve::STACK;

/// The time that a look at a directory may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// The time between two looks at work in progress.
const LOOK: Duration = Duration::from_millis(200);

/// The advice for a command if a file system does not answer.
pub(crate) const ASK_AGAIN: &str = "run the command again once it answers";

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
    while_it_goes_on(patience, || (), work, drop)
}

/// Returns the result of `work`, which may take any time as long as it goes on. It is given up when `mark` returns one
/// value for `patience`. `mark` is called several times a second. `late` gets the result of work that was given up.
pub(crate) fn while_it_goes_on<T: Send + 'static, M: PartialEq>(
    patience: Duration,
    mut mark: impl FnMut() -> M,
    work: impl FnOnce() -> T + Send + 'static,
    late: impl FnOnce(T) + Send + 'static,
) -> Result<T, Unfinished> {
    // Nothing is sent to a receiver that has given up.
    let (send, done) = sync_channel(0);
    let run = move || {
        if let Err(SendError(result)) = send.send(work()) {
            late(result);
        }
    };
    let thread = std::thread::Builder::new().name("forebay-look".into()).stack_size(STACK);
    thread.spawn(run).map_err(|error| Unfinished::Failed(error.to_string()))?;
    let (mut seen, mut since) = (mark(), Instant::now());
    loop {
        let left = patience.saturating_sub(since.elapsed());
        match done.recv_timeout(left.min(LOOK)) {
            Ok(result) => return Ok(result),
            Err(RecvTimeoutError::Disconnected) => {
                return Err(Unfinished::Failed("the thread has panicked, see the log".into()));
            }
            Err(RecvTimeoutError::Timeout) => {}
        }
        let now = mark();
        if now != seen {
            (seen, since) = (now, Instant::now());
        } else if since.elapsed() >= patience {
            return Err(Unfinished::Late);
        }
    }
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
    within(PATIENCE, work).map_err(|unfinished| unfinished.about(place, remedy))
}

/// Returns the result of a walk over the files at `place`, as long as it goes on: `mark` changes with each file.
///
/// # Errors
/// A sentence: the walk has not gone on for ten seconds, or the system refuses a thread. The walk is told to end.
pub(crate) fn walk_in_time<T: Send + 'static>(
    place: &str,
    mut mark: impl FnMut(&WalkProgress),
    walk: impl FnOnce(&WalkProgress) -> T + Send + 'static,
) -> Result<T, String> {
    let progress = Arc::new(WalkProgress::default());
    let own = progress.clone();
    let look = || {
        mark(&progress);
        progress.mark()
    };
    let walked = while_it_goes_on(PATIENCE, look, move || walk(&own), drop);
    walked.map_err(|unfinished| {
        progress.give_up();
        unfinished.about(place, ASK_AGAIN)
    })
}

/// Returns a path without symbolic links. Call this with a bound of the time: the file system may not answer.
///
/// # Errors
/// A sentence.
pub(crate) fn real(path: &Path) -> Result<PathBuf, String> {
    std::fs::canonicalize(path).map_err(|error| format!("cannot look at {}: {error}", path.display()))
}

impl Unfinished {
    /// Returns the sentence about work on `place` that did not end. `remedy` is the advice if its file system does not
    /// answer.
    fn about(&self, place: &str, remedy: &str) -> String {
        match self {
            Unfinished::Late => {
                format!("{place}: the file system does not answer for {PATIENCE:?}; {remedy}")
            }
            Unfinished::Failed(why) => format!("{place} cannot be looked at: {why}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn work_that_goes_on_is_waited_for_and_its_result_is_late_after_it_was_given_up() {
        let (end, silent) = channel::<()>();
        let (tell, told) = channel();
        let late = move |result| tell.send(result).unwrap();
        let work = move || silent.recv().map_or(2, |()| 1);
        let given_up = while_it_goes_on(Duration::ZERO, || (), work, late);
        assert!(matches!(given_up, Err(Unfinished::Late)));
        drop(end);
        assert_eq!(told.recv().unwrap(), 2);
        let (end, goes_on) = channel::<()>();
        let mut steps = 0;
        let mark = || {
            steps += 1;
            if steps == 4 {
                end.send(()).unwrap();
            }
            steps.min(4)
        };
        let done = while_it_goes_on(Duration::from_secs(60), mark, move || goes_on.recv().is_ok(), drop);
        assert!(matches!(done, Ok(true)));
    }
}
