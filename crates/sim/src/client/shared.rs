//! The state that all tasks of a world share.

use std::sync::Arc;

use forebay_common::lock::Mutex;
use forebay_engine::{Error, Event};

use crate::backing::Store;
use crate::disk::Disk;
use crate::epochs::Epochs;
use crate::executor::Executor;
use crate::hits::Hits;
use crate::model::Model;
use crate::notes::Ledger;
use crate::objects::Objects;
use crate::workload::Habits;

/// The errors that a client may get.
#[derive(Clone, Copy, Debug, Default)]
pub struct Allowed {
    /// Errors of the backing store.
    pub backing: bool,
    /// Errors of lost copies.
    pub damage: bool,
    /// The error that no device is left.
    pub no_device: bool,
    /// The error that a volume does not answer.
    pub late: bool,
}

impl Allowed {
    /// Returns true if a client may get `error`.
    pub fn permits(self, error: Error) -> bool {
        match error {
            Error::Backing(_) => self.backing,
            Error::Damaged => self.damage,
            Error::NoDevice => self.no_device,
            Error::Late => self.late,
            Error::Closing => false,
        }
    }
}

/// The state that all tasks of a world share.
pub struct Shared {
    /// Virtual time.
    pub executor: Executor,
    /// The epochs of pools, as the state directory holds them.
    pub epochs: Epochs,
    /// The backing store.
    pub store: Store,
    /// The model.
    pub model: Mutex<Model>,
    /// The user records.
    pub notes: Mutex<Ledger>,
    /// The objects.
    pub objects: Mutex<Objects>,
    /// Counts of faults.
    pub hits: Arc<Hits>,
    /// How clients behave.
    pub habits: Habits,
    /// Devices that are not in the pool.
    pub spares: Mutex<Vec<Disk>>,
    /// Devices whose adding has begun: they may be in the pool or not.
    pub joined: Mutex<Vec<Disk>>,
    /// Devices that may be removed in service.
    pub removable: Mutex<Vec<Disk>>,
    /// Names of the devices that were removed from the pool.
    pub left: Mutex<Vec<String>>,
    /// Names of the devices that the engine reported as lost in this session.
    pub lost: Mutex<Vec<String>>,
    /// Names of the devices of the pool as it was opened last, without the devices removed since.
    pub members: Mutex<Vec<String>>,
    /// True if the write verifier has changed in this session (P4).
    pub verifier_changed: Mutex<bool>,
    /// Events that the engines have reported so far.
    pub told: Mutex<Vec<Event>>,
    /// Names of lost devices, if something was acknowledged after the loss. Their present contents must never be used
    /// (P11).
    pub outdated: Mutex<Vec<String>>,
    /// Devices that do not belong to the pool.
    pub foreign: Mutex<Vec<Disk>>,
    /// Names of devices that are being added again: they may be in the pool or not.
    pub adding: Mutex<Vec<String>>,
    /// The first failure.
    pub failure: Mutex<Option<String>>,
    /// The events of the world, for a person; kept only on request.
    pub log: Option<Mutex<Vec<String>>>,
}

impl Shared {
    /// Reports a failure. The first one counts.
    pub fn fail(&self, what: String) {
        self.tell(|| format!("FAILED {what}"));
        self.failure.lock().get_or_insert(what);
    }

    /// Adds a line to the log, if there is one.
    pub fn tell(&self, line: impl FnOnce() -> String) {
        if let Some(log) = &self.log {
            log.lock().push(format!("{:>12.6} {}", self.executor.time().as_secs_f64(), line()));
        }
    }
}
