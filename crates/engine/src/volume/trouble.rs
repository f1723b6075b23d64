//! Volumes get into trouble, and out of it.

use forebay_common::lock::atomic::Ordering;
use std::sync::Arc;
use std::time::Duration;

use crate::Error;
use crate::core::Core;
use crate::event::Event;
use crate::io::BackingError;
use crate::planted_bugs;
use crate::volume::Volume;
use crate::volume::health::{Health, InFlight, LATE};

/// The delay of the watch from which on a jump of the clock or a suspended process is assumed. In such a time no
/// volume could answer.
const OVERSLEPT: Duration = Duration::from_secs(5);
/// The time between two looks for late volumes while the engine stops.
const STOP_LOOK: Duration = Duration::from_secs(1);
/// Volumes in trouble may hold one part in this number of the log's share.
const SHARE: u64 = 4;

/// Records a request that is about to be sent to the volume.
pub(crate) fn ask(core: &Core, volume: &Arc<Volume>) -> InFlight {
    let asked = volume.ask(core.env.clock.now());
    core.destager.volumes.asked.wake();
    asked
}

/// Records a failure of the volume. The request is tried again.
pub(crate) fn backing_failed(core: &Core, volume: &Volume, error: BackingError) {
    core.totals.backing_errors.add(1);
    let new = diagnose(core, volume, |health| {
        volume.errors.fetch_add(1, Ordering::Relaxed);
        health.late &= !health.asked.is_empty();
        health.failure.replace(error).is_none()
    });
    if new {
        core.event(Event::BackingFailed { volume: core.env.backing.name(volume.id), error });
    }
    tell_waiting(core);
}

/// Records that the volume carried out a destage request. It works again once it refuses no block of any object.
pub(crate) fn backing_worked(core: &Core, volume: &Volume) {
    let is_refusing = volume.is_troubled()
        && volume.is_refusing()
        && !planted_bugs::active("a volume works again though it refuses blocks");
    look_again(core, volume, |health| health.failure = health.failure.filter(|_| is_refusing));
}

/// Records that the volume answered a request other than destaging, with success or failure.
pub(crate) fn answered(core: &Core, volume: &Volume, asked: InFlight) {
    drop(asked);
    look_again(core, volume, |_| ());
}

/// Changes the health of a volume, and tells if it is healed by that.
fn look_again(core: &Core, volume: &Volume, change: impl FnOnce(&mut Health)) {
    let healed = |health: &mut Health| {
        let was = health.is_troubled();
        change(health);
        health.late &= !health.asked.is_empty();
        was && !health.is_troubled()
    };
    if volume.is_troubled() && diagnose(core, volume, healed) {
        core.event(Event::BackingHealed { volume: core.env.backing.name(volume.id) });
        tell_waiting(core);
    }
}

/// Changes the health of a volume under its lock, and counts volumes in trouble. Returns the result of `found`.
fn diagnose(core: &Core, volume: &Volume, found: impl FnOnce(&mut Health) -> bool) -> bool {
    let mut health = volume.health.lock();
    let new = found(&mut health);
    let now = health.is_troubled();
    if volume.troubled.swap(now, Ordering::Relaxed) != now {
        let count = &core.destager.volumes.troubled;
        if now {
            count.fetch_add(1, Ordering::Relaxed)
        } else {
            count.fetch_sub(1, Ordering::Relaxed)
        };
    }
    new
}

/// Wakes tasks that wait for room, for a flush or for the log tail.
fn tell_waiting(core: &Core) {
    core.destager.throttle.changed.wake();
    core.space.wake();
}

/// Detects volumes that are late, until the engine closes.
pub(crate) async fn run_watch(core: Arc<Core>) {
    let volumes = &core.destager.volumes;
    let due = || volumes.all().iter().filter_map(|volume| volume.due()).min();
    while !core.closing() {
        match due() {
            None => volumes.asked.until(|| (core.closing() || due().is_some()).then_some(())).await,
            Some(due) => match due.saturating_sub(core.env.clock.now()) {
                Duration::ZERO => find_late(&core),
                left => core.rest(left).await,
            },
        }
    }
}

/// Detects volumes that are late, while the engine stops. Never ends.
pub(crate) async fn watch_until_stopped(core: &Core) {
    loop {
        core.env.clock.sleep(STOP_LOOK).await;
        find_late(core);
    }
}

/// Finds the volumes that have not answered in time.
fn find_late(core: &Core) {
    let now = core.env.clock.now();
    for volume in core.destager.volumes.all() {
        if volume.due().is_some_and(|due| due + OVERSLEPT <= now) {
            volume.give_time(now);
        } else if volume.due().is_some_and(|due| due <= now)
            && diagnose(core, &volume, |health| !std::mem::replace(&mut health.late, true))
        {
            core.event(Event::BackingLate { volume: core.env.backing.name(volume.id), after: LATE });
            tell_waiting(core);
            if core.closing() {
                core.destager.work.wake();
            }
        }
    }
}

/// Returns the trouble of the volume if a write that makes `new` more of its blocks dirty must fail with it;
/// otherwise `None`.
pub(crate) fn holds_back(core: &Core, volume: &Volume, new: u64) -> Option<Error> {
    if new == 0 || !is_set_apart(core, volume) {
        return None;
    }
    let most = core.segments.log_use().share as u64 * core.slots() as u64 / SHARE;
    if core.destager.volumes.troubled_blocks() + new <= most { None } else { volume.trouble() }
}

/// Returns true if the volume is in trouble, and other volumes must not suffer from its dirty blocks.
pub(crate) fn is_set_apart(core: &Core, volume: &Volume) -> bool {
    volume.is_troubled() && core.destager.volumes.all.lock().iter().any(|other| !other.is_troubled())
}
