//! The epochs of pools, as the file in the state directory holds them. Power cuts spare that file.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use forebay_common::lock::Mutex;
use forebay_engine::io::{Io, Leg, Noted, Witness, WitnessError};

use crate::executor::Executor;

/// The time that a note takes.
const TAKES: Duration = Duration::from_micros(300);

/// A virtual [`Witness`]. Clones share their state.
#[derive(Clone)]
pub struct Epochs {
    executor: Executor,
    noted: Arc<Mutex<BTreeMap<u128, Noted>>>,
    /// Names of the members of the last noted epoch.
    legs: Arc<Mutex<Vec<String>>>,
    failing: Arc<AtomicBool>,
}

impl Epochs {
    /// Makes a witness that knows no pool yet.
    pub fn new(executor: &Executor) -> Self {
        Epochs {
            executor: executor.clone(),
            noted: Arc::default(),
            legs: Arc::default(),
            failing: Arc::default(),
        }
    }

    /// Returns the names of the devices that were in use last; none before the first note.
    pub fn legs(&self) -> Vec<String> {
        self.legs.lock().clone()
    }

    /// Changes the names of the devices that were in use last.
    pub fn rename(&self, change: impl Fn(&mut Vec<String>)) {
        change(&mut self.legs.lock());
    }

    /// Lets notes of an epoch in use fail from now on, or succeed.
    pub fn set_failing(&self, failing: bool) {
        self.failing.store(failing, Ordering::Relaxed);
    }
}

impl Witness for Epochs {
    fn note(&self, pool: u128, epoch: u64, legs: Vec<Leg>) -> Io<Result<(), WitnessError>> {
        if !self.executor.step() {
            return self.executor.never();
        }
        let epochs = self.clone();
        self.executor.after(TAKES, move || {
            epochs.executor.step().then(|| {
                if epochs.failing.load(Ordering::Relaxed) {
                    return Err(WitnessError("no room".to_owned()));
                }
                epochs.executor.mark();
                let mut all = epochs.noted.lock();
                let noted = all.entry(pool).or_default();
                (noted.in_use, noted.given) = (epoch.max(noted.in_use), epoch.max(noted.given));
                *epochs.legs.lock() = legs.into_iter().map(|leg| leg.name).collect();
                Ok(())
            })
        })
    }

    fn give(&self, pool: u128, epoch: u64) -> Io<Result<(), WitnessError>> {
        if !self.executor.step() {
            return self.executor.never();
        }
        let epochs = self.clone();
        self.executor.after(TAKES, move || {
            epochs.executor.step().then(|| {
                epochs.executor.mark();
                let mut all = epochs.noted.lock();
                let noted = all.entry(pool).or_default();
                noted.given = epoch.max(noted.given);
                Ok(())
            })
        })
    }

    fn noted(&self, pool: u128) -> Io<Result<Noted, WitnessError>> {
        let noted = self.noted.lock().get(&pool).copied().unwrap_or_default();
        Box::pin(std::future::ready(Ok(noted)))
    }
}
