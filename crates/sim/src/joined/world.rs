//! Joined worlds. One seed is one world: a server is started, used, crashed and started again, and its state is
//! checked.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use forebay_common::lock::Mutex;
use forebay_engine::{Mode, UserRecordId};
use forebay_oplog::{Identity, Operation};

use super::check::Crashed;
use super::client::{Client, Files, Habits, Shared};
use super::harness::Harness;
use super::store::Store;
use crate::disk::Disk;
use crate::epochs::Epochs;
use crate::executor::{Executor, Stop};
use crate::hits::{Fault, Hits};
use crate::model::Model;
use crate::namespace::exhaustive::small_tree;
use crate::namespace::volume::Volume;
use crate::rng::{Rng, mix};
use crate::world::{Crash, Outcome};

/// A time that no operation exceeds.
pub(super) const LIMIT: Duration = Duration::from_secs(6 * 3600);

/// The time after which an administrator restarts a server whose journal failed.
const UNATTENDED: Duration = Duration::from_secs(20);

/// A world before it begins.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    devices: usize,
    pub(super) mode: Mode,
    pub(super) ram: u64,
    pub(super) destage_after: Duration,
    pub(super) checkpoint_every: Duration,
    sessions: u32,
    /// True if one device may be lost.
    pub(super) loses: bool,
    /// Chances in 10,000 that the journal does not answer for a while in a session, and then that it fails.
    pub(super) hangs: u32,
    pub(super) fails: u32,
    habits: Habits,
}

/// A world in progress.
pub(super) struct World {
    pub(super) shared: Arc<Shared>,
    pub(super) plan: Plan,
    pub(super) rng: Rng,
    pub(super) disks: Vec<Disk>,
    pub(super) formatted: bool,
    /// The file system at the last start, the number of transactions at that time, and the last number of a change.
    pub(super) initial: Volume,
    pub(super) begin: usize,
    pub(super) before: u64,
    /// The knowledge about the session that has ended.
    pub(super) crashed: Option<Crashed>,
    /// The operations that the last recovery found, by their user records, and the user record up to which they may be
    /// missing.
    pub(super) kept: Vec<(UserRecordId, Operation)>,
    pub(super) released: UserRecordId,
    pub(super) dropped: BTreeSet<u64>,
    /// The objects that the last recovery recreated.
    pub(super) made_again: Vec<Identity>,
    /// The objects that were removed in earlier sessions.
    pub(super) dead: Vec<Identity>,
}

/// Runs the world of `seed` to its end.
pub fn run(seed: u64, keep_log: bool) -> Outcome {
    let mut world = World::new(seed, keep_log);
    world.shared.tell(|| format!("{:?}", world.plan));
    let failure = world.live().err();
    let World { shared, .. } = world;
    shared.executor.reset();
    Outcome {
        failure: shared.failure.lock().take().or(failure),
        digest: shared.executor.digest(),
        steps: shared.executor.steps(),
        hits: shared.hits.clone(),
        log: shared.log.as_ref().map(|log| std::mem::take(&mut *log.lock())).unwrap_or_default(),
    }
}

impl Plan {
    /// Draws a plan: devices, mode, intervals, faults, and habits of the clients. The choices favour small caches and
    /// short intervals.
    fn new(rng: &mut Rng) -> Self {
        let ms = Duration::from_millis(1);
        let mode = if rng.chance(8500) { Mode::WriteBack } else { Mode::WriteThrough };
        let longest = rng.pick(&[4096, 16 << 10, 64 << 10, 64 << 10, 1 << 20]);
        let clients = rng.pick(&[1, 2, 3, 5]);
        // Drawn apart, so that worlds without holes do not depend on these draws.
        let mut apart = Rng::new(mix(rng.clone().draw()));
        let holes = if apart.chance(2500) { apart.pick(&[1000, 3000]) } else { 0 };
        Plan {
            devices: rng.pick(&[2, 2, 2, 3]),
            mode,
            ram: rng.pick(&[16 << 10, 256 << 10, 4 << 20]),
            destage_after: rng.pick(&[0, 20, 1000]) * ms,
            checkpoint_every: rng.pick(&[10, 200, 5000]) * ms,
            sessions: rng.within(1, 4) as u32,
            loses: rng.chance(2500),
            hangs: rng.pick(&[0, 0, 5000]),
            fails: rng.pick(&[0, 0, 5000]),
            habits: Habits {
                clients,
                operations: rng.within(5, 120) as u32 / clients + 1,
                names: rng.pick(&[2000, 4000, 7000]),
                links: rng.pick(&[0, 0, 8000]),
                again: rng.pick(&[0, 500, 3000]),
                brief: rng.pick(&[0, 2000, 8000]),
                stable: rng.pick(&[2000, 6000, 10_000]),
                longest,
                extent: rng.pick(&[16 << 10, 128 << 10]),
                holes,
            },
        }
    }

    /// Returns true if all data certainly goes through the log in the order of its numbers, and failed writes are not
    /// seen.
    fn logged(&self) -> bool {
        self.mode == Mode::WriteBack
            && !self.loses
            && self.fails == 0
            && self.habits.longest <= 64 << 10
            && self.habits.holes == 0
    }
}

impl World {
    /// Makes the world of this seed, with a small tree and unformatted devices. Keeps the events for a person if
    /// `keep_log`.
    pub(super) fn new(seed: u64, keep_log: bool) -> Self {
        let mut rng = Rng::new(seed);
        let plan = Plan::new(&mut rng);
        let hits = Arc::new(Hits::default());
        let executor = Executor::new(rng.fork());
        let disk = |index| Disk::new(&executor, &format!("disk{index}"), 64 << 20, rng.fork(), &hits);
        let disks = (0..plan.devices).map(disk).collect();
        let store = Store::new(&executor, small_tree(), rng.fork());
        let mut model = Model::default();
        (model.logged, model.lossy) = (plan.logged(), plan.fails > 0);
        let initial = store.lock().volume.clone();
        let shared = Shared {
            epochs: Epochs::new(&executor),
            executor,
            store,
            hits,
            model: Mutex::new(model),
            files: Mutex::new(Files::default()),
            calls: Mutex::default(),
            failure: Mutex::new(None),
            log: keep_log.then(Mutex::default),
        };
        World {
            shared: Arc::new(shared),
            plan,
            rng,
            disks,
            formatted: false,
            initial,
            begin: 0,
            before: 0,
            crashed: None,
            kept: Vec::new(),
            released: 0,
            dropped: BTreeSet::new(),
            made_again: Vec::new(),
            dead: Vec::new(),
        }
    }

    /// Carries out all sessions of the plan. The last session ends with a flush and with checks of all contents.
    /// Fails with the first failure.
    fn live(&mut self) -> Result<(), String> {
        for _ in 0..self.plan.sessions {
            self.session()?;
            self.between();
        }
        self.last_session()
    }

    pub(super) fn failure(&self) -> Result<(), String> {
        self.shared.failure.lock().clone().map_or(Ok(()), Err)
    }

    /// Fails if a stop is not the planned crash.
    pub(super) fn stopped(&self, stop: Stop) -> Result<(), String> {
        self.failure()?;
        match stop {
            Stop::Crashed => Ok(()),
            stop => Err(format!("nothing goes on: {stop:?};{}", self.shared.executor.busiest())),
        }
    }

    /// Starts the server, runs clients, and stops or crashes.
    fn session(&mut self) -> Result<(), String> {
        let tries = if self.rng.chance(4000) { self.rng.within(1, 3) } else { 0 };
        let harness = self.start(tries)?;
        if let Err(stop) = self.look(&harness) {
            return Err(format!("a look at everything does not end: {stop:?}"));
        }
        self.failure()?;
        let stops = self.rng.chance(1500);
        if !stops {
            let most = self.rng.pick(&[30, 300, 3000]);
            let steps = self.rng.within(1, most);
            self.shared.executor.crash_in(Some(steps));
        }
        match self.work(&harness, stops) {
            Ok(()) if stops => {
                let rest = self.rng.time(Duration::ZERO, Duration::from_millis(20));
                self.trouble(rest, false);
                self.stop(&harness)?;
            }
            Ok(()) => {}
            Err(stop) => self.stopped(stop)?,
        }
        self.shared.executor.crash_in(None);
        self.crashed = Some(Crashed::new(self, harness.ended()));
        drop(harness);
        let how = self.rng.pick(&[Crash::Kill, Crash::PowerCut, Crash::PowerCut]);
        self.crash(how);
        self.failure()
    }

    /// Stops cleanly: nothing accepted may be lost.
    fn stop(&mut self, harness: &Arc<Harness>) -> Result<(), String> {
        let theirs = harness.clone();
        let closed = self.shared.executor.block_on(LIMIT, async move { theirs.stop().await });
        let closed = closed.map_err(|stop| format!("a clean stop does not end: {stop:?}"))?;
        let synced = closed.map_err(|error| format!("a clean stop failed: {error}"))?;
        if !synced {
            return Ok(());
        }
        let mut model = self.shared.model.lock();
        model.open(u64::MAX).into_iter().for_each(|id| model.durable(id));
        self.shared.hits.hit(Fault::JoinedStop);
        Ok(())
    }

    /// Runs the clients.
    fn work(&mut self, harness: &Arc<Harness>, stops: bool) -> Result<(), Stop> {
        let executor = self.shared.executor.clone();
        let left = Arc::new(AtomicU32::new(self.plan.habits.clients));
        let clients = self.plan.habits.clients;
        let waits = self.shared.calls.lock().unanswered();
        for index in 0..clients {
            let mut client = self.client(harness);
            client.waits = waits.iter().copied().skip(index as usize).step_by(clients as usize).collect();
            let left = left.clone();
            let work = async move {
                client.run().await;
                left.fetch_sub(1, Ordering::Relaxed);
            };
            executor.start("client", Box::pin(work));
        }
        let rest = self.rng.time(Duration::ZERO, Duration::from_millis(50));
        let crashes = !stops && self.rng.chance(5000);
        self.trouble(rest, crashes);
        if self.plan.loses && self.rng.chance(4000) && self.disks.iter().all(|disk| !disk.is_gone()) {
            let (victim, clock) = (self.disks[0].clone(), executor.clone());
            let (rest, hits) =
                (self.rng.time(Duration::ZERO, Duration::from_millis(50)), self.shared.hits.clone());
            let vanish = async move {
                forebay_engine::io::Clock::sleep(&clock, rest).await;
                victim.vanish();
                hits.hit(Fault::JoinedDeviceLost);
            };
            executor.start("vanish", Box::pin(vanish));
        }
        let shared = self.shared.clone();
        // After a failure of the journal, all clients may have to wait for the restart.
        let stuck = || shared.store.has_failed_for(UNATTENDED);
        let through = || left.load(Ordering::Relaxed) == 0 || shared.failure.lock().is_some();
        match executor.run(LIMIT, || through() || stuck()) {
            Stop::Done if !through() => Err(Stop::Crashed),
            Stop::Done => Ok(()),
            stop => Err(stop),
        }
    }

    /// Makes a client of the session, with choices of its own.
    pub(super) fn client(&mut self, harness: &Arc<Harness>) -> Client {
        let (shared, habits) = (self.shared.clone(), self.plan.habits.clone());
        Client { shared, harness: harness.clone(), habits, rng: self.rng.fork(), waits: Vec::new() }
    }

    /// Starts the tasks of a server in service.
    pub(super) fn serve(&mut self, harness: &Arc<Harness>) {
        let (theirs, every) = (harness.clone(), self.plan.checkpoint_every);
        self.shared
            .executor
            .start("checkpoint", Box::pin(async move { theirs.make_checkpoints(every).await }));
        let theirs = harness.clone();
        self.shared.executor.start("answers", Box::pin(async move { theirs.answer_for_notes().await }));
    }

    /// Crashes: all tasks end, and changes that were not durable may be lost.
    pub(super) fn crash(&mut self, how: Crash) {
        // The contents of a file system with a failed journal are known only after a new mount.
        let how = if self.shared.store.has_failed() { Crash::PowerCut } else { how };
        self.shared.tell(|| format!("{how:?}"));
        self.shared.store.halt();
        self.shared.executor.reset();
        let power = how == Crash::PowerCut;
        if power {
            let (kept, lost) = self.shared.store.power_cut();
            if let Some(crashed) = &mut self.crashed {
                crashed.cut(kept);
            }
            self.shared.tell(|| format!("{kept} transactions are left"));
            if lost {
                self.shared.hits.hit(Fault::JoinedUnsynced);
            }
        } else {
            self.shared.store.kill();
        }
        for disk in &self.disks {
            match power {
                true => _ = disk.power_cut(),
                false => disk.kill(),
            }
        }
        self.shared.hits.hit(if power { Fault::JoinedPowerCut } else { Fault::JoinedKill });
        self.shared.model.lock().crash(power);
    }

    /// Reads all contents, and checks the state that a crash left.
    pub(super) fn look(&mut self, harness: &Arc<Harness>) -> Result<(), Stop> {
        let (mut client, shared) = (self.client(harness), self.shared.clone());
        self.shared.executor.block_on(LIMIT, async move {
            for (file, number) in shared.numbered() {
                let Some(object) = client.harness.object(file) else { continue };
                let size = object.size();
                shared.tell(|| {
                    let (unsettled, dirty) = (object.undestaged_attributes(), object.dirty_blocks());
                    format!(
                        "{file:?} ({number}) has {size} bytes, {dirty} blocks dirty, unsettled {unsettled:?}"
                    )
                });
                if let Err(error) = shared.model.lock().observe_size(number, size) {
                    shared.fail(format!("{file:?}: {error}"));
                }
                for offset in (0..size + 1).step_by(1 << 20) {
                    client.read(file, number, offset, 1 << 20).await;
                }
            }
            let checked = shared.model.lock().check_prefix();
            if let (Err(error), true) = (checked, shared.model.lock().logged) {
                shared.fail(error);
            }
        })
    }

    /// Runs a session without faults. After a flush and a stop, the file system alone must have everything.
    fn last_session(&mut self) -> Result<(), String> {
        let harness = self.start(0)?;
        let ends = |what| move |stop: Stop| format!("{what} does not end: {stop:?}");
        self.look(&harness).map_err(ends("a look at everything"))?;
        let (client, waits) = (self.client(&harness), self.shared.calls.lock().unanswered());
        let again = async move {
            for xid in waits {
                client.ask_again(xid).await;
            }
        };
        self.shared.executor.block_on(LIMIT, again).map_err(ends("an answer"))?;
        let theirs = harness.clone();
        let flush = async move { theirs.engine.flush().await };
        let flushed = self.shared.executor.block_on(LIMIT, flush).map_err(ends("a flush"))?;
        flushed.map_err(|error| format!("a flush failed: {error}"))?;
        let dirty = harness.engine.scan().dirty_blocks;
        if dirty > 0 {
            return Err(format!("{dirty} blocks are dirty after a flush"));
        }
        self.stop(&harness)?;
        self.crashed = Some(Crashed::new(self, harness.ended()));
        drop(harness);
        self.crash(Crash::PowerCut);
        self.failure()?;
        self.check_names_after_stop()?;
        let state = self.shared.store.lock();
        for (file, number) in self.shared.numbered() {
            self.shared.model.lock().check_backing(number, state.content(file).as_ref(), false)?;
        }
        Ok(())
    }
}
