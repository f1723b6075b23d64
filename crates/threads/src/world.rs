//! The simulated machine: two devices, a backing store, a clock, and the engine on them.

use std::future::{Future, pending, poll_fn};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use forebay_engine::io::{Clock, Device, Io, Key, Spawn};
use forebay_engine::pool::Pool;
use forebay_engine::{Engine, Env, Event, Settings};
use shuttle::current;
use shuttle::rand::Rng as _;

use crate::client::Client;
use crate::disk::{self, Disk, LARGER};
use crate::history::History;
use crate::promise::promise;
use crate::scheduler::{enter_client, next_client, run_others};
use crate::store::{Files, Store};

/// A sleep up to this long ends soon; a longer sleep never ends.
const SHORT: Duration = Duration::from_secs(1);

/// The state that remains after a power cut, and the knowledge of the clients.
#[derive(Clone, Default)]
pub struct Snapshot {
    /// The devices, without a lost one.
    pub disks: Vec<(String, disk::Image)>,
    /// The backing store's files.
    pub files: Files,
    /// The operations of clients.
    pub history: History,
}

/// A machine that runs until the power is cut.
#[derive(Clone)]
pub struct World {
    /// The cache devices.
    pub disks: Vec<Disk>,
    /// The backing store.
    pub store: Store,
    /// The changes that clients made to file 1.
    pub history: Arc<History>,
    quick: Arc<AtomicBool>,
    degraded: Arc<AtomicBool>,
    machine: Machine,
    settings: Settings,
}

/// The clock, and the threads of the engine's tasks.
#[derive(Clone, Default)]
struct Machine {
    nanos: Arc<AtomicU64>,
    /// The power is cut: no task goes on.
    off: Arc<AtomicBool>,
    late: Arc<Mutex<Late>>,
}

/// Tasks of the engine that do not begin yet.
#[derive(Default)]
struct Late {
    names: Vec<&'static str>,
    waiting: Vec<Waker>,
}

impl Machine {
    fn late(&self) -> MutexGuard<'_, Late> {
        self.late.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns true if the tasks of this name do not begin yet. The task that `context` belongs to is then woken when
    /// they do.
    fn is_late(&self, name: &'static str, context: &Context<'_>) -> bool {
        let mut late = self.late();
        let is_late = late.names.contains(&name);
        if is_late {
            late.waiting.push(context.waker().clone());
        }
        is_late
    }
}

impl Clock for Machine {
    fn now(&self) -> Duration {
        Duration::from_nanos(self.nanos.load(Relaxed)) + SHORT
    }

    fn sleep(&self, time: Duration) -> Io<()> {
        let nanos = self.nanos.clone();
        Box::pin(async move {
            if time > SHORT {
                pending::<()>().await;
            }
            shuttle::future::yield_now().await;
            nanos.fetch_add(time.as_nanos() as u64, Relaxed);
        })
    }
}

impl Spawn for Machine {
    fn spawn(&self, name: &'static str, mut task: Io<()>) {
        let machine = self.clone();
        let until_off = async move {
            // The message of a deadlock names the tasks.
            current::set_name_for_task(current::me(), name);
            poll_fn(move |context| match machine.off.load(Relaxed) {
                true => Poll::Ready(()),
                false if machine.is_late(name, context) => Poll::Pending,
                false => task.as_mut().poll(context),
            })
            .await;
        };
        // The handle is dropped: nobody waits for the task.
        drop(shuttle::future::spawn(until_off));
    }

    /// Takes the task in about half of the calls, since only some callers can run it themselves.
    fn here(&self, task: Io<()>) -> Option<Io<()>> {
        if shuttle::rand::thread_rng().gen_bool(0.5) {
            return Some(task);
        }
        self.spawn("caller", task);
        None
    }
}

/// Returns the key of a file.
pub fn key(file: u8) -> Key {
    Key::new(&[file]).unwrap_or_else(|| unreachable!("one byte is a key"))
}

impl World {
    /// Makes a machine with the state that a snapshot holds.
    pub fn new(snapshot: Snapshot, settings: Settings) -> Self {
        let quick = Arc::new(AtomicBool::new(true));
        let Snapshot { disks, files, history } = snapshot;
        World {
            disks: disks.into_iter().map(|(name, image)| Disk::new(&name, image, &quick)).collect(),
            store: Store::new(files, &quick),
            history: Arc::new(history),
            quick,
            degraded: Arc::default(),
            machine: Machine::default(),
            settings,
        }
    }

    /// Makes a machine with two blank devices and an empty store.
    pub fn blank(settings: Settings) -> Self {
        let disks = ["small", LARGER].map(|name| (name.to_owned(), disk::Image::new())).to_vec();
        World::new(Snapshot { disks, ..Snapshot::default() }, settings)
    }

    /// Opens the engine, and formats blank devices. The first reads of the devices are not interrupted.
    ///
    /// # Errors
    /// Fails if the pool or the engine does not open.
    pub async fn start(&self) -> Result<Client, String> {
        let devices: Vec<_> =
            self.disks.iter().map(|disk| Arc::new(disk.clone()) as Arc<dyn Device>).collect();
        let mut uuid = 0;
        let mut next = || {
            uuid += 1;
            uuid
        };
        let pool = match self.disks.iter().all(|disk| disk.image().is_empty()) {
            true => Pool::format(devices, &mut next, true).await,
            false => Pool::open(devices).await,
        };
        let machine = Arc::new(self.machine.clone());
        let degraded = self.degraded.clone();
        let events = move |event| {
            if let Event::Degraded { .. } = event {
                degraded.store(true, Relaxed);
            }
        };
        let env = Env {
            clock: machine.clone(),
            spawn: machine,
            backing: Arc::new(self.store.clone()),
            witness: None,
            deliver: Arc::new(|batch| batch()),
            events: Arc::new(events),
        };
        let pool = pool.map_err(|error| error.to_string())?;
        let opening = Engine::begin(pool, env, self.settings).await.map_err(|error| error.to_string())?;
        self.quick.store(false, Relaxed);
        let (engine, _) = opening.finish().await.map_err(|error| error.to_string())?;
        let size = self.store.files().get(&key(1)).map_or(0, |file| file.now.len() as u64);
        Ok(Client::new(engine, size, &self.history))
    }

    /// Returns true if the engine has reported that some data is on one device.
    pub fn was_degraded(&self) -> bool {
        self.degraded.load(Relaxed)
    }

    /// Delays the engine's tasks of these names until [`World::begin`].
    pub fn delay(&self, names: &[&'static str]) {
        self.machine.late().names.extend(names);
    }

    /// Lets tasks of this name begin.
    pub fn begin(&self, name: &'static str) {
        let mut late = self.machine.late();
        late.names.retain(|other| *other != name);
        let waiting = std::mem::take(&mut late.waiting);
        drop(late);
        waiting.into_iter().for_each(Waker::wake);
    }

    /// Lets operations end before their call returns, from now on.
    pub fn hurry(&self) {
        self.quick.store(true, Relaxed);
    }

    /// Cuts the power. A file keeps all or nothing of its changes that were not synced.
    pub fn cut(&self) -> Snapshot {
        self.machine.off.store(true, Relaxed);
        let mut files = self.store.files();
        for file in files.values_mut() {
            if shuttle::rand::thread_rng().gen_bool(0.5) {
                file.now.clone_from(&file.synced);
            } else {
                file.synced.clone_from(&file.now);
            }
        }
        let disks = self.disks.iter().map(|disk| (disk.name().to_owned(), disk.image())).collect();
        let left = Snapshot { disks, files, history: self.history.after_power_cut() };
        run_others();
        left
    }

    /// Runs the next client's `task` on a thread of its own. The caller need not wait for the result.
    pub fn run<T: Send + 'static>(&self, task: impl Future<Output = T> + Send + 'static) -> Io<T> {
        let client = next_client();
        self.spawn(async move {
            enter_client(client);
            task.await
        })
    }

    /// Runs `task`, which is no client, on a thread of its own. The caller need not wait for the result.
    pub fn spawn<T: Send + 'static>(&self, task: impl Future<Output = T> + Send + 'static) -> Io<T> {
        let (promise, kept) = promise();
        self.machine.spawn("client", Box::pin(async move { promise.keep(task.await) }));
        Box::pin(kept)
    }
}
