//! The health of a volume: failing, or without an answer for too long.

use forebay_common::lock::atomic::Ordering;
use std::sync::Arc;
use std::time::Duration;

use crate::Error;
use crate::engine::Engine;
use crate::event::Event;
use crate::io::BackingError;
use crate::volume::Volume;

/// The time without an answer after which a volume is late.
const LATE: Duration = Duration::from_secs(10);
/// The delay of the watch from which on a jump of the clock or a suspended process is assumed. In such a time no
/// volume could answer.
const OVERSLEPT: Duration = Duration::from_secs(5);
/// Volumes in trouble may hold one part in this number of the log's share.
const SHARE: u64 = 4;

/// The failures and the unanswered requests of a volume.
#[derive(Debug, Default)]
pub(crate) struct Health {
    /// The error of the last attempt.
    failure: Option<BackingError>,
    /// The unanswered requests: number, and time of the last sign of life.
    asked: Vec<(u64, Duration)>,
    last: u64,
    late: bool,
}

impl Health {
    fn is_troubled(&self) -> bool {
        self.late || self.failure.is_some()
    }
}

/// A request to a volume, which is answered once this is dropped.
pub(crate) struct Asked {
    volume: Arc<Volume>,
    number: u64,
}

impl Asked {
    /// Records that a part of the request was answered.
    pub(crate) fn goes_on(&self, now: Duration) {
        let mut health = self.volume.health.lock();
        for (_, since) in health.asked.iter_mut().filter(|(number, _)| *number == self.number) {
            *since = now;
        }
    }
}

impl Drop for Asked {
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

    /// Records a request to the volume at `now`.
    fn ask(self: &Arc<Self>, now: Duration) -> Asked {
        let mut health = self.health.lock();
        health.last += 1;
        let number = health.last;
        health.asked.push((number, now));
        Asked { volume: self.clone(), number }
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
    fn give_time(&self, now: Duration) {
        self.health.lock().asked.iter_mut().for_each(|(_, since)| *since = now);
    }

    /// Returns the time at which the volume will be late.
    fn due(&self) -> Option<Duration> {
        let health = self.health.lock();
        let oldest = health.asked.iter().map(|(_, since)| *since).min();
        oldest.filter(|_| !health.late).map(|since| since + LATE)
    }
}

impl Engine {
    /// Records a request that is about to be sent to the volume.
    pub(crate) fn ask(&self, volume: &Arc<Volume>) -> Asked {
        let asked = volume.ask(self.env.clock.now());
        self.destager.volumes.asked.wake();
        asked
    }

    /// Records a failure of the volume. The request is tried again.
    pub(crate) fn backing_failed(&self, volume: &Volume, error: BackingError) {
        self.totals.backing_errors.add(1);
        let new = self.diagnose(volume, |health| {
            volume.errors.fetch_add(1, Ordering::Relaxed);
            health.late &= !health.asked.is_empty();
            health.failure.replace(error).is_none()
        });
        if new {
            self.event(Event::BackingFailed { volume: self.env.backing.name(volume.id), error });
        }
        self.tell_waiting();
    }

    /// Records that the volume carried out a destage request.
    pub(crate) fn backing_worked(&self, volume: &Volume) {
        self.look_again(volume, |health| health.failure = None);
    }

    /// Records that the volume answered a request other than destaging, with success or failure.
    pub(crate) fn answered(&self, volume: &Volume, asked: Asked) {
        drop(asked);
        self.look_again(volume, |_| ());
    }

    fn look_again(&self, volume: &Volume, change: impl FnOnce(&mut Health)) {
        let healed = |health: &mut Health| {
            let was = health.is_troubled();
            change(health);
            health.late &= !health.asked.is_empty();
            was && !health.is_troubled()
        };
        if volume.is_troubled() && self.diagnose(volume, healed) {
            self.event(Event::BackingHealed { volume: self.env.backing.name(volume.id) });
            self.tell_waiting();
        }
    }

    fn diagnose(&self, volume: &Volume, found: impl FnOnce(&mut Health) -> bool) -> bool {
        let mut health = volume.health.lock();
        let new = found(&mut health);
        let now = health.is_troubled();
        if volume.troubled.swap(now, Ordering::Relaxed) != now {
            let count = &self.destager.volumes.troubled;
            if now {
                count.fetch_add(1, Ordering::Relaxed)
            } else {
                count.fetch_sub(1, Ordering::Relaxed)
            };
        }
        new
    }

    /// Wakes tasks that wait for room, for a flush or for the log tail.
    fn tell_waiting(&self) {
        self.destager.throttle.changed.wake();
        self.space.wake();
    }

    /// Detects volumes that are late, until the engine closes.
    pub(crate) async fn run_watch(self: Arc<Self>) {
        let volumes = &self.destager.volumes;
        let due = || volumes.all().iter().filter_map(|volume| volume.due()).min();
        while !self.closing() {
            match due() {
                None => volumes.asked.until(|| (self.closing() || due().is_some()).then_some(())).await,
                Some(due) => match due.saturating_sub(self.env.clock.now()) {
                    Duration::ZERO => self.find_late(),
                    left => self.rest(left).await,
                },
            }
        }
    }

    fn find_late(&self) {
        let now = self.env.clock.now();
        for volume in self.destager.volumes.all() {
            if volume.due().is_some_and(|due| due + OVERSLEPT <= now) {
                volume.give_time(now);
            } else if volume.due().is_some_and(|due| due <= now)
                && self.diagnose(&volume, |health| !std::mem::replace(&mut health.late, true))
            {
                self.event(Event::BackingLate { volume: self.env.backing.name(volume.id), after: LATE });
                self.tell_waiting();
            }
        }
    }

    /// Returns the trouble of the volume if a write that makes `new` more of its blocks dirty must fail with it;
    /// otherwise `None`.
    pub(crate) fn holds_back(&self, volume: &Volume, new: u64) -> Option<Error> {
        if new == 0 || !self.is_set_apart(volume) {
            return None;
        }
        let most = self.segments.log_use().share as u64 * self.slots() as u64 / SHARE;
        if self.destager.volumes.troubled_blocks() + new <= most { None } else { volume.trouble() }
    }

    /// Returns true if the volume is in trouble, and other volumes must not suffer from its dirty blocks.
    pub(crate) fn is_set_apart(&self, volume: &Volume) -> bool {
        volume.is_troubled() && self.destager.volumes.all.lock().iter().any(|other| !other.is_troubled())
    }
}
