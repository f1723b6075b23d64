//! Recovery: from the contents of the devices to an engine in service.
//!
//! 1. Reads the headers of all segments. Those before the durable `oldest` do not count.
//! 2. Reads the segments of the log: by their footers, or without a footer frame by frame (`frames.rs`).
//! 3. Applies the records of the log in order; the newest wins (`apply.rs`).
//! 4. Copies a frame that only one leg has to the other leg. Writes footers to segments that lack one.
//! 5. Carries out truncations that the backing store may lack.
//! 6. Starts service. The segments outside of the log are loaded after that (`recover/load_clean.rs`).
//!
//! The steps before 4 only read. Steps 4 to 6 write data that is on the devices already, or do what the log says. So
//! recovery may be interrupted anywhere and begun again.

mod apply;
pub(crate) mod backing_sizes;
pub(crate) mod cuts;
pub(crate) mod disowned;
mod frames;
mod headers;
mod image;
pub(crate) mod load_clean;
pub(crate) mod outcome;
pub(crate) mod progress;

use std::sync::Arc;

use crate::buffer::Slice;
use crate::core::env::Env;
use crate::core::settings::Settings;
use crate::core::{Core, Parts};
use crate::event::Event;
use crate::format::Place;
use crate::index::object::CachedObject;
use crate::io::{Device, Durability};
use crate::log::mirror_io::{lose, write_legs};
use crate::log::writer::write_footer;
use crate::maintain::device_watch::watch_until_service;
use crate::planted_bugs;
use crate::pool::deadline::{GivenUp, Ticks, Watched};
use crate::pool::{Pool, State};
use crate::recover::apply::Applied;
use crate::recover::load_clean::Cold;
use crate::recover::outcome::{OpenError, Recovered};
use crate::recover::progress::RecoveryProgress;
use crate::segments::Reach;
use crate::volume::all::Volumes;
use crate::wait::beside;

/// A pool whose contents are recovered. Its tasks are not started yet.
pub(crate) struct Begun {
    pub(crate) core: Arc<Core>,
    /// The objects with changes that the backing store may lack.
    pub(crate) unsure: Vec<Arc<CachedObject>>,
    pub(crate) cold: Cold,
    pub(crate) recovered: Recovered,
    pub(crate) progress: Arc<RecoveryProgress>,
}

/// Recovers the contents of a pool, and reports the progress.
pub(crate) async fn begin(
    mut pool: Pool,
    env: Env,
    settings: Settings,
    progress: Arc<RecoveryProgress>,
) -> Result<Begun, OpenError> {
    if let Some(witness) = &env.witness {
        pool.watch(witness.clone()).await?;
    }
    let ticks = Arc::new(Ticks::default());
    let mut devices = Vec::new();
    for member in &mut pool.members {
        let watched = member.device.take().map(|device| Watched::new(device, &ticks));
        member.device = watched.clone().map(|device| device as Arc<dyn Device>);
        devices.push(watched);
    }
    let all = devices.iter().flatten().cloned().collect();
    let watch = watch_until_service(all, ticks.clone(), env.clone(), settings.device_deadline);
    beside(watch, recover(pool, devices, ticks, env, settings, progress)).await
}

/// Recovers the contents of a pool. The caller watches its `devices` meanwhile.
async fn recover(
    mut pool: Pool,
    devices: Vec<Option<Arc<Watched>>>,
    ticks: Arc<Ticks>,
    env: Env,
    settings: Settings,
    progress: Arc<RecoveryProgress>,
) -> Result<Begun, OpenError> {
    let (found, unread) = headers::scan(&pool, &progress).await;
    let doubtful = doubtful_before(&pool, unread.is_empty());
    let mut read = frames::read_log(&pool, &found, &progress).await?;
    let live = headers::live(found.clone(), &read, doubtful);
    let kept: Vec<u64> = live.iter().map(|found| found.seq).collect();
    let volumes = Arc::new(Volumes::new(env.backing.clone()));
    let Applied { segments, objects, notes, unsealed, unsure, cold, recovered } =
        apply::apply(&pool, live, &mut read, doubtful, volumes);
    let also_lost = pool.open_epoch().await?;
    let data_lost = also_lost.iter().fold(false, |lost, index| lost | segments.lose(*index));
    let next_seq = read.next_frame;
    let mut in_use = devices;
    let lost = also_lost.iter().filter_map(|index| in_use.get_mut(usize::from(*index))?.take());
    let lost: Vec<_> = lost.collect();
    // Operations of a lost device may hang.
    lost.iter().for_each(|device| device.give_up(GivenUp::Unused));
    let devices = in_use;
    let parts = Parts { env, pool, segments, objects, notes, next_seq, devices, ticks, settings };
    let core = Core::assemble(parts);
    for device in lost {
        let (device, left) = (device.name().to_owned(), core.active());
        core.event(Event::DeviceLost { device, left, data_lost });
    }
    if read.dropped {
        core.event(Event::LogDropped);
        drop_all(&core, read.reach).await;
    }
    repair_last(&core, &read).await;
    wipe(&core, headers::dropped(&found, read.reach, &kept, unread)).await;
    for (id, footer) in unsealed {
        write_footer(&core, id, &footer).await;
    }
    progress.reset();
    Ok(Begun { core, unsure, cold, recovered, progress })
}

/// Makes it durable that no present segment counts (R22). The headers of the log are wiped after that, and with them
/// the invalidations of clean copies. The new log has no frame yet that says how far back the pool reaches.
async fn drop_all(core: &Core, reach: Reach) {
    if planted_bugs::active("a dropped log leaves its clean copies") {
        return;
    }
    for device in core.members.save_reach(reach).await {
        lose(core, device).await;
    }
}

/// Makes it durable that segments do not count, where the reach does not say so.
async fn wipe(core: &Core, headers: Vec<Place>) {
    for place in headers {
        let zeros = Slice::from(crate::buffer::Buffer::zeroed(1));
        write_legs(core, &[(place, zeros)], 0, Durability::Now).await;
    }
}

/// Writes the last frame to all legs that lack it.
async fn repair_last(core: &Core, read: &frames::Read) {
    let Some(last) = read.last.as_ref() else { return };
    for place in &last.bad {
        let data = Slice::from(crate::buffer::Buffer::from_bytes(&last.bytes));
        write_legs(core, &[(*place, data)], last.start, Durability::Now).await;
    }
}

/// Returns the epoch before which segments outside of the log are doubtful. Such a segment was opened before a device
/// was lost or could not be read. The records that invalidate its copies may have been on that device. If a member is
/// missing or the scan was incomplete, all such segments are doubtful: the epoch is `u64::MAX`.
fn doubtful_before(pool: &Pool, complete: bool) -> u64 {
    let lost = pool.members.iter().filter(|member| member.state != State::Active);
    let missing = pool.members.iter().any(|member| member.state == State::Active && member.device.is_none());
    let since = lost.map(|member| member.since_epoch).max().unwrap_or(0);
    if missing || !complete { u64::MAX } else { since }
}
