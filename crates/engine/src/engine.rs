//! The engine as its users see it, and the state that its parts share.

use forebay_common::lock::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use forebay_common::lock::RwLock;

use crate::counters::Totals;
use crate::destage::Destager;
use crate::event::Event;
use crate::index::object::Object;
use crate::index::objects::Objects;
use crate::io::{Backing, Clock, Key, Spawn, Witness};
use crate::log::Log;
use crate::log::user_records::UserRecords;
use crate::maintain::deadline::{Ticks, Watched};
use crate::maintain::scrub::Scrubber;
use crate::plant;
use crate::pool::membership::Members;
use crate::recover::load_clean::CleanLoader;
use crate::request::service_time::Service;
use crate::segments::Segments;
use crate::tiers::clean::Clean;
use crate::tiers::ghost::Ghosts;
use crate::tiers::ram::Ram;
use crate::wait::Gate;
use crate::{Completion, Result, Seq};
use forebay_common::lock::Mutex;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// The rule for acknowledging a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The log has the write on two devices before the reply. The backing store gets it later.
    WriteBack,
    /// The backing store has the write before the reply. The cache keeps it as well.
    WriteThrough,
    /// The backing store has the write before the reply. The cache does not keep it.
    WriteAround,
    /// Neither writes nor reads are cached.
    PassThrough,
}

impl Mode {
    const ALL: [Mode; 4] = [Mode::WriteBack, Mode::WriteThrough, Mode::WriteAround, Mode::PassThrough];
}

/// Runs a batch of completions, in which the replies sent may be gathered.
pub type Deliver = Arc<dyn Fn(&mut dyn FnMut()) + Send + Sync>;

/// The environment of the engine: clock, tasks, backing store and callbacks.
#[derive(Clone)]
pub struct Env {
    /// The engine's clock.
    pub clock: Arc<dyn Clock>,
    /// Runs the engine's background tasks.
    pub spawn: Arc<dyn Spawn>,
    /// The backing store.
    pub backing: Arc<dyn Backing>,
    /// Knows which epoch of the pool is in use. Without a witness, a device that dropped out earlier and returns
    /// alone is believed.
    pub witness: Option<Arc<dyn Witness>>,
    /// Runs a batch of completions. The sender of replies may gather the replies of a batch.
    pub deliver: Deliver,
    /// Receives the events for the administrator.
    pub events: Arc<dyn Fn(Event) + Send + Sync>,
}

/// The configurable settings of an engine.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// The mode, as long as the pool has two devices.
    pub mode: Mode,
    /// Bytes of memory for cached blocks.
    pub ram: u64,
    /// The time that dirty data waits to be written together with more data, if the log has room.
    pub destage_after: Duration,
    /// The interval between two scrubs. The time of the scrub itself comes on top.
    pub scrub_every: Duration,
    /// The time after which a device without an answer is lost, while another device answers.
    pub device_deadline: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            mode: Mode::WriteBack,
            ram: 256 << 20,
            destage_after: Duration::from_secs(5),
            scrub_every: DAY,
            device_deadline: Duration::from_secs(10),
        }
    }
}

/// A cache in front of a backing store. All methods may be called from any thread.
pub struct Engine {
    /// A reference to the engine itself, for the tasks that it starts.
    pub(crate) me: Weak<Engine>,
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
    pub(crate) ram: Ram,
    pub(crate) ghosts: Ghosts,
    pub(crate) clean: Clean,
    pub(crate) destager: Destager,
    pub(crate) service: Service,
    pub(crate) scrubber: Scrubber,
    pub(crate) warmer: CleanLoader,
    pub(crate) totals: Totals,
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
    /// The value of `mirrored` that was reported last. The lock is held while the value is determined.
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

impl Engine {
    pub(crate) fn assemble(parts: Parts) -> Arc<Self> {
        let Parts { env, pool, segments, objects, notes, next_seq, devices, ticks, settings } = parts;
        let segment_size = u64::from(pool.segment_size);
        let slots = (segment_size / crate::buffer::BLOCK as u64) as usize;
        let pages = (settings.ram / crate::buffer::BLOCK as u64) as usize;
        let volumes = objects.volumes.clone();
        Arc::new_cyclic(|me| Engine {
            me: me.clone(),
            pool_id: pool.uuid,
            segment_size,
            log: Log::new(pool.uuid, pool.epoch, slots, next_seq),
            devices: RwLock::new(devices),
            ticks,
            members: Members::new(pool),
            segments,
            objects,
            notes,
            ram: Ram::new(pages),
            ghosts: Ghosts::new(pages * 2),
            clean: Clean::default(),
            destager: Destager::new(volumes),
            service: Service::default(),
            scrubber: Scrubber::default(),
            warmer: CleanLoader::default(),
            totals: Totals::default(),
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

    /// Starts a background task that [`Engine::close`] waits for.
    pub(crate) fn start<F>(self: &Arc<Self>, name: &'static str, task: impl FnOnce(Arc<Engine>) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        *self.running.lock() += 1;
        let (engine, task) = (self.clone(), task(self.clone()));
        self.env.spawn.spawn(
            name,
            Box::pin(async move {
                task.await;
                *engine.running.lock() -= 1;
                engine.stopped.wake();
            }),
        );
    }

    pub(crate) fn start_tasks(self: &Arc<Self>) {
        let engine = Arc::downgrade(self);
        self.log.set_lead(move || engine.upgrade().is_some_and(|engine| engine.lead()));
        self.start("forebay-log", Engine::run_log);
        self.start_lanes();
        self.start("forebay-clean", Engine::run_clean);
        self.start("forebay-compact", Engine::run_compact);
        self.start("forebay-evict", Engine::run_evict);
        self.start("forebay-scrub", Engine::run_scrub);
        self.start("forebay-rewrite", Engine::run_rewrite);
        self.start("forebay-devices", Engine::run_device_watch);
    }

    pub(crate) fn closing(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }

    /// Returns the object of `key` if it is in the index. While clean segments are still being loaded, any object may
    /// have copies, so every `key` gets an object.
    pub fn known(&self, key: &Key) -> Option<Arc<Object>> {
        if self.segments.is_warming() {
            return Some(self.objects.get(key, &self.segments));
        }
        self.objects.find(key)
    }

    /// Returns the object of `key`. `size` is the size in the backing store; the engine believes it unless it knows a
    /// newer size.
    pub fn object(&self, key: &Key, size: u64) -> Arc<Object> {
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
    pub fn mode(&self) -> Mode {
        Mode::ALL[usize::from(self.mode.load(Ordering::Relaxed))]
    }

    /// Sets the mode. Data that was accepted earlier is destaged in any mode.
    pub fn set_mode(&self, mode: Mode) {
        self.mode.store(mode as u8, Ordering::Relaxed);
    }

    /// Returns the mode in force. Write-back needs two devices, and two copies of all dirty data.
    pub fn effective_mode(&self) -> Mode {
        match self.mode() {
            Mode::WriteBack if !self.is_mirrored() => Mode::WriteThrough,
            mode => mode,
        }
    }

    /// Returns true if all dirty data is on two devices, and new writes will be.
    pub fn is_mirrored(&self) -> bool {
        self.mirrored.load(Ordering::Acquire)
    }

    /// Returns the number of cache devices in use.
    pub fn active(&self) -> usize {
        self.devices.read().iter().flatten().count()
    }

    /// Returns the number of cache devices in use, without a device that is being removed.
    pub fn staying(&self) -> usize {
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
    pub async fn commit(&self, seq: Seq) -> Result<()> {
        self.log.committed(seq).await
    }

    /// Calls `done` when [`Engine::commit`] would return. The call comes at once, or later from another thread.
    pub fn when_durable(&self, seq: Seq, done: Completion) {
        let takes_all = plant::active("a log that is lost takes commits");
        let done: Completion = if takes_all { Box::new(move |_| done(Ok(()))) } else { done };
        self.log.when_durable(seq, done);
    }

    /// Returns the frame to commit for everything accepted up to this call.
    pub fn last(&self) -> Seq {
        self.log.last_appended()
    }

    /// Stops cleanly: makes everything accepted durable in the log. Dirty data stays on the cache devices. Returns the
    /// number of dirty bytes. Requests in flight and later requests fail with [`crate::Error::Closing`] if they need
    /// the log.
    pub async fn close(&self) -> Result<u64> {
        let mut committed = self.commit(self.last()).await;
        if self.segments.blocks().1 == 0 && self.notes.none_kept() && committed.is_ok() {
            committed = self.empty_log().await;
        }
        self.closing.store(true, Ordering::Release);
        self.destager.wake();
        self.clean.work.wake();
        self.log.changed.wake();
        self.notes.changed.wake();
        self.space.wake();
        self.log.changed.wake();
        self.scrubber.wake();
        self.wake_device_watch();
        // The clean segment being filled is sealed first, so that recovery finds its blocks.
        self.stopped.until(|| (*self.running.lock() <= 1).then_some(())).await;
        if committed.is_ok() {
            self.log_destaged().await;
        }
        // The seal and the records of destaged blocks count once a later frame is durable.
        let frame = self.log.kick();
        let over = || self.log.broken().is_some() || self.log.is_full();
        self.log.until(|| (self.log.durable() >= frame || over()).then_some(())).await;
        self.log.close();
        // The writer task may wait for space in a full log.
        self.space.wake();
        self.stopped.until(|| (*self.running.lock() == 0).then_some(())).await;
        committed?;
        self.members.rest(self.log.durable()).await;
        Ok(self.segments.blocks().1 * crate::buffer::BLOCK as u64)
    }
}
