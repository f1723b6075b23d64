//! Stops the server.
//!
//! A file system that does not answer must not keep the server from stopping. So the steps run on a thread of their
//! own, and the server ends without them if they wait for such a file system. That is as safe as a kill is.

use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use forebay_config::format_size;
use forebay_control::{EventLog, FiguresWriter, Severity};
use forebay_http::Listener;
use forebay_vfs::Vfs;

use crate::cache::Cache;
use crate::error::Error;
use crate::event_report::stuck_exports;
use crate::notify::Notifier;
use crate::serve::STACK;
use crate::start::Served;

/// The time without an answer after which a file system is silent, and the time for which a stop then waits.
const PATIENCE: Duration = Duration::from_secs(10);
/// The time between two looks for file systems that do not answer.
const LOOK: Duration = Duration::from_secs(1);

/// The parts of a server that stops, in the order in which they end.
pub(crate) struct Stopping {
    pub(crate) served: Served,
    /// The recorder of figures, the page, and the control socket.
    pub(crate) administration: (FiguresWriter, Listener, forebay_control::Server),
    pub(crate) events: Arc<EventLog>,
    pub(crate) notifier: Option<Arc<Notifier>>,
}

impl Stopping {
    /// Ends the service of clients, then that of administrators, then the cache.
    pub(crate) fn end(self) -> Result<(), Error> {
        let Stopping { served, administration, events, notifier } = self;
        let Served { vfs, nfs, control, running, door, found } = served;
        // All clients together have the time of one drain.
        let (begun, drain) = (Instant::now(), control.limits().drain_timeout);
        let left = || drain.saturating_sub(begun.elapsed());
        found.end();
        running.shutdown(left());
        door.into_iter().for_each(|door| door.stop(left()));
        control.cache().into_iter().for_each(|cache| cache.volumes.leave_devices(left()));
        nfs.stop();
        control.end_reads();
        // From here on no administrator may flush, add or remove a device.
        drop(administration);
        let stopped = stop_cache(&vfs, control.cache(), &events);
        notifier.iter().for_each(|notifier| notifier.stop());
        stopped
    }
}

/// Carries out the `steps` of a stop on a thread of its own. Returns their result. If the steps take longer than
/// `drain`, and `find_silent` then finds exports for as long as [`PATIENCE`], returns these exports.
pub(crate) fn in_time(
    drain: Duration,
    steps: impl FnOnce() -> Result<(), Error> + Send + 'static,
    find_silent: impl Fn() -> Vec<String>,
) -> Result<Result<(), Error>, Vec<String>> {
    let (send, ended) = channel();
    let run = move || {
        // The receiver may have given up.
        let _ = send.send(steps());
    };
    let thread = std::thread::Builder::new().name("forebay-stop".into()).stack_size(STACK);
    let thread = match thread.spawn(run) {
        Ok(thread) => thread,
        Err(error) => return Ok(Err(error.into())),
    };
    let begun = Instant::now();
    let mut silent_since = None;
    loop {
        match ended.recv_timeout(LOOK) {
            Ok(stopped) => return Ok(stopped),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                let Err(panic) = thread.join() else { unreachable!("the thread has sent its result") };
                std::panic::resume_unwind(panic)
            }
        }
        let silent = if begun.elapsed() < drain { Vec::new() } else { find_silent() };
        if silent.is_empty() {
            silent_since = None;
        } else if silent_since.get_or_insert_with(Instant::now).elapsed() >= PATIENCE {
            return Err(silent);
        }
    }
}

/// Returns the served directories of which the file system has not answered for [`PATIENCE`].
pub(crate) fn silent_exports(vfs: &Vfs, cache: Option<&Cache>) -> Vec<String> {
    let spaces = vfs.spaces().into_iter().filter(|(_, known)| known.late >= PATIENCE);
    let mut silent: Vec<_> = spaces.map(|(export, _)| export.path.display().to_string()).collect();
    silent.extend(stuck_exports(vfs, true));
    silent.extend(cache.map(Cache::silent_file_systems).unwrap_or_default());
    silent.sort();
    silent.dedup();
    silent
}

/// Makes the unstable data of clients durable, and stops the cache.
fn stop_cache(vfs: &Vfs, cache: Option<&Cache>, events: &EventLog) -> Result<(), Error> {
    let failures = cache.map(|cache| cache.volumes.stop()).unwrap_or_default();
    for failure in failures {
        let message = format!("what was not flushed may be lost: {failure}");
        events.add(Severity::Error, "volume-stop", message, &[]);
    }
    let stopped = vfs.stop();
    if let Some(error) = stopped.unrecorded {
        let message = format!(
            "the state directory cannot be written: {error}; nothing is lost, but the next start is as after a crash: clients \
             write again what they have not committed"
        );
        events.add(Severity::Warning, "state-directory", message, &[]);
    }
    let dirty = stopped.dirty.map_err(Error::CacheStop)?;
    if let Some(cache) = cache {
        cache.stopped(dirty)?;
        if let Err(error) = cache.volumes.rest() {
            let message = format!("the state directory cannot be written: {error}");
            events.add(Severity::Warning, "volume-stop", message, &[]);
        }
    }
    if dirty > 0 {
        let message = format!(
            "{} stay on the cache devices until the next start; `forebay flush --wait` before a stop empties them",
            format_size(dirty)
        );
        events.add(Severity::Info, "dirty", message, &[("bytes", &dirty)]);
    }
    if stopped.unstable == 0 { Ok(()) } else { Err(Error::Unstable(stopped.unstable)) }
}
