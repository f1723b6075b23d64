//! Opens existing cache devices side by side. The system call that opens a hanging device does not return, so each
//! device is opened in a thread of its own, with a deadline.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use forebay_disk::{CacheDevice, OpenError};

use crate::busy_retry::BusyRetry;
use crate::devices::{device, make};
use crate::in_time::while_it_goes_on;

/// The time within which the making of a file has to go on. The last step is a sync of the whole file.
const MAKING: Duration = Duration::from_secs(60);

/// The time between two checks after the deadline.
const LOOK: Duration = Duration::from_millis(200);

type Answer = Result<Arc<CacheDevice>, OpenError>;

/// Returns the time within which a device has to answer.
pub(crate) fn deadline() -> Duration {
    forebay_engine::Settings::default().device_deadline
}

/// Opens devices side by side. Returns one answer for each, in order. A device that misses the deadline is
/// [`OpenError::Silent`] if another device was opened. Otherwise the call waits for it, and calls `waits_for` with its
/// path.
pub(crate) fn open_side_by_side(
    paths: Vec<PathBuf>,
    size: u64,
    retry: BusyRetry,
    waits_for: impl Fn(&Path),
) -> Vec<Answer> {
    open_until(paths, size, retry, deadline(), |opened, path| {
        if opened == 0 {
            waits_for(path);
        }
        opened > 0
    })
}

/// Opens a device that is to be added to a pool in service.
///
/// # Errors
/// [`OpenError::Silent`] after the deadline; every other reason why the device cannot be opened.
pub(crate) fn open_beside_others(path: &Path, size: u64, retry: BusyRetry) -> Answer {
    let mut answers = open_until(vec![path.to_owned()], size, retry, deadline(), |_, _| true);
    answers.pop().unwrap_or_else(|| Err(silent(path.to_owned(), deadline())))
}

/// Makes the file of a device that is to be added to a pool in service. That may take long, as long as it goes on.
///
/// # Errors
/// [`OpenError::Silent`] after [`MAKING`] without progress, and no file is left when the file system answers again;
/// every other reason why the file cannot be made.
pub(crate) fn make_beside_others(path: &Path, size: u64, retry: BusyRetry) -> Answer {
    let steps = Arc::new(AtomicU64::new(0));
    let (counted, place, late) = (steps.clone(), path.to_owned(), path.to_owned());
    let work = move || {
        make(&place, size, retry, &|| {
            counted.fetch_add(1, Relaxed);
        })
    };
    let unwanted = move |made: Answer| {
        if made.is_ok() {
            let _ = std::fs::remove_file(late);
        }
    };
    let made = while_it_goes_on(MAKING, || steps.load(Relaxed), work, unwanted);
    made.unwrap_or_else(|_| Err(silent(path.to_owned(), MAKING)))
}

fn silent(path: PathBuf, after: Duration) -> OpenError {
    OpenError::Silent { path, after }
}

/// Opens devices until each has answered. After the deadline it calls `goes_on` with the number of opened devices and
/// the path of a silent one; if that returns true, it returns without the silent devices.
fn open_until(
    paths: Vec<PathBuf>,
    size: u64,
    retry: BusyRetry,
    after: Duration,
    goes_on: impl Fn(usize, &Path) -> bool,
) -> Vec<Answer> {
    let (send, opened) = channel();
    let mut answers: Vec<Option<Answer>> = Vec::new();
    for (at, path) in paths.iter().enumerate() {
        let (send, theirs) = (send.clone(), path.clone());
        // A device that answers too late is closed again, since no receiver takes it.
        let open = move || drop(send.send((at, device(&theirs, size, retry))));
        let thread = std::thread::Builder::new().name("forebay-open".into()).spawn(open);
        // If the system refuses a thread, the device is opened here, without a deadline.
        answers.push(thread.is_err().then(|| device(path, size, retry)));
    }
    drop(send);
    let end = Instant::now() + after;
    while let Some(at) = answers.iter().position(Option::is_none) {
        let left = end.saturating_duration_since(Instant::now());
        match opened.recv_timeout(left.max(LOOK)) {
            Ok((at, answer)) => answers[at] = Some(answer),
            Err(RecvTimeoutError::Timeout) => {}
            // A thread has panicked and has reported that.
            Err(RecvTimeoutError::Disconnected) => break,
        }
        let there = answers.iter().filter(|answer| matches!(answer, Some(Ok(_)))).count();
        if Instant::now() >= end && answers[at].is_none() && goes_on(there, &paths[at]) {
            break;
        }
    }
    let answers = answers.into_iter().zip(paths);
    answers.map(|(answer, path)| answer.unwrap_or_else(|| Err(silent(path, after)))).collect()
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use forebay_disk::{FileDevice, MIN_SIZE};

    use super::*;

    /// Returns two devices. The second one is held open, so another opening of it lasts until it is closed.
    fn one_and_a_silent_one(folder: &Path) -> (Vec<PathBuf>, FileDevice) {
        let paths = vec![folder.join("a"), folder.join("b")];
        let [_, silent] = [0, 1].map(|at| FileDevice::open_or_create(&paths[at], MIN_SIZE).unwrap());
        (paths, silent)
    }

    #[test]
    fn a_silent_device_is_left_out_once_another_one_is_open() {
        let folder = tempfile::tempdir().unwrap();
        let (paths, _held) = one_and_a_silent_one(folder.path());
        let asked = RefCell::new(Vec::new());
        let answers =
            open_until(paths.clone(), MIN_SIZE, BusyRetry::new(), Duration::ZERO, |opened, path| {
                asked.borrow_mut().push(path.to_owned());
                opened > 0 && path == paths[1]
            });
        assert!(answers[0].is_ok(), "{:?}", answers[0].as_ref().err());
        assert!(matches!(&answers[1], Err(OpenError::Silent { path, .. }) if *path == paths[1]));
        assert!(asked.borrow().contains(&paths[1]));
    }

    #[test]
    fn a_silent_device_that_is_needed_is_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let (paths, held) = one_and_a_silent_one(folder.path());
        let held = RefCell::new(Some(held));
        let answers = open_until(paths.clone(), MIN_SIZE, BusyRetry::new(), Duration::ZERO, |_, path| {
            if path == paths[1] {
                held.take();
            }
            false
        });
        assert!(answers.iter().all(Result::is_ok));
    }
}
