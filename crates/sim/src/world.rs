//! One seed is one world: made, used, broken, restarted and checked.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use forebay_engine::io::Device;
use forebay_engine::pool::{Pool, PoolError};
use forebay_engine::{Engine, Env, Error, Event, OpenError, Recovered, Settings};
use parking_lot::Mutex;

use crate::backing::Store;
use crate::client::{Allowed, Client, Shared};
use crate::disk::{self, Disk};
use crate::executor::{Executor, Stop};
use crate::gremlin::{Gremlin, PLENTY, heal};
use crate::hits::{Fault, Hits};
use crate::model::Model;
use crate::notes::{Notary, let_go_when_due};
use crate::objects::Objects;
use crate::plan::{Disaster, Plan, Trouble};
use crate::rng::Rng;

/// Longer than anything may take, faults included.
const LIMIT: Duration = Duration::from_secs(6 * 3600);

/// A disaster that was found out: this world can only end.
const DETECTED: &str = "the loss was found out";

/// How a world ended.
#[derive(Debug)]
pub struct Outcome {
    /// What went wrong, if anything.
    pub failure: Option<String>,
    /// A hash of everything that happened (P21).
    pub digest: u64,
    /// Operations of devices and the backing store, begun and completed.
    pub steps: u64,
    /// Faults injected.
    pub hits: Arc<Hits>,
    /// What happened, if it was to be kept.
    pub log: Vec<String>,
}

/// How a session ends that does not end by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crash {
    /// The process is killed.
    Kill,
    /// The power goes.
    PowerCut,
}

/// Why an engine could not be opened.
enum Refused {
    Stopped(Stop),
    Pool(PoolError),
    Engine(String),
    /// Something acknowledged is lost, and the engine says so.
    Lost,
}

/// A world under way.
pub struct World {
    pub(crate) shared: Arc<Shared>,
    pub(crate) plan: Plan,
    pub(crate) rng: Rng,
    pub(crate) disks: Vec<Disk>,
    formatted: bool,
    /// At the end of the last session everything was on two devices, as far as the engine knew.
    mirrored: bool,
}

/// Runs the world of `seed` to its end.
pub fn run(seed: u64, keep_log: bool) -> Outcome {
    let mut rng = Rng::new(seed);
    let plan = Plan::new(&mut rng);
    let mut world = World::new(plan, rng, keep_log);
    world.shared.tell(|| format!("{:?}", world.plan));
    let failure = world.live().err().filter(|failure| failure != DETECTED);
    world.outcome(failure)
}

impl World {
    /// A world with blank devices and a few files.
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
        let mut model = Model::default();
        model.lenient = plan.is_lenient();
        model.logged = plan.logged();
        model.lossy = !plan.logged() && plan.backing_fails();
        let mut objects = Objects::default();
        for _ in 0..plan.objects {
            objects.create(&mut rng, plan.habits.extent, &store, &mut model);
        }
        let removable = if disks.len() > 2 { disks.iter().skip(2).cloned().collect() } else { Vec::new() };
        let shared = Shared {
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
            outdated: Mutex::default(),
            failure: Mutex::new(None),
            log: keep_log.then(Mutex::default),
        };
        World { shared: Arc::new(shared), plan, rng, disks, formatted: false, mirrored: false }
    }

    /// What became of it.
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

    fn allowed(&self) -> Allowed {
        let damage = self.plan.disaster.is_some();
        let no_device = damage;
        Allowed { backing: self.plan.backing_fails() || damage, damage, no_device }
    }

    /// The engine starts, is used, and stops in one way or another.
    fn session(&mut self) -> Result<(), String> {
        let crash = self.rng.chance(self.plan.crashes);
        let how = self.rng.pick(&[Crash::Kill, Crash::PowerCut, Crash::PowerCut]);
        let engine = self.start(crash)?;
        if crash {
            let most = self.rng.pick(&[10, 100, 1000, 10_000]);
            let steps = self.rng.within(1, most);
            if self.plan.cuts_at_headers {
                let headers = self.rng.within(1, 30) as u32;
                self.victim().crash_at_header(Some((headers, steps.min(6))));
            } else {
                self.shared.executor.crash_in(Some(steps));
            }
        }
        let done = self.look(&engine).and_then(|()| self.work(&engine));
        match done.map_err(|stop| self.stopped(stop)) {
            Ok(()) if crash => {}
            Ok(()) => match self.close(&engine) {
                Ok(()) => {}
                Err(Stop::Crashed) => {}
                Err(stop) => return Err(format!("a clean stop does not end: {stop:?}")),
            },
            Err(None) => {}
            Err(Some(error)) => return Err(error),
        }
        self.mirrored = engine.is_mirrored();
        self.victim().crash_at_header(None);
        drop(engine);
        self.crash(how);
        match self.shared.failure.lock().clone() {
            Some(failure) => Err(failure),
            None => Ok(()),
        }
    }

    /// Nothing goes wrong any more: everything must come out right.
    fn last_session(&mut self) -> Result<(), String> {
        heal(&self.shared, self.victim());
        for disk in &self.disks {
            disk.set_rates(disk::Rates::default());
        }
        let engine = self.start(false)?;
        let outcome = self.look_at_all(&engine).and_then(|()| self.drain(&engine));
        match outcome.map_err(|stop| self.stopped(stop)) {
            Err(Some(error)) => return Err(error),
            Err(None) => return Err("a crash that was not planned".to_owned()),
            Ok(()) => {}
        }
        self.check_usage(&engine)?;
        self.close(&engine).map_err(|stop| format!("a clean stop does not end: {stop:?}"))?;
        drop(engine);
        if self.rng.chance(5000) {
            // Once flushed, the directory needs neither the cache nor the page cache.
            self.crash(Crash::PowerCut);
        }
        self.check_backing()
    }

    /// What a stop other than a crash means.
    pub(crate) fn stopped(&self, stop: Stop) -> Option<String> {
        let failure = self.shared.failure.lock().clone();
        match stop {
            Stop::Crashed => failure,
            _ => failure.or_else(|| {
                Some(format!("the engine does not answer: {stop:?};{}", self.shared.executor.busiest()))
            }),
        }
    }

    /// Opens the engine, with crashes on the way if asked for.
    fn start(&mut self, crashes: bool) -> Result<Arc<Engine>, String> {
        let tries = if crashes { self.rng.below(4) } else { 0 };
        let crashes = (0..tries).map(|_| {
            let most = self.rng.pick(&[10, 50, 500]);
            self.rng.within(1, most)
        });
        let crashes = crashes.collect();
        self.start_through(crashes)
    }

    /// Opens the engine after crashes at the given numbers of steps, the last one first.
    pub(crate) fn start_through(&mut self, mut crashes: Vec<u64>) -> Result<Arc<Engine>, String> {
        let mut troubled = true;
        loop {
            self.shared.executor.crash_in(crashes.pop());
            if troubled && self.plan.victim < self.disks.len() {
                let mut rng = self.rng.fork();
                let bad = self.plan.sessions > 0 && rng.chance(3000);
                let rates = if bad { self.plan.disk_rates(&mut rng) } else { disk::Rates::default() };
                self.victim().set_rates(rates);
            }
            match self.open() {
                Ok(engine) => {
                    self.shared.executor.crash_in(None);
                    let adopter = Client::new(&self.shared, &engine, self.allowed(), self.rng.fork());
                    adopter.adopt();
                    return Ok(engine);
                }
                Err(Refused::Stopped(Stop::Crashed)) => {
                    self.shared.hits.hit(Fault::CutInRecovery);
                    let how = self.rng.pick(&[Crash::Kill, Crash::PowerCut]);
                    self.crash(how);
                }
                Err(Refused::Stopped(stop)) => return Err(format!("recovery does not end: {stop:?}")),
                Err(Refused::Pool(PoolError::Blank(name))) if self.leave_out(&name) => {
                    self.crash(Crash::Kill)
                }
                Err(Refused::Pool(error)) if troubled && self.plan.victim_fails() => {
                    // An administrator would try again, with the bad device in a better mood or left out.
                    self.shared.tell(|| format!("the pool does not open: {error}"));
                    self.crash(Crash::Kill);
                    heal(&self.shared, self.victim());
                    self.leave_out_victim();
                    troubled = false;
                }
                Err(Refused::Pool(_)) if self.plan.is_lenient() => return Err(DETECTED.to_owned()),
                Err(Refused::Pool(error)) => return Err(format!("the pool does not open: {error}")),
                Err(Refused::Lost) => return Err(DETECTED.to_owned()),
                Err(Refused::Engine(error)) => return Err(format!("the engine does not open: {error}")),
            }
        }
    }

    /// A device whose adding or removing was cut short is left out, as the message says.
    fn leave_out(&mut self, name: &str) -> bool {
        let changed = self.disks.len() > self.plan.devices.len()
            || self.shared.removable.lock().len() < self.disks.len();
        let found = self.disks.iter().find(|disk| disk.name() == name && changed);
        found.inspect(|disk| disk.vanish()).is_some()
    }

    fn leave_out_victim(&mut self) {
        if self.disks.len() > 1 {
            self.victim().vanish();
        } else {
            // It held clean blocks only: nothing is lost with it.
            self.victim().wipe();
            self.formatted = false;
        }
    }

    fn open(&mut self) -> Result<Arc<Engine>, Refused> {
        if let [only] = &self.disks[..]
            && only.is_gone()
        {
            // Somebody replaced it.
            only.appear();
            only.wipe();
            self.formatted = false;
        }
        let mut disks: Vec<Disk> = self.disks.iter().filter(|disk| !disk.is_gone()).cloned().collect();
        if disks.len() > 1 && self.rng.chance(3000) {
            disks.reverse();
            self.shared.hits.hit(Fault::Swapped);
        }
        let devices: Vec<Arc<dyn Device>> =
            disks.into_iter().map(|disk| Arc::new(disk) as Arc<dyn Device>).collect();
        let mut random = self.rng.fork();
        let formatted = self.formatted;
        let pool = self.shared.executor.block_on(LIMIT, async move {
            let mut uuid = || u128::from(random.draw()) << 64 | u128::from(random.draw());
            match formatted {
                true => Pool::open(devices).await,
                false => Pool::format(devices, &mut uuid, true).await,
            }
        });
        let pool = pool.map_err(Refused::Stopped)?.map_err(Refused::Pool)?;
        self.shared.tell(|| format!("pool: {pool:?}"));
        self.formatted = true;
        self.check_outdated(&pool);
        let shared = self.shared.clone();
        let executor = Arc::new(shared.executor.clone());
        let env = Env {
            clock: executor.clone(),
            spawn: executor,
            backing: Arc::new(shared.store.clone()),
            deliver: Arc::new(|batch| batch()),
            events: Arc::new(move |event| {
                shared.tell(|| format!("event {event:?}"));
                if let Event::DeviceLost { device, .. } = event {
                    shared.lost.lock().push(device);
                }
            }),
        };
        let settings = Settings {
            mode: self.plan.mode,
            ram: self.plan.ram,
            destage_after: self.plan.destage_after,
            scrub_every: self.plan.destage_after * 3 + Duration::from_millis(50),
        };
        // The engine's owner sees to that before service, after a crash.
        self.shared.store.settle();
        let store = self.shared.store.clone();
        let opening = async move {
            store.set_closed(true);
            let opening = Engine::begin(pool, env, settings).await;
            store.set_closed(false);
            opening?.finish().await
        };
        let opened = self.shared.executor.block_on(LIMIT, opening);
        let opened = opened.map_err(Refused::Stopped)?;
        let (engine, recovered) = opened.map_err(|error| match error {
            OpenError::Hole { .. } if self.plan.is_lenient() => Refused::Lost,
            // The last device says that the others are out of date, two of which may have had both copies of something.
            OpenError::Hole { .. }
                if self.plan.disaster == Some(Disaster::AllGone) && self.plan.devices.len() > 2 =>
            {
                Refused::Lost
            }
            // The log of a single device says only what does not count.
            OpenError::Hole { .. } if self.plan.devices.len() == 1 && self.plan.victim_fails() => {
                Refused::Lost
            }
            OpenError::Pool(error) => Refused::Pool(error),
            // The one device that did not forget that it is a member fails as soon as it is written.
            OpenError::Engine(Error::NoDevice) if self.plan.is_lenient() => {
                Refused::Pool(PoolError::NoMemberLeft)
            }
            error => Refused::Engine(error.to_string()),
        })?;
        self.shared.tell(|| {
            let brief = Recovered { notes: Vec::new(), ..recovered.clone() };
            format!("the engine is open, with {} notes: {brief:?}", recovered.notes.len())
        });
        if self.plan.notes {
            let strict = self.plan.devices.len() > 1 && self.plan.disaster.is_none();
            if let Err(error) = self.shared.notes.lock().recovered(&recovered.notes, strict) {
                self.shared.fail(error);
            }
            let letting_go = let_go_when_due(self.shared.clone(), engine.clone(), self.rng.fork());
            self.shared.executor.start("notes", Box::pin(letting_go));
        }
        Ok(engine)
    }

    /// One who writes notes in this session.
    pub(crate) fn notary(&mut self, engine: &Arc<Engine>) -> Notary {
        let (shared, engine) = (self.shared.clone(), engine.clone());
        Notary { shared, engine, allowed: self.allowed(), rng: self.rng.fork() }
    }

    /// The loss of a leg is durable before the next acknowledgement (P11).
    fn check_outdated(&self, pool: &Pool) {
        self.shared.lost.lock().clear();
        // Where every device forgets what it flushed, the record of a loss goes the same way.
        if self.plan.is_lenient() {
            return;
        }
        let outdated = self.shared.outdated.lock();
        for (_, device) in
            pool.present().filter(|(_, device)| outdated.iter().any(|name| name == device.name()))
        {
            let name = device.name();
            self.shared
                .fail(format!("{name} is used again, though writes were acknowledged without it (P11)"));
        }
    }

    /// Sizes are checked, and often contents.
    fn look(&mut self, engine: &Arc<Engine>) -> Result<(), Stop> {
        if self.rng.chance(6000) { self.look_at_all(engine) } else { Ok(()) }
    }

    /// Reads everything, and checks what a crash left.
    pub(crate) fn look_at_all(&mut self, engine: &Arc<Engine>) -> Result<(), Stop> {
        let mut client = Client::new(&self.shared, engine, self.allowed(), self.rng.fork());
        let chunk = self.rng.pick(&[4096, 64 << 10, 1 << 20]);
        // Else a slow store is read for hours.
        let chunk = if self.plan.habits.slow_store > 1 { 1 << 20 } else { chunk };
        let shared = self.shared.clone();
        self.shared.executor.block_on(LIMIT, async move {
            let numbers = shared.objects.lock().numbers();
            for number in numbers {
                let Some(object) = shared.objects.lock().object(number) else { continue };
                let size = object.size();
                if let Err(error) = shared.model.lock().observe_size(number, size) {
                    shared.fail(error);
                }
                for offset in (0..size + 1).step_by(chunk) {
                    client.read(number, offset, chunk).await;
                }
            }
        })?;
        let checked = self.shared.model.lock().check_prefix();
        if let (Err(error), true) = (checked, self.plan.logged()) {
            self.shared.fail(error);
        }
        Ok(())
    }

    /// Clients do their work.
    fn work(&mut self, engine: &Arc<Engine>) -> Result<(), Stop> {
        let habits = self.plan.habits.clone();
        let left = Arc::new(AtomicUsize::new(habits.clients));
        for _ in 0..habits.clients {
            let client = Client::new(&self.shared, engine, self.allowed(), self.rng.fork());
            let operations = habits.operations / habits.clients as u32 + 1;
            let left = left.clone();
            self.shared.executor.start(
                "client",
                Box::pin(async move {
                    client.run(operations).await;
                    left.fetch_sub(1, Ordering::Relaxed);
                }),
            );
        }
        if self.plan.notes {
            let (notary, left) = (self.notary(engine), left.clone());
            let count = self.plan.habits.operations / 4 + 1;
            left.fetch_add(1, Ordering::Relaxed);
            self.shared.executor.start(
                "notary",
                Box::pin(async move {
                    notary.write(count).await;
                    left.fetch_sub(1, Ordering::Relaxed);
                }),
            );
        }
        let gremlin = Gremlin {
            shared: self.shared.clone(),
            victim: self.victim().clone(),
            disks: self.disks.clone(),
            plan: self.plan.clone(),
            rng: self.rng.fork(),
        };
        if !self.plan.troubles.is_empty() || self.plan.disaster == Some(Disaster::AllGone) {
            self.shared.executor.start("gremlin", Box::pin(gremlin.run()));
        }
        if self.plan.disaster == Some(Disaster::DropFlushes) {
            for disk in &self.disks {
                disk.set_rates(disk::Rates { drop_flushes: true, ..disk::Rates::default() });
            }
            self.shared.hits.hit(Fault::BothDropped);
        }
        let shared = self.shared.clone();
        let done = || left.load(Ordering::Relaxed) == 0 || shared.failure.lock().is_some();
        match self.shared.executor.run(LIMIT, done) {
            Stop::Done => Ok(()),
            stop => Err(stop),
        }
    }

    /// Everything is destaged.
    pub(crate) fn drain(&mut self, engine: &Arc<Engine>) -> Result<(), Stop> {
        let mut client = Client::new(&self.shared, engine, self.allowed(), self.rng.fork());
        self.shared.executor.block_on(LIMIT, async move {
            // The first flush may still hear of a failure from before.
            let first = client.engine.flush().await;
            client.shared.tell(|| format!("flush: {first:?}"));
            client.flush().await;
        })?;
        let dirty = engine.scan().dirty_blocks;
        if dirty > 0 && !self.plan.is_lenient() {
            self.shared.fail(format!("{dirty} blocks are dirty after a flush"));
        }
        self.check_objects(|shared, key| shared.store.current(key));
        Ok(())
    }

    fn check_usage(&self, engine: &Engine) -> Result<(), String> {
        let (usage, scan) = (engine.usage(), engine.scan());
        let same = usage.ssd_blocks == scan.ssd_blocks
            && usage.dirty_blocks == scan.dirty_blocks
            && usage.ram_blocks == scan.ram_blocks
            && usage.objects == scan.objects;
        if same { Ok(()) } else { Err(format!("counters say {usage:?}, a scan {scan:?} (P20)")) }
    }

    fn check_objects(
        &self,
        content: impl Fn(&Shared, &forebay_engine::io::Key) -> Option<crate::content::Content>,
    ) {
        let objects = self.shared.objects.lock();
        for number in objects.numbers() {
            let Some(key) = objects.key(number) else { continue };
            let content = content(&self.shared, &key);
            let times = self.plan.logged() && !self.plan.backing_fails() && !self.plan.victim_fails();
            if let Err(error) = self.shared.model.lock().check_backing(number, content.as_ref(), times) {
                self.shared.fail(error);
            }
        }
    }

    fn check_backing(&self) -> Result<(), String> {
        if !self.plan.is_lenient() {
            self.check_objects(|shared, key| shared.store.durable(key));
        }
        match self.shared.failure.lock().clone() {
            Some(failure) => Err(failure),
            None => Ok(()),
        }
    }

    /// A clean stop: nothing accepted may be lost.
    pub(crate) fn close(&mut self, engine: &Arc<Engine>) -> Result<(), Stop> {
        let theirs = engine.clone();
        let closed = self.shared.executor.block_on(LIMIT, async move { theirs.close().await })?;
        self.shared.tell(|| format!("closed: {closed:?}"));
        match closed {
            Ok(_) => {
                let mut model = self.shared.model.lock();
                model.open(u64::MAX).into_iter().for_each(|id| model.durable(id));
            }
            Err(error) if self.allowed().permits(error) => {}
            Err(error) => self.shared.fail(format!("a clean stop failed: {error}")),
        }
        Ok(())
    }

    /// Everything that runs is gone, and perhaps what was not durable.
    pub(crate) fn crash(&mut self, how: Crash) {
        self.shared.tell(|| format!("{how:?}"));
        self.shared.executor.reset();
        let spares = self.shared.spares.lock().clone();
        let mut torn = 0;
        for disk in self.disks.iter().chain(&spares) {
            match how {
                Crash::Kill => disk.kill(),
                Crash::PowerCut => torn += u32::from(disk.power_cut()),
            }
        }
        if torn > 1 {
            self.shared.hits.hit(Fault::LegsDiffer);
        }
        match how {
            Crash::Kill => self.shared.store.kill(),
            Crash::PowerCut => self.shared.store.power_cut(),
        }
        self.shared.hits.hit(if how == Crash::Kill { Fault::Kill } else { Fault::PowerCut });
        self.shared.model.lock().crash(how == Crash::PowerCut);
        self.shared.objects.lock().reset();
        self.disks.append(&mut self.shared.joined.lock());
    }

    /// What happens while the machine is off.
    fn between(&mut self) {
        let victim = self.victim().clone();
        if self.plan.disaster == Some(Disaster::Rot) {
            self.disks.iter().for_each(|disk| disk.rot(20));
            self.shared.hits.hit(Fault::BothRotten);
        }
        if self.plan.disaster == Some(Disaster::AllGone) {
            // But not one that was taken out of the pool.
            let joined = |disk: &&Disk| !self.shared.left.lock().contains(&disk.name().to_owned());
            self.disks.iter().filter(joined).for_each(Disk::appear);
        }
        if self.disks.len() < 2 {
            return;
        }
        if self.plan.has(Trouble::LoneLegs) {
            return self.between_lone_legs();
        }
        if self.plan.has(Trouble::Rot) {
            victim.rot(10);
        }
        if victim.is_gone() {
            if self.rng.chance(5000) {
                victim.appear();
                self.shared.hits.hit(Fault::ReturnedStale);
            }
        } else if self.plan.has(Trouble::Missing) && self.rng.chance(5000) {
            victim.vanish();
            self.shared.hits.hit(Fault::LostAtRestart);
        } else if self.plan.has(Trouble::Wiped) && self.rng.chance(3000) && self.disks.len() > 1 {
            // Left out, and offered as a new device.
            victim.vanish();
            let size = victim.size();
            let fresh = Disk::new(&self.shared.executor, "fresh", size, self.rng.fork(), &self.shared.hits);
            self.shared.spares.lock().push(fresh);
            self.shared.hits.hit(Fault::Wiped);
        }
    }

    /// Copies of the victim are lost; or another device, if the engine says that there are two copies of everything.
    fn between_lone_legs(&mut self) {
        let others = self.disks.iter().filter(|disk| disk.name() != self.victim().name());
        let others: Vec<Disk> = others.cloned().collect();
        if others.iter().any(Disk::is_gone) {
            return;
        }
        if self.mirrored && self.rng.chance(6000) {
            self.rng.pick(&others).vanish();
            self.shared.hits.hit(Fault::LostInTurn);
        } else {
            self.victim().rot_headers();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Seeds that once found bugs of the engine or of the simulator, and some that never did.
    const SEEDS: [u64; 25] = [
        2, 13, 26, 29, 40, 70, 82, 88, 126, 132, 191, 222, 361, 402, 430, 491, 508, 688, 696, 2291, 2664,
        2943, 2985, 20191, 20463,
    ];

    #[test]
    fn worlds_end_well_and_the_same_way_each_time() {
        for seed in SEEDS {
            let outcome = run(seed, false);
            assert_eq!(outcome.failure, None, "cargo x sim --seed {seed}");
            if seed < 100 {
                assert_eq!(run(seed, false).digest, outcome.digest, "seed {seed}");
            }
        }
    }
}
