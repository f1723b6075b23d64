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
mod cuts;
mod frames;
mod headers;
pub(crate) mod load_clean;
mod progress;
mod settle;

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::buffer::Slice;
use crate::engine::{Engine, Env, Parts, Settings};
use crate::event::Event;
use crate::format::{Place, SegmentId as Name, SegmentKind};
use crate::index::object::Object;
use crate::io::{BackingError, Device, Durability};
use crate::log::user_records::UserRecord;
use crate::maintain::deadline::{GivenUp, Ticks, Watched, watch_until_service};
use crate::pool::{Pool, PoolError, State};
use crate::recover::load_clean::Cold;
use crate::volume::Volumes;
use crate::wait::beside;
use crate::{Error, Seq};

use apply::Applied;
use headers::Found;
pub use progress::RecoveryProgress;

/// The reason why a pool cannot be put into service.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// The pool's devices cannot be used.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// Acknowledged data is lost.
    #[error(
        "the cache's log is damaged: frame {frame} is missing on all devices, and it is not the last one; restore the \
         missing device, or give the cache up and lose what was not destaged"
    )]
    Hole {
        /// The number of the first frame that is missing.
        frame: Seq,
    },
    /// The backing store does not return the size of an object.
    #[error("the cache holds data for a file that cannot be looked at: {0}")]
    Backing(BackingError),
    /// The engine failed at its start.
    #[error("the cache cannot be put into service: {0}")]
    Engine(Error),
}

/// The findings of recovery.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Number of dirty blocks that will be destaged.
    pub dirty_blocks: u64,
    /// Number of frames read one by one.
    pub frames: u64,
    /// True if the last frame was on one device only, or torn.
    pub torn: bool,
    /// User records found in the log, in order: all that are durable and were not released. Some that were released
    /// may come before them.
    pub notes: Vec<UserRecord>,
}

/// An engine that has read its devices and has not sent a request to its backing store yet. Its user may first bring
/// the store to the state that the user records describe. See [`Engine::begin`].
pub struct Opening {
    engine: Arc<Engine>,
    unsure: Vec<Arc<Object>>,
    cold: Cold,
    recovered: Recovered,
    progress: Arc<RecoveryProgress>,
}

impl Opening {
    /// Returns the user records found in the log; see [`Recovered::notes`].
    pub fn notes(&self) -> &[UserRecord] {
        &self.recovered.notes
    }

    /// Returns true if the devices have anything that the backing store may lack.
    pub fn holds_changes(&self) -> bool {
        !self.unsure.is_empty() || !self.recovered.notes.is_empty()
    }

    /// Returns the number of objects with changes on the devices, for each volume.
    pub fn volumes(&self) -> BTreeMap<u32, usize> {
        let mut volumes = BTreeMap::new();
        for object in &self.unsure {
            *volumes.entry(self.engine.env.backing.volume(&object.key)).or_default() += 1;
        }
        volumes
    }

    /// Puts the engine into service.
    ///
    /// # Errors
    /// See [`OpenError`]. An error loses no data on the devices.
    pub async fn finish(self) -> Result<(Arc<Engine>, Recovered), OpenError> {
        let Opening { engine, unsure, cold, recovered, progress } = self;
        let noted = engine.recall_disowned().await?;
        engine.settle(unsure, &progress).await?;
        engine.start_tasks();
        engine.log.started().await.map_err(OpenError::Engine)?;
        engine.finish_cuts().await?;
        engine.log_disowned(noted).await.map_err(OpenError::Engine)?;
        if !cold.is_empty() {
            engine.start("forebay-warm", |engine| engine.run_warm(cold));
        }
        let dirty_blocks = engine.usage().dirty_blocks;
        Ok((engine, Recovered { dirty_blocks, ..recovered }))
    }
}

impl Engine {
    /// Puts a pool into service: recovers its contents and starts the engine's tasks.
    ///
    /// # Errors
    /// See [`OpenError`]. An error loses no data on the devices.
    pub async fn open(
        pool: Pool,
        env: Env,
        settings: Settings,
    ) -> Result<(Arc<Engine>, Recovered), OpenError> {
        Engine::begin(pool, env, settings).await?.finish().await
    }

    /// Recovers the contents of a pool, for [`Opening::finish`] to put it into service. A caller that does not finish
    /// may begin again.
    ///
    /// # Errors
    /// See [`OpenError`]. An error loses no data on the devices.
    pub async fn begin(pool: Pool, env: Env, settings: Settings) -> Result<Opening, OpenError> {
        Engine::begin_reporting(pool, env, settings, Arc::default()).await
    }

    /// Recovers the contents of a pool, as [`Engine::begin`], and reports its progress. `progress` counts headers of
    /// segments, then segments of the log. While [`Opening::finish`] runs, it counts files with changes.
    ///
    /// # Errors
    /// See [`OpenError`]. An error loses no data on the devices.
    pub async fn begin_reporting(
        mut pool: Pool,
        env: Env,
        settings: Settings,
        progress: Arc<RecoveryProgress>,
    ) -> Result<Opening, OpenError> {
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
        beside(watch, Engine::recover(pool, (devices, ticks), env, settings, progress)).await
    }

    /// Recovers the contents of a pool. The caller watches its `devices` meanwhile.
    async fn recover(
        mut pool: Pool,
        (devices, ticks): (Vec<Option<Arc<Watched>>>, Arc<Ticks>),
        env: Env,
        settings: Settings,
        progress: Arc<RecoveryProgress>,
    ) -> Result<Opening, OpenError> {
        let (found, unread) = headers::scan(&pool, &progress).await;
        let doubtful = doubtful_before(&pool, unread.is_empty());
        let mut read = frames::read_log(&pool, &found, &progress).await?;
        let live = headers::live(found.clone(), &read, doubtful);
        let kept: Vec<u64> = live.iter().map(|found| found.seq).collect();
        let volumes = Arc::new(Volumes::new(env.backing.clone()));
        let Applied { segments, objects, notes, unsealed, unsure, cold, recovered } =
            apply::apply(&pool, live, &mut read, doubtful, volumes);
        let also_lost = pool.open_epoch().await?;
        also_lost.iter().for_each(|index| segments.lose(*index));
        let next_seq = read.next_frame;
        let mut in_use = devices;
        let lost = also_lost.iter().filter_map(|index| in_use.get_mut(usize::from(*index))?.take());
        let lost: Vec<_> = lost.collect();
        // Operations of a lost device may hang.
        lost.iter().for_each(|device| device.give_up(GivenUp::Unused));
        let devices = in_use;
        let parts = Parts { env, pool, segments, objects, notes, next_seq, devices, ticks, settings };
        let engine = Engine::assemble(parts);
        for device in lost {
            engine.event(Event::DeviceLost { device: device.name().to_owned(), left: engine.active() });
        }
        if read.dropped {
            engine.event(Event::LogDropped);
        }
        engine.repair_last(&read).await;
        engine.wipe(headers::dropped(&found, read.reach, &kept, unread)).await;
        for (id, footer) in unsealed {
            engine.write_footer(id, &footer).await;
        }
        progress.reset();
        Ok(Opening { engine, unsure, cold, recovered, progress })
    }

    /// Makes it durable that segments do not count, where the reach does not say so.
    async fn wipe(&self, headers: Vec<Place>) {
        for place in headers {
            let zeros = Slice::from(crate::buffer::Buffer::zeroed(1));
            self.write_legs(&[(place, zeros)], 0, Durability::Now).await;
        }
    }

    /// Writes the last frame to all legs that lack it.
    async fn repair_last(&self, read: &frames::Read) {
        let Some(last) = read.last.as_ref() else { return };
        for place in &last.bad {
            let data = Slice::from(crate::buffer::Buffer::from_bytes(&last.bytes));
            self.write_legs(&[(*place, data)], last.start, Durability::Now).await;
        }
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

fn name(pool: &Pool, found: &Found) -> Name {
    pool.segment_id(found.seq)
}

fn is_log(found: &Found) -> bool {
    found.kind == SegmentKind::Log
}
