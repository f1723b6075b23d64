//! The progress of a start or a stop, for the service manager, the log and `forebay status`.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use forebay_common::lock::Mutex;
use forebay_control::{Awaited, Starting};
use forebay_engine::RecoveryProgress;

use crate::host::Host;

/// The time between two reports. The service manager waits 30 seconds for the next one.
const REPORT: Duration = Duration::from_secs(2);

/// The progress of a start or a stop.
#[derive(Debug)]
pub(crate) struct UnderWay {
    begun: Instant,
    at: Mutex<At>,
    /// The counts of recovery; unchanged during other steps.
    pub(crate) recovery: Arc<RecoveryProgress>,
}

/// The step in progress, and the file system or device that it waits for.
#[derive(Debug)]
struct At {
    step: &'static str,
    /// The export that the step waits for, and the time when the wait began.
    awaited: Option<(PathBuf, Instant)>,
    /// A cache device that has not answered during this step.
    silent: Option<String>,
}

impl Default for UnderWay {
    fn default() -> Self {
        let at = At { step: "opening", awaited: None, silent: None };
        UnderWay { begun: Instant::now(), at: Mutex::new(at), recovery: Arc::default() }
    }
}

impl UnderWay {
    /// Begins the step `step`, which waits for no export yet.
    pub(crate) fn step(&self, step: &'static str) {
        *self.at.lock() = At { step, awaited: None, silent: None };
        self.recovery.reset();
    }

    /// Records that the step now asks the file system of this export, which may not answer.
    pub(crate) fn waits_for(&self, export: &Path) {
        let mut at = self.at.lock();
        if at.awaited.as_ref().is_none_or(|(path, _)| path != export) {
            at.awaited = Some((export.to_owned(), Instant::now()));
        }
    }

    /// Records that the step waits for no export.
    pub(crate) fn waits_for_none(&self) {
        self.at.lock().awaited = None;
    }

    /// Records that a cache device does not answer. The progress names it until the next step.
    pub(crate) fn silent(&self, device: &str) {
        self.at.lock().silent = Some(device.to_owned());
    }

    /// Returns the progress in the form of the control protocol.
    pub(crate) fn shown(&self) -> Starting {
        let (done, total) = self.recovery.read();
        let at = self.at.lock();
        let awaited = at.awaited.as_ref().map(|(path, since)| Awaited {
            path: path.clone(),
            elapsed_ns: since.elapsed().as_nanos() as u64,
        });
        let elapsed_ns = self.begun.elapsed().as_nanos() as u64;
        let mut step = at.step.to_owned();
        if let Some(device) = &at.silent {
            step += &format!("; cache device {device} does not answer");
        }
        Starting { step, done, total, elapsed_ns, awaited }
    }
}

/// Reports every two seconds until it is dropped.
pub(crate) struct Reports {
    over: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Reports {
    /// Starts the thread that reports the progress of the start, to the log and to the service manager.
    pub(crate) fn start(of: &Arc<UnderWay>, host: &Arc<dyn Host>) -> std::io::Result<Self> {
        let (over, wait) = channel::<()>();
        let (of, host) = (of.clone(), host.clone());
        let thread = std::thread::Builder::new().name("forebay-report".into()).spawn(move || {
            while wait.recv_timeout(REPORT) == Err(RecvTimeoutError::Timeout) {
                let shown = of.shown().to_string();
                tracing::info!("{shown}, {} s so far", of.begun.elapsed().as_secs());
                host.under_way(&shown);
            }
        })?;
        Ok(Reports { over: Some(over), thread: Some(thread) })
    }
}

impl Drop for Reports {
    fn drop(&mut self) {
        self.over = None;
        if let Some(thread) = self.thread.take() {
            // A panic there has said so itself.
            let _ = thread.join();
        }
    }
}
