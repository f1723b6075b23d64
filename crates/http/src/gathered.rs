//! The figures of a moment, gathered once for all that ask within a second.

use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_common::lock::Mutex;
use forebay_control::{Activity, Curve, Handler, StatSample, Status};

/// The time for which gathered figures are shown.
const FRESH: Duration = Duration::from_secs(1);

/// The figures of a moment.
#[derive(Debug)]
pub struct Gathering {
    /// The state of the server.
    pub status: Status,
    /// The counters of the server.
    pub sample: StatSample,
    /// The miss-ratio curve; `None` if the server estimates none.
    pub curve: Option<Curve>,
    /// The activity of the 100 busiest clients, exports, users and files.
    pub activity: Activity,
}

/// Entries of each group of an activity.
const MOST_ACTIVE: usize = 100;

impl Gathering {
    /// Asks a server.
    pub fn of(handler: &dyn Handler) -> Self {
        let curve = handler.advise().ok().map(|advice| advice.curve);
        let activity = handler.activity(MOST_ACTIVE);
        Gathering { status: handler.status(), sample: handler.sample(), curve, activity }
    }
}

/// The last gathering.
#[derive(Debug, Default)]
pub(crate) struct Gathered(Mutex<Option<(Instant, Arc<Gathering>)>>);

impl Gathered {
    /// Returns the last gathering, or a new one if the last is a second old. Threads that ask meanwhile wait for the
    /// new one.
    pub(crate) fn get(&self, handler: &dyn Handler) -> Arc<Gathering> {
        let mut last = self.0.lock();
        if let Some((at, gathering)) = &*last
            && at.elapsed() < FRESH
        {
            return gathering.clone();
        }
        let gathering = Arc::new(Gathering::of(handler));
        *last = Some((Instant::now(), gathering.clone()));
        gathering
    }
}
