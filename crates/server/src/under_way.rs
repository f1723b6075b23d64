//! A start and a stop while they are under way: how far they have come, for the service manager, the log and `forebay status`.

use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use forebay_common::lock::Mutex;
use forebay_control::Starting;
use forebay_engine::RecoveryProgress;

use crate::host::Host;

/// Between two reports. The service manager waits 30 seconds for the next one.
const REPORT: Duration = Duration::from_secs(2);

/// How far a start or a stop has come.
#[derive(Debug)]
pub(crate) struct UnderWay {
    begun: Instant,
    step: Mutex<&'static str>,
    /// What recovery counts; not counted in other steps.
    pub(crate) recovery: Arc<RecoveryProgress>,
}

impl Default for UnderWay {
    fn default() -> Self {
        UnderWay { begun: Instant::now(), step: Mutex::new("opening"), recovery: Arc::default() }
    }
}

impl UnderWay {
    /// From now on this is done.
    pub(crate) fn step(&self, step: &'static str) {
        *self.step.lock() = step;
        self.recovery.reset();
    }

    /// As the control socket shows it.
    pub(crate) fn shown(&self) -> Starting {
        let (done, total) = self.recovery.read();
        Starting {
            step: (*self.step.lock()).to_owned(),
            done,
            total,
            elapsed_ns: self.begun.elapsed().as_nanos() as u64,
        }
    }
}

/// Reports every two seconds until it is dropped.
pub(crate) struct Reports {
    over: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Reports {
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
