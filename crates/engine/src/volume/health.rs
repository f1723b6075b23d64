//! The health of a volume: failing, or without an answer for too long.

use forebay_common::lock::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::Error;
use crate::index::object::CachedObject;
use crate::io::BackingError;
use crate::volume::Volume;

/// The time without an answer after which a volume is late.
pub(super) const LATE: Duration = Duration::from_secs(10);

/// The failures and the unanswered requests of a volume.
#[derive(Debug, Default)]
pub(crate) struct Health {
    /// The error of the last attempt.
    pub(super) failure: Option<BackingError>,
    /// The unanswered requests: number, and the time at which each was sent.
    pub(super) asked: Vec<(u64, Duration)>,
    last: u64,
    pub(super) late: bool,
}

impl Health {
    pub(super) fn is_troubled(&self) -> bool {
        self.late || self.failure.is_some()
    }
}

/// A request to a volume, which is answered once this is dropped.
pub(crate) struct InFlight {
    volume: Arc<Volume>,
    number: u64,
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.volume.health.lock().asked.retain(|(number, _)| *number != self.number);
    }
}

impl Volume {
    /// Returns true if the volume fails or is late.
    pub(crate) fn is_troubled(&self) -> bool {
        self.troubled.load(Ordering::Relaxed)
    }

    /// Returns true if the volume's blocks may be moved within the log. They may not while a flush waits for them:
    /// the flush could wait for ever for blocks that were dirty when it began. The blocks of a volume in trouble may
    /// be moved in any case. They stay dirty for long, and other volumes must not wait for them.
    pub(crate) fn is_movable(&self) -> bool {
        !self.is_flushing() || self.is_troubled()
    }

    /// Returns the number of failures since the start.
    pub(crate) fn errors(&self) -> u64 {
        self.errors.load(Ordering::Relaxed)
    }

    /// Returns the volume's trouble: it is late, or it fails and has failed since there were `errors` failures.
    pub(crate) fn trouble_since(&self, errors: u64) -> Option<Error> {
        self.trouble().filter(|trouble| *trouble == Error::Late || self.errors() > errors)
    }

    /// Records that the volume refused blocks of an object for the first time.
    pub(crate) fn refuses(&self, object: &Arc<CachedObject>) {
        self.refusing.lock().push(Arc::downgrade(object));
    }

    /// Returns true if the volume still refuses blocks of some object.
    pub(super) fn is_refusing(&self) -> bool {
        // Objects are locked before the volume, as all other code does.
        let objects: Vec<_> = self.refusing.lock().iter().filter_map(Weak::upgrade).collect();
        let settled: Vec<_> = objects.into_iter().filter(|object| !object.lock().is_refused()).collect();
        let mut refusing = self.refusing.lock();
        refusing.retain(|object| {
            let object = object.upgrade();
            object.is_some_and(|object| !settled.iter().any(|settled| Arc::ptr_eq(settled, &object)))
        });
        !refusing.is_empty()
    }

    /// Records a request to the volume at `now`.
    pub(super) fn ask(self: &Arc<Self>, now: Duration) -> InFlight {
        let mut health = self.health.lock();
        health.last += 1;
        let number = health.last;
        health.asked.push((number, now));
        InFlight { volume: self.clone(), number }
    }

    /// Returns the volume's trouble, if any.
    pub(crate) fn trouble(&self) -> Option<Error> {
        let health = self.health.lock();
        let failure = health.failure.map(Error::Backing);
        if health.late { Some(Error::Late) } else { failure }
    }

    pub(crate) fn is_late(&self) -> bool {
        self.health.lock().late
    }

    /// Restarts the time of all unanswered requests at `now`.
    pub(super) fn give_time(&self, now: Duration) {
        self.health.lock().asked.iter_mut().for_each(|(_, since)| *since = now);
    }

    /// Returns the time at which the volume will be late.
    pub(super) fn due(&self) -> Option<Duration> {
        let health = self.health.lock();
        let oldest = health.asked.iter().map(|(_, since)| *since).min();
        oldest.filter(|_| !health.late).map(|since| since + LATE)
    }
}
