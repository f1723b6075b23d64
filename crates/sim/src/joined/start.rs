//! The start of a server. The engine returns its user records, the file system is made equal to the log, the engine
//! goes on, and a checkpoint is logged. A crash may come anywhere in between.

use std::sync::Arc;

use forebay_engine::io::Device;
use forebay_engine::pool::Pool;
use forebay_engine::{Engine, Env, Opening, Settings, UserRecord};
use forebay_metalog::Recovery;
use forebay_oplog::{Identity, RenameIntent, reconcile};

use super::harness::Harness;
use super::store::key;
use super::world::{LIMIT, World};
use crate::disk::Disk;
use crate::executor::Stop;
use crate::hits::Fault;
use crate::namespace::request::LOG;
use crate::world::Crash;

/// The reason for which a server could not be started.
enum Refused {
    Stopped(Stop),
    Wrong(String),
}

impl From<Stop> for Refused {
    fn from(stop: Stop) -> Self {
        Refused::Stopped(stop)
    }
}

impl World {
    /// Starts a server after this number of crashes on the way, and checks the state that it finds.
    pub(super) fn start(&mut self, crashes: u64) -> Result<Arc<Harness>, String> {
        let mut left = crashes;
        loop {
            let most = self.rng.pick(&[10, 60, 300]);
            let steps = self.rng.within(1, most);
            self.shared.executor.crash_in((left > 0).then_some(steps));
            left = left.saturating_sub(1);
            match self.open() {
                Ok(harness) => {
                    self.shared.executor.crash_in(None);
                    return Ok(harness);
                }
                Err(Refused::Stopped(Stop::Crashed)) => {
                    self.shared.hits.hit(Fault::JoinedInRecovery);
                    let how = self.rng.pick(&[Crash::Kill, Crash::PowerCut]);
                    self.crash(how);
                }
                Err(Refused::Stopped(stop)) => return Err(format!("recovery does not end: {stop:?}")),
                Err(Refused::Wrong(why)) => return Err(why),
            }
        }
    }

    /// Carries out one start of the server, from the devices to an engine in service. Checks the recovered names.
    /// Fails at a planned crash, or with a failure of the world.
    fn open(&mut self) -> Result<Arc<Harness>, Refused> {
        // Data that the last server left in memory could be lost with the power later, after a client saw it.
        let synced = self.shared.executor.block_on(LIMIT, self.shared.store.sync_all())?;
        synced.map_err(|error| Refused::Wrong(format!("a sync failed: {error:?}")))?;
        let opening = self.begin_engine()?;
        let recovery = self.recover_names(opening.notes())?;
        let ((_, checkpoint), last) = (recovery.found().of(0), recovery.last());
        let opened = self.shared.executor.block_on(LIMIT, opening.finish())?;
        let (engine, _) =
            opened.map_err(|error| Refused::Wrong(format!("the engine does not start: {error}")))?;
        let (shared, rng) = (self.shared.clone(), self.rng.fork());
        let harness = Harness::new(&shared.executor, &shared.store, engine, &shared.hits, rng);
        let harness = Arc::new(harness);
        self.shared.store.serve(&harness);
        self.serve(&harness);
        let dirty =
            |made: &Identity| harness.engine.known(&key(*made)).is_some_and(|it| it.dirty_blocks() > 0);
        if std::mem::take(&mut self.made_again).iter().any(dirty) {
            self.shared.hits.hit(Fault::JoinedDirtyMadeAgain);
        }
        if let Err(refused) = self.conclude(&harness, recovery) {
            let ended = harness.ended();
            (self.released, self.dropped) = (ended.released, ended.dropped);
            return Err(refused);
        }
        self.check_names(checkpoint).map_err(Refused::Wrong)?;
        self.begin_session(last);
        Ok(harness)
    }

    /// Notes the present state, with which later changes are compared.
    fn begin_session(&mut self, last: u64) {
        let state = self.shared.store.lock();
        self.initial = state.volume.with(&state.volume.state);
        (self.begin, self.before) = (state.transactions(), last);
        drop(state);
        let operations = self.kept.iter().map(|(_, operation)| operation);
        self.shared.calls.lock().begin_session(last, operations);
        self.crashed = None;
    }

    /// Opens the pool, or formats it at the first start, and begins the engine's recovery. The file system is closed
    /// meanwhile, since a request to it would be a bug.
    fn begin_engine(&mut self) -> Result<Opening, Refused> {
        let wrong = |what: &'static str| move |error: String| Refused::Wrong(format!("{what}: {error}"));
        let disks: Vec<Disk> = self.disks.iter().filter(|disk| !disk.is_gone()).cloned().collect();
        let devices: Vec<Arc<dyn Device>> =
            disks.into_iter().map(|disk| Arc::new(disk) as Arc<dyn Device>).collect();
        let (mut random, formatted) = (self.rng.fork(), self.formatted);
        let pool = self.shared.executor.block_on(LIMIT, async move {
            let mut uuid = || u128::from(random.draw()) << 64 | u128::from(random.draw());
            match formatted {
                true => Pool::open(devices).await,
                false => Pool::format(devices, &mut uuid, true).await,
            }
        })?;
        let pool = pool.map_err(|error| wrong("the pool does not open")(error.to_string()))?;
        self.formatted = true;
        let (shared, executor) = (self.shared.clone(), Arc::new(self.shared.executor.clone()));
        let env = Env {
            clock: executor.clone(),
            spawn: executor,
            backing: Arc::new(shared.store.clone()),
            witness: Some(Arc::new(shared.epochs.clone())),
            deliver: Arc::new(|batch| batch()),
            events: Arc::new(move |event| shared.tell(|| format!("event {event:?}"))),
        };
        let settings = Settings {
            mode: self.plan.mode,
            ram: self.plan.ram,
            destage_after: self.plan.destage_after,
            ..Settings::default()
        };
        self.shared.store.set_closed(true);
        let opening = self.shared.executor.block_on(LIMIT, Engine::begin(pool, env, settings));
        self.shared.store.set_closed(false);
        opening?.map_err(|error| wrong("the engine does not open")(error.to_string()))
    }

    /// Makes the tree equal to the log, durably.
    fn recover_names(&mut self, notes: &[UserRecord]) -> Result<Recovery, Refused> {
        let recovery = Recovery::read(LOG, notes.iter().map(|note| &*note.bytes), Vec::new());
        let mut recovery = recovery.ok_or_else(|| Refused::Wrong("a note is no record".to_owned()))?;
        self.check_log(notes).map_err(Refused::Wrong)?;
        let (operations, checkpoint) = recovery.found().of(0);
        if let Some(crashed) = &mut self.crashed {
            crashed.read_checkpoint(checkpoint);
        }
        let intents: Vec<RenameIntent> =
            self.shared.store.lock().volume.state.slots.values().cloned().collect();
        self.shared.tell(|| {
            let numbers: Vec<u64> = operations.iter().map(|operation| operation.number).collect();
            format!("the log has {numbers:?}, checkpoint {checkpoint}; slots {intents:?}")
        });
        self.count_crash(&intents, checkpoint);
        self.reconcile(&mut recovery)?;
        Ok(recovery)
    }

    /// Makes the file system equal to the log, and commits that. Checks that a second reconciliation changes nothing
    /// (P7). A crash may leave any prefix of the changes.
    fn reconcile(&mut self, recovery: &mut Recovery) -> Result<(), Refused> {
        let failed = |refused| Refused::Wrong(format!("recovery failed: {refused}"));
        let before = {
            let mut state = self.shared.store.lock();
            let before = state.transactions();
            let names = state.volume.state.clone();
            let Some(outcome) = recovery.reconcile(0, &mut state.volume).map_err(failed)? else {
                return Ok(());
            };
            self.made_again = self.count_outcome(&names, &state.volume.state, &outcome);
            let mut again = state.volume.with(&state.volume.state);
            let (operations, checkpoint) = recovery.found().of(0);
            let second = reconcile(&mut again, operations, checkpoint).map_err(failed)?;
            if !again.history.is_empty() || !second.set_aside.is_empty() {
                return Err(Refused::Wrong("a second recovery of names changed something (P7)".to_owned()));
            }
            self.shared
                .tell(|| format!("{} transactions of recovery: {outcome:?}", state.transactions() - before));
            before
        };
        // Recovery has made all changes at once; a crash may leave any prefix of them.
        if self.rng.chance(1000) {
            self.shared.executor.crash_in(Some(1));
        }
        let executor = self.shared.executor.clone();
        let pause =
            self.shared.executor.after(std::time::Duration::ZERO, move || executor.step().then_some(()));
        if let Err(stop) = self.shared.executor.block_on(LIMIT, pause) {
            self.shared.hits.hit(Fault::JoinedInReconciling);
            self.shared.store.interrupt(before);
            return Err(Refused::Stopped(stop));
        }
        let committed = self.shared.executor.block_on(LIMIT, self.shared.store.commit())?;
        committed.map_err(|error| Refused::Wrong(format!("a commit failed: {error:?}")))
    }

    /// Logs the checkpoint after recovery, and empties the slots, durably.
    fn conclude(&mut self, harness: &Arc<Harness>, recovery: Recovery) -> Result<(), Refused> {
        let theirs = harness.clone();
        let concluding = async move { theirs.conclude(recovery).await };
        let concluded = self.shared.executor.block_on(LIMIT, concluding)?;
        concluded.map_err(|error| Refused::Wrong(format!("a start failed: {error}")))
    }
}
