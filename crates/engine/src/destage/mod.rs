//! Destage: dirty blocks go to the backing store, object by object in order of offset, many at once. Each volume has
//! its own destage task (`volume/`).
//!
//! Objects queue in the order in which their oldest dirty block was written, so that the log's tail follows. Objects of
//! which the policy has another dirty time than the settings have a queue of that time (`volume/waiting.rs`). A block
//! is clean only once the backing store's sync has succeeded. After a failure the block is written again from the
//! log, never only synced again (Rebello et al., ATC'20).

mod batch;
pub(crate) mod destaged;
pub(crate) mod flush;

use forebay_common::lock::atomic::Ordering;
use std::sync::Arc;
use std::time::Duration;

use crate::core::Core;
use crate::destage::batch::destage;
use crate::planted_bugs;
use crate::volume::Volume;
use crate::volume::queue::start_destage_task;
use crate::volume::trouble::run_watch;
use crate::wait::before;

/// The lowest and the highest number of blocks destaged between two syncs.
const BATCH: (usize, usize) = (256, 8192);
/// The wanted time of a batch while writers wait for its end. Destaging of long runs is many times faster than that
/// of scattered blocks. A sync for every MiB would halve the speed of long runs. Many MiB between syncs would be a
/// long stall with scattered blocks.
const BATCH_TIME: Duration = Duration::from_millis(100);
/// The wanted time of a batch if no writer waits.
const CALM_BATCH_TIME: Duration = Duration::from_secs(1);
/// The pause after a failure. It doubles from the first value up to the second.
const PAUSE: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(15));

/// Starts the destage tasks of volumes with queued objects, and the watch over all volumes.
pub(crate) fn start_destage_tasks(core: &Arc<Core>) {
    core.start("forebay-watch", run_watch);
    // The core is started once, so the cell is empty.
    let _ = core.lane.set(|core, volume| core.start("forebay-destage", |core| run_destage(core, volume)));
    core.destager
        .volumes
        .all()
        .into_iter()
        .filter(|volume| volume.waiting() > 0)
        .for_each(|volume| start_destage_task(core, volume));
}

/// Destages a volume until the engine closes.
async fn run_destage(core: Arc<Core>, volume: Arc<Volume>) {
    let (mut pause, mut batch) = (PAUSE.0, BATCH.0);
    while !core.closing() {
        let Some(Reason { wanted, urgent }) = reason(&core, &volume) else {
            rest_until_reason(&core, &volume).await;
            continue;
        };
        let begun = core.env.clock.now();
        let Some(destaged) = before(until_left(&core, &volume), destage(&core, &volume, batch, urgent)).await
        else {
            // The objects of the batch stay busy: a write in flight may still reach the backing store.
            return;
        };
        match destaged {
            Some(done) => {
                batch = next_batch(batch, done, core.env.clock.now() - begun, wanted);
                pause = PAUSE.0;
            }
            None => {
                core.rest(pause).await;
                pause = (pause * 2).min(PAUSE.1);
            }
        }
    }
}

/// Waits until the engine closes and the volume is late. A stop leaves the requests in flight to such a volume then:
/// their blocks stay dirty in the log.
async fn until_left(core: &Core, volume: &Volume) {
    let waits = || planted_bugs::active("a stop waits for a volume that does not answer");
    let is_left = || (core.closing() && volume.is_late() && !waits()).then_some(());
    core.destager.work.until(is_left).await
}

/// Sleeps until the volume has a reason to destage, its oldest dirty data is due, or the engine closes. Wakes up at
/// intervals of the usual dirty time as well, because no task says that the log fills.
async fn rest_until_reason(core: &Core, volume: &Volume) {
    let due = || volume.next_due(core.settings.destage_after, core.env.clock.now());
    let known = due();
    let usual = core.settings.destage_after;
    let wait = known.map(|due| due.saturating_sub(core.env.clock.now()).min(usual));
    let mut sleep = wait.map(|wait| core.env.clock.sleep(wait.max(Duration::from_millis(1))));
    let reason = || {
        let changed = due().is_some_and(|due| known.is_none_or(|known| due < known));
        (core.closing() || changed || reason(core, volume).is_some()).then_some(())
    };
    let mut woken = Box::pin(volume.work.until(reason));
    std::future::poll_fn(|context| {
        let slept = sleep.as_mut().is_some_and(|sleep| sleep.as_mut().poll(context).is_ready());
        if slept || woken.as_mut().poll(context).is_ready() {
            return std::task::Poll::Ready(());
        }
        std::task::Poll::Pending
    })
    .await;
}

/// The reason for a batch.
struct Reason {
    /// The wanted time of the batch.
    wanted: Duration,
    /// True if data that is not due is destaged as well.
    urgent: bool,
}

/// Returns the reason why the volume should destage now; `None` if there is none.
fn reason(core: &Core, volume: &Volume) -> Option<Reason> {
    let now = core.env.clock.now();
    let due = volume.next_due(core.settings.destage_after, now)?;
    if volume.pressed.load(Ordering::Relaxed) || volume.hurried.load(Ordering::Relaxed) {
        return Some(Reason { wanted: BATCH_TIME, urgent: true });
    }
    let fill = core.log_load(volume).dirty;
    let urgent = volume.is_flushing() || core.lacks_mirror() || fill >= 0.25;
    (urgent || now >= due).then_some(Reason { wanted: CALM_BATCH_TIME, urgent })
}

/// Returns the number of blocks to destage at once after a batch of up to `batch`, of which `done` blocks took `time`
/// instead of `wanted`.
fn next_batch(batch: usize, done: usize, time: Duration, wanted: Duration) -> usize {
    let next = match done {
        _ if time > wanted * 2 => batch / 2,
        // A batch that was not full says nothing about a larger one.
        done if done * 2 > batch && time < wanted / 2 => batch * 2,
        _ => batch,
    };
    next.clamp(BATCH.0, BATCH.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the batch size after many batches, over a store that takes `each` for a block and `sync` for a sync.
    fn steady_batch(each: Duration, sync: Duration, wanted: Duration) -> usize {
        (0..100).fold(BATCH.0, |batch, _| next_batch(batch, batch, each * batch as u32 + sync, wanted))
    }

    #[test]
    fn batches_grow_with_what_the_backing_store_takes_in_their_time() {
        let (us, ms) = (Duration::from_micros, Duration::from_millis);
        assert_eq!(steady_batch(ms(5), ms(30), BATCH_TIME), BATCH.0, "random blocks on disks");
        let stream = steady_batch(us(26), ms(10), BATCH_TIME);
        assert!((1024..=4096).contains(&stream), "a stream on disks: {stream}");
        assert!(steady_batch(us(26), ms(10), CALM_BATCH_TIME) >= 2 * stream, "and if nobody waits");
        assert_eq!(steady_batch(us(2), ms(1), BATCH_TIME), BATCH.1, "an SSD");
    }
}
