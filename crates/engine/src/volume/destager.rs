//! The state that destage tasks and writers share.

use forebay_common::lock::Mutex;
use std::sync::{Arc, Weak};

use crate::index::object::CachedObject;
use crate::volume::all::Volumes;
use crate::volume::throttle::Throttle;
use crate::wait::Gate;

/// The volumes with their destage queues, and the throttle of writers.
pub(crate) struct Destager {
    pub(crate) volumes: Arc<Volumes>,
    /// Wakes resting tasks, which then look for a reason to continue.
    pub(crate) work: Gate,
    pub(crate) throttle: Throttle,
    /// Objects with dirty blocks of which no copy could be read.
    pub(crate) damaged: Mutex<Vec<Weak<CachedObject>>>,
}

impl Destager {
    pub(crate) fn new(volumes: Arc<Volumes>) -> Self {
        Destager { volumes, work: Gate::default(), throttle: Throttle::default(), damaged: Mutex::default() }
    }

    /// Wakes all destage tasks to look for work, or for the end.
    pub(crate) fn wake(&self) {
        self.work.wake();
        self.volumes.wake();
    }
}
