//! The miss-ratio curve of the running server: a thread feeds the estimator with the requests that the engine saw.

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use forebay_common::lock::{Condvar, Mutex};
use forebay_control::Curve;
use forebay_engine::Engine;
use forebay_mrc::{Estimator, Sampler};

/// The time between two turns of the thread. The buffers of the sampler hold the samples of this time.
const TURN: Duration = Duration::from_millis(200);

/// The estimate of the miss-ratio curve, while the server runs. The thread ends when this is dropped.
pub(crate) struct CurveTask {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    estimator: Mutex<Estimator>,
    ending: Mutex<bool>,
    ended: Condvar,
}

impl CurveTask {
    /// Begins to sample the requests of `engine`.
    ///
    /// # Errors
    /// No thread can be started.
    pub(crate) fn start(engine: &Arc<Engine>) -> io::Result<Self> {
        let sampler = Arc::new(Sampler::default());
        engine.set_sampler(sampler.clone());
        let estimator = Mutex::new(Estimator::new(sampler));
        let shared = Arc::new(Shared { estimator, ending: Mutex::default(), ended: Condvar::default() });
        let (of_thread, engine, begun) = (shared.clone(), engine.clone(), Instant::now());
        let thread = std::thread::Builder::new().name("forebay-curve".into());
        let thread = thread.spawn(move || {
            while !of_thread.is_ending() {
                of_thread.estimator.lock().advance(begun.elapsed(), engine.present());
            }
        })?;
        Ok(CurveTask { shared, thread: Some(thread) })
    }

    /// Returns the curve of the requests so far. The names of the groups are those of the engine's volumes.
    pub(crate) fn curve(&self, engine: &Engine) -> Curve {
        let mut curve = self.shared.estimator.lock().curve();
        for group in &mut curve.groups {
            group.name = match group.group {
                u32::MAX => "others".to_owned(),
                number => engine.volume_name(number),
            };
        }
        curve
    }
}

impl Shared {
    /// Waits for the next turn. Returns true if there is none.
    fn is_ending(&self) -> bool {
        let ending = self.ending.lock();
        *self.ended.wait_while_for(ending, TURN, |ending| !*ending)
    }
}

impl Drop for CurveTask {
    fn drop(&mut self) {
        *self.shared.ending.lock() = true;
        self.shared.ended.notify_one();
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has already reported the panic.
            let _ = thread.join();
        }
    }
}
