//! Worlds. One seed is one world, which is made, used, damaged, restarted and checked.

mod check;
mod foreign;
mod session;
mod start;
#[cfg(test)]
mod tests;
mod turns;

use std::sync::Arc;
use std::time::Duration;

use forebay_common::lock::Mutex;
use forebay_engine::Engine;
use forebay_engine::io::Backing;

use crate::backing::Store;
use crate::client::{Allowed, Shared};
use crate::disk::Disk;
use crate::epochs::Epochs;
use crate::executor::{Executor, Stop};
use crate::gremlin::PLENTY;
use crate::hits::Hits;
use crate::model::Model;
use crate::notes::Notary;
use crate::objects::Objects;
use crate::plan::{Plan, Trouble};
use crate::rng::Rng;

/// A time that no operation exceeds, faults included.
const LIMIT: Duration = Duration::from_secs(6 * 3600);

/// The message of a detected disaster, after which a world can only end.
const DETECTED: &str = "the loss was found out";

/// The end of a world.
#[derive(Debug)]
pub struct Outcome {
    /// The failure, if there is one.
    pub failure: Option<String>,
    /// A hash of everything that happened (P21).
    pub digest: u64,
    /// Operations of devices and the backing store, begun and completed.
    pub steps: u64,
    /// Faults injected.
    pub hits: Arc<Hits>,
    /// The events of the world, if a log was requested.
    pub log: Vec<String>,
}

/// The kind of crash that ends a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crash {
    /// The process is killed.
    Kill,
    /// The power fails.
    PowerCut,
}

/// A world in progress.
pub struct World {
    pub(crate) shared: Arc<Shared>,
    pub(crate) plan: Plan,
    pub(crate) rng: Rng,
    pub(crate) disks: Vec<Disk>,
    formatted: bool,
    /// True if everything was on two devices at the end of the last session, as far as the engine knew.
    mirrored: bool,
    /// True if the last session ended by a clean stop.
    stopped: bool,
    /// Set if the end of a lone device's log was lost while the machine was off, which the engine has to notice. The
    /// value is the number of logs that the engine had dropped before.
    headless: Option<usize>,
    /// True if some dirty blocks have no readable copy, so the backing store has older contents.
    damaged: bool,
    /// The engine's backing store, if it has more than the files of the world.
    pub(crate) backing: Option<Arc<dyn Backing>>,
}

/// Runs the world of `seed` to its end.
pub fn run(seed: u64, keep_log: bool) -> Outcome {
    let mut rng = Rng::new(seed);
    let plan = Plan::of_world(&mut rng);
    let mut world = World::new(plan, rng, keep_log);
    world.shared.tell(|| format!("{:?}", world.plan));
    let failure = world.live().err().filter(|failure| failure != DETECTED);
    world.outcome(failure)
}

impl World {
    /// Makes a world with blank devices and a few files.
    pub fn new(plan: Plan, mut rng: Rng, keep_log: bool) -> Self {
        let hits = Arc::new(Hits::default());
        let executor = Executor::new(rng.fork());
        let disk =
            |rng: &mut Rng, name: String, size: &u64| Disk::new(&executor, &name, *size, rng.fork(), &hits);
        let disks: Vec<Disk> = plan
            .devices
            .iter()
            .enumerate()
            .map(|(i, size)| disk(&mut rng, format!("disk{i}"), size))
            .collect();
        let spares: Vec<Disk> = plan
            .spares
            .iter()
            .enumerate()
            .map(|(i, size)| disk(&mut rng, format!("spare{i}"), size))
            .collect();
        let store = Store::new(&executor, PLENTY, rng.fork(), &hits);
        store.slow_down(plan.habits.slow_store);
        store.divide(plan.volumes);
        let mut model = Model::default();
        model.lenient = plan.is_lenient();
        model.logged = plan.logged();
        model.holes = plan.holes;
        model.untimed = plan.habits.at_once > 3;
        model.lossy = !plan.logged() && plan.backing_fails();
        let mut objects = Objects::default();
        for _ in 0..plan.objects {
            objects.create(&mut rng, plan.habits.extent, &store, &mut model);
        }
        let kept = if plan.has(Trouble::Leaving) { 0 } else { 2 };
        let removable = disks.iter().skip(kept).cloned().collect();
        let shared = Shared {
            epochs: Epochs::new(&executor),
            executor,
            store,
            model: Mutex::new(model),
            notes: Mutex::default(),
            objects: Mutex::new(objects),
            hits,
            habits: plan.habits.clone(),
            spares: Mutex::new(spares),
            joined: Mutex::default(),
            removable: Mutex::new(removable),
            left: Mutex::default(),
            lost: Mutex::default(),
            members: Mutex::default(),
            verifier_changed: Mutex::default(),
            told: Mutex::default(),
            outdated: Mutex::default(),
            adding: Mutex::default(),
            foreign: Mutex::default(),
            failure: Mutex::new(None),
            log: keep_log.then(Mutex::default),
        };
        World {
            shared: Arc::new(shared),
            plan,
            rng,
            disks,
            formatted: false,
            mirrored: false,
            stopped: false,
            headless: None,
            damaged: false,
            backing: None,
        }
    }

    /// Returns the outcome of the world.
    pub fn outcome(self, failure: Option<String>) -> Outcome {
        self.shared.executor.reset();
        Outcome {
            failure: self.shared.failure.lock().take().or(failure),
            digest: self.shared.executor.digest(),
            steps: self.shared.executor.steps(),
            hits: self.shared.hits.clone(),
            log: self.shared.log.as_ref().map(|log| std::mem::take(&mut *log.lock())).unwrap_or_default(),
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

    pub(crate) fn victim(&self) -> &Disk {
        &self.disks[self.plan.victim]
    }

    /// Returns the errors that clients must accept because the plan injects faults that cause them.
    pub(super) fn allowed(&self) -> Allowed {
        let damage = self.plan.disaster.is_some();
        let no_device = damage || self.plan.has(Trouble::Leaving);
        let late = self.plan.is_late();
        Allowed { backing: self.plan.backing_fails() || damage, damage, no_device, late }
    }

    /// Makes the task that writes user records in this session.
    pub(crate) fn notary(&mut self, engine: &Arc<Engine>) -> Notary {
        let (shared, engine) = (self.shared.clone(), engine.clone());
        Notary { shared, engine, allowed: self.allowed(), rng: self.rng.fork() }
    }

    /// Returns the failure behind a stop that is no crash.
    pub(crate) fn stopped(&self, stop: Stop) -> Option<String> {
        let failure = self.shared.failure.lock().clone();
        match stop {
            Stop::Crashed => failure,
            _ => failure.or_else(|| {
                Some(format!("the engine does not answer: {stop:?};{}", self.shared.executor.busiest()))
            }),
        }
    }
}
