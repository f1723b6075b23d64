//! The state that the tasks of an engine share, and its simplest questions.
//!
//! The types of the state know nothing of [`Core`] and of the tasks. A task is a set of functions that take the core.

pub(crate) mod clean_loader;
pub(crate) mod env;
mod rest;
pub(crate) mod scrubber;
pub(crate) mod settings;
mod space;
mod usage;

use forebay_common::lock::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use forebay_common::lock::{Mutex, RwLock};
use std::sync::{Arc, OnceLock, Weak};

use crate::buffer::BLOCK;
use crate::core::clean_loader::CleanLoader;
use crate::core::env::Env;
use crate::core::scrubber::Scrubber;
use crate::core::settings::Settings;
use crate::counters::Totals;
use crate::event::Event;
use crate::format::Place;
use crate::index::object::CachedObject;
use crate::index::objects::Objects;
use crate::index::share::Shares;
use crate::io::Key;
use crate::log::Log;
use crate::log::user_records::UserRecords;
use crate::mode::Mode;
use crate::pool::SEGMENTS_START;
use crate::pool::deadline::{Ticks, Watched};
use crate::pool::membership::Members;
use crate::segments::Segments;
use crate::tiers::clean::Clean;
use crate::tiers::credit::Credit;
use crate::tiers::ghost::Ghosts;
use crate::tiers::ram::Ram;
use crate::volume::Volume;
use crate::volume::destager::Destager;
use crate::volume::service_time::Service;
use crate::wait::Gate;
use crate::{Completion, Result, Seq, planted_bugs};
use forebay_mrc::Sampler;

/// Starts the destage task of a volume.
pub(crate) type StartLane = fn(&Arc<Core>, Arc<Volume>);

/// The state that the tasks share.
pub(crate) struct Core {
    /// A reference to the core itself, for the tasks that are started.
    pub(crate) me: Weak<Core>,
    pub(crate) env: Env,
    pub(crate) pool_id: u128,
    pub(crate) segment_size: u64,
    pub(crate) members: Members,
    /// The devices by their number in the pool; `None` for a lost or removed device.
    pub(crate) devices: RwLock<Vec<Option<Arc<Watched>>>>,
    /// The clock, in ticks, of the devices' operations.
    pub(crate) ticks: Arc<Ticks>,
    pub(crate) segments: Segments,
    pub(crate) log: Log,
    pub(crate) notes: UserRecords,
    pub(crate) objects: Objects,
    pub(crate) shares: Shares,
    pub(crate) ram: Ram,
    pub(crate) ghosts: Ghosts,
    pub(crate) credit: Credit,
    pub(crate) clean: Clean,
    pub(crate) destager: Destager,
    /// Set once destage tasks may run: recovery has ended.
    pub(crate) lane: OnceLock<StartLane>,
    pub(crate) service: Service,
    pub(crate) scrubber: Scrubber,
    pub(crate) warmer: CleanLoader,
    pub(crate) totals: Totals,
    /// Takes note of every request for the miss-ratio curve, if the engine's user wants one.
    pub(crate) sampler: OnceLock<Arc<Sampler>>,
    pub(crate) settings: Settings,
    mode: AtomicU8,
    pub(crate) closing: AtomicBool,
    /// Lost devices whose loss is not durable on the remaining devices yet.
    pub(crate) unrecorded: Mutex<Vec<u16>>,
    /// Number of devices that were lost since the start.
    pub(crate) losses: AtomicU64,
    /// True if the cache devices have room for clean blocks.
    pub(crate) roomy: AtomicBool,
    /// True if all dirty data is on two devices, and new writes will be.
    pub(crate) mirrored: AtomicBool,
    /// The value of `mirrored` that was reported last; `None` before the log opens its first segment. The lock is held
    /// while the value is determined.
    pub(crate) mirror: Mutex<Option<bool>>,
    /// Wakes tasks when segments become free or dirty data becomes clean.
    pub(crate) space: Gate,
    /// Number of background tasks that still run.
    pub(crate) running: Mutex<usize>,
    pub(crate) stopped: Gate,
}

/// Parts from which an engine is built.
pub(crate) struct Parts {
    pub(crate) env: Env,
    pub(crate) pool: crate::pool::Pool,
    pub(crate) segments: Segments,
    pub(crate) objects: Objects,
    pub(crate) notes: UserRecords,
    pub(crate) next_seq: Seq,
    pub(crate) devices: Vec<Option<Arc<Watched>>>,
    pub(crate) ticks: Arc<Ticks>,
    pub(crate) settings: Settings,
}

impl Core {
    /// Returns the state of an engine with no task started. Its log begins with frame `next_seq`.
    pub(crate) fn assemble(parts: Parts) -> Arc<Self> {
        let Parts { env, pool, segments, objects, notes, next_seq, devices, ticks, settings } = parts;
        let segment_size = u64::from(pool.segment_size);
        let slots = (segment_size / crate::buffer::BLOCK as u64) as usize;
        let pages = (settings.ram / crate::buffer::BLOCK as u64) as usize;
        let volumes = objects.volumes.clone();
        Arc::new_cyclic(|me| Core {
            me: me.clone(),
            pool_id: pool.uuid,
            segment_size,
            log: Log::new(pool.uuid, pool.epoch, slots, next_seq),
            devices: RwLock::new(devices),
            ticks,
            members: Members::new(pool),
            segments,
            objects,
            shares: Shares::default(),
            notes,
            ram: Ram::new(pages),
            ghosts: Ghosts::new(pages * 2),
            credit: Credit::new(slots),
            clean: Clean::default(),
            destager: Destager::new(volumes),
            lane: OnceLock::new(),
            service: Service::default(),
            scrubber: Scrubber::default(),
            warmer: CleanLoader::default(),
            totals: Totals::default(),
            sampler: OnceLock::new(),
            mode: AtomicU8::new(settings.mode as u8),
            settings,
            closing: AtomicBool::new(false),
            mirrored: AtomicBool::new(false),
            mirror: Mutex::new(None),
            unrecorded: Mutex::default(),
            losses: AtomicU64::new(0),
            roomy: AtomicBool::new(false),
            space: Gate::default(),
            running: Mutex::new(0),
            stopped: Gate::default(),
            env,
        })
    }

    /// Starts a background task that the end of the engine waits for.
    pub(crate) fn start<F>(self: &Arc<Self>, name: &'static str, task: impl FnOnce(Arc<Core>) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        *self.running.lock() += 1;
        let (core, task) = (self.clone(), task(self.clone()));
        self.env.spawn.spawn(
            name,
            Box::pin(async move {
                task.await;
                *core.running.lock() -= 1;
                core.stopped.wake();
            }),
        );
    }

    pub(crate) fn closing(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }

    /// Returns the object of `key` if it is in the index. While clean segments are still being loaded, any object may
    /// have copies, so every `key` gets an object.
    pub(crate) fn known(&self, key: &Key) -> Option<Arc<CachedObject>> {
        if self.segments.is_warming() {
            return Some(self.objects.get(key, &self.segments));
        }
        self.objects.find(key)
    }

    /// Returns the object of `key`. `size` is the size in the backing store; the engine believes it unless it knows a
    /// newer size.
    pub(crate) fn object(&self, key: &Key, size: u64) -> Arc<CachedObject> {
        let object = self.objects.get(key, &self.segments);
        let mut state = object.lock();
        if !state.sized {
            state.sized = true;
            state.size = size;
        }
        drop(state);
        object
    }

    /// Returns the configured mode.
    pub(crate) fn mode(&self) -> Mode {
        Mode::ALL[usize::from(self.mode.load(Ordering::Relaxed))]
    }

    /// Sets the mode. Data that was accepted earlier is destaged in any mode.
    pub(crate) fn set_mode(&self, mode: Mode) {
        self.mode.store(mode as u8, Ordering::Relaxed);
    }

    /// Returns the mode in force. Write-back needs two devices, and two copies of all dirty data.
    pub(crate) fn effective_mode(&self) -> Mode {
        match self.mode() {
            Mode::WriteBack if !self.is_mirrored() => Mode::WriteThrough,
            mode => mode,
        }
    }

    /// Returns the mode in force for an object: that of the pool or of the object's policy, whichever uses the cache
    /// less.
    pub(crate) fn mode_of(&self, object: &CachedObject) -> Mode {
        self.effective_mode().max(object.policy().mode)
    }

    /// Returns true if all dirty data is on two devices, and new writes will be.
    pub(crate) fn is_mirrored(&self) -> bool {
        self.mirrored.load(Ordering::Acquire)
    }

    /// Returns true if dirty data is on one device only, or new writes would be. Before the log opens its first
    /// segment, returns true only if no segment is free: dirty data that recovery found is no more urgent than other
    /// data.
    pub(crate) fn lacks_mirror(&self) -> bool {
        self.mirror.lock().map_or_else(|| self.log.is_full(), |mirrored| !mirrored)
    }

    /// Returns the number of cache devices in use.
    pub(crate) fn active(&self) -> usize {
        self.devices.read().iter().flatten().count()
    }

    /// Returns the number of cache devices in use, without a device that is being removed.
    pub(crate) fn staying(&self) -> usize {
        self.segments.staying()
    }

    pub(crate) fn device(&self, index: u16) -> Option<Arc<Watched>> {
        self.devices.read().get(usize::from(index)).cloned().flatten()
    }

    pub(crate) fn event(&self, event: Event) {
        (self.env.events)(event);
    }

    /// Calls all completions in `done`, as one batch.
    pub(crate) fn deliver(&self, done: Vec<Completion>, result: Result<()>) {
        let mut done = Some(done).filter(|done| !done.is_empty());
        if done.is_some() {
            (self.env.deliver)(&mut || done.take().into_iter().flatten().for_each(|done| done(result)));
        }
    }

    /// Waits until everything appended up to frame `seq` is durable on every leg.
    pub(crate) async fn commit(&self, seq: Seq) -> Result<()> {
        self.log.committed(seq).await
    }

    /// Calls `done` when [`Engine::commit`](crate::Engine::commit) would return. The call comes at once, or later
    /// from another thread.
    pub(crate) fn when_durable(&self, seq: Seq, done: Completion) {
        let takes_all = planted_bugs::active("a log that is lost takes commits");
        let done: Completion = if takes_all { Box::new(move |_| done(Ok(()))) } else { done };
        self.log.when_durable(seq, done);
    }

    /// Returns the frame to commit for everything accepted up to this call.
    pub(crate) fn last(&self) -> Seq {
        self.log.last_appended()
    }

    /// Returns the offset of a slot on its device, in bytes.
    pub(crate) fn offset(&self, place: Place, slot: u16) -> u64 {
        SEGMENTS_START + u64::from(place.segment) * self.segment_size + u64::from(slot) * BLOCK as u64
    }

    /// Returns the number of slots of a segment.
    pub(crate) fn slots(&self) -> usize {
        self.segment_size as usize / BLOCK
    }
}
