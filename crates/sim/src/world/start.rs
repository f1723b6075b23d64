//! The start of a session: the pool and the engine are opened, through crashes and with the actions of an
//! administrator.

use std::sync::Arc;
use std::time::Duration;

use forebay_engine::io::{Device, Witness};
use forebay_engine::pool::{Patience, Pool, PoolError};
use forebay_engine::{Engine, Env, Error, Event, OpenError, Recovered, Settings};

use super::{Crash, DETECTED, LIMIT, World};
use crate::client::Client;
use crate::disk::{self, Disk};
use crate::executor::Stop;
use crate::gremlin::heal;
use crate::hits::Fault;
use crate::notes::let_go_when_due;
use crate::plan::{Disaster, Trouble};

/// The reason for which an engine could not be opened.
pub(super) enum Refused {
    Stopped(Stop),
    Pool(PoolError),
    Engine(String),
    /// Acknowledged data is lost, and the engine reports it.
    Lost,
}

impl World {
    /// Opens the engine, with crashes on the way if `crashes`.
    pub(super) fn start(&mut self, crashes: bool) -> Result<Arc<Engine>, String> {
        // Recovery waits for a volume that does not answer.
        self.shared.store.unstick();
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
                    self.check_headless();
                    let adopter = Client::new(&self.shared, &engine, self.allowed(), self.rng.fork());
                    adopter.adopt();
                    return Ok(engine);
                }
                Err(Refused::Stopped(Stop::Crashed)) => {
                    self.shared.hits.hit(Fault::CutInRecovery);
                    let how = self.rng.pick(&[Crash::Kill, Crash::PowerCut]);
                    self.crash(how);
                    if self.plan.has(Trouble::Turns) {
                        self.cut_in_turn();
                    }
                }
                Err(Refused::Stopped(stop)) => return Err(format!("recovery does not end: {stop:?}")),
                Err(Refused::Pool(PoolError::Blank(name))) if self.leave_out(&name) => {
                    self.crash(Crash::Kill)
                }
                Err(Refused::Pool(error)) if self.plan.has(Trouble::Turns) => {
                    self.refused_in_turn(&error.to_string(), matches!(error, PoolError::Split { .. }))?;
                }
                Err(Refused::Engine(error)) if self.plan.has(Trouble::Turns) => {
                    self.refused_in_turn(&error, false)?;
                }
                // A device died while it was read. The administrator leaves it out.
                Err(Refused::Pool(PoolError::Unreadable { device, .. }))
                    if self.plan.has(Trouble::Leaving) && self.is_gone(&device) =>
                {
                    self.crash(Crash::Kill);
                }
                // A removal was cut short with only its last step left, or the last device died.
                Err(Refused::Pool(error))
                    if self.plan.has(Trouble::Leaving)
                        && (error == PoolError::NoPool || self.disks.iter().all(Disk::is_gone)) =>
                {
                    self.disks.iter().for_each(Disk::vanish);
                    self.crash(Crash::Kill);
                }
                Err(Refused::Pool(error))
                    if troubled
                        && self.plan.victim_fails()
                        && !self.plan.has(Trouble::Leaving)
                        && !self.is_victim_the_last() =>
                {
                    // An administrator would try again, with the bad device left out or after its fault has passed.
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

    /// Leaves out a device whose adding or removing was cut short, as the message says.
    fn leave_out(&mut self, name: &str) -> bool {
        let again = [Trouble::Leaving, Trouble::DeviceHang, Trouble::Turns];
        let changed = again.into_iter().any(|trouble| self.plan.has(trouble))
            || self.disks.len() > self.plan.devices.len()
            || self.shared.removable.lock().len() < self.disks.len();
        let found = self.disks.iter().find(|disk| disk.name() == name && changed);
        found.inspect(|disk| disk.vanish()).is_some()
    }

    fn is_gone(&self, name: &str) -> bool {
        self.disks.iter().any(|disk| disk.name() == name && disk.is_gone())
    }

    /// Returns true if all other devices are gone: no administrator would leave out the last one.
    fn is_victim_the_last(&self) -> bool {
        let others = self.disks.iter().enumerate().filter(|(at, _)| *at != self.plan.victim);
        self.disks.len() > 1 && others.map(|(_, disk)| disk).all(Disk::is_gone)
    }

    /// Does the work of an administrator whose pool does not open: leaves out the failing device, or replaces the
    /// only one.
    fn leave_out_victim(&mut self) {
        let (victim, legs) = (self.victim().name().to_owned(), self.shared.epochs.legs());
        if self.disks.len() > 1 && legs == [victim] {
            // The other devices were never in use. An administrator connects this one again.
            self.victim().appear();
        } else if self.disks.len() > 1 {
            self.victim().vanish();
        } else {
            // The device held only clean blocks, so nothing is lost with it.
            self.victim().wipe();
            (self.formatted, self.headless) = (false, None);
        }
    }

    /// Replaces all devices, like an administrator after the loss of the last one. All acknowledged data is in the
    /// backing store.
    fn replace_all(&mut self) {
        self.shared.hits.hit(Fault::NoneLeft);
        for number in 0..2 {
            let (name, rng) = (format!("new{}", self.disks.len() + number), self.rng.fork());
            self.disks.push(Disk::new(&self.shared.executor, &name, 64 << 20, rng, &self.shared.hits));
        }
        self.shared.notes.lock().lose_all();
        self.formatted = false;
    }

    /// Takes away devices that have left the pool, like an administrator who reads of it.
    fn put_away(&self, pool: &Pool) {
        let is_member = |disk: &Disk| pool.present().any(|(_, device)| device.name() == disk.name());
        self.disks.iter().filter(|disk| !disk.is_gone() && !is_member(disk)).for_each(Disk::vanish);
    }

    /// Carries out one start: opens the pool with all present devices, or formats it, and recovers the engine.
    /// Returns the reason if the start is refused or a planned crash stops it.
    fn open(&mut self) -> Result<Arc<Engine>, Refused> {
        if let [only] = &self.disks[..]
            && only.is_gone()
        {
            // An administrator replaced the device.
            only.appear();
            only.wipe();
            (self.formatted, self.headless) = (false, None);
        }
        if self.plan.has(Trouble::Leaving) && self.disks.iter().all(Disk::is_gone) {
            self.replace_all();
        }
        if self.plan.foreign && self.formatted {
            self.offer_wrong_ones()?;
        }
        let mut disks: Vec<Disk> = self.disks.iter().filter(|disk| !disk.is_gone()).cloned().collect();
        if disks.len() > 1 && self.rng.chance(3000) {
            disks.reverse();
            self.shared.hits.hit(Fault::Swapped);
        }
        let devices: Vec<Arc<dyn Device>> =
            disks.into_iter().map(|disk| Arc::new(disk) as Arc<dyn Device>).collect();
        let mut random = self.rng.fork();
        let (formatted, legs) = (self.formatted, self.shared.epochs.legs());
        let (events, executor) = (self.events(), Arc::new(self.shared.executor.clone()));
        let witness = Some(Arc::new(self.shared.epochs.clone()) as Arc<dyn Witness>);
        let patience = Patience {
            clock: executor.clone(),
            deadline: self.plan.deadline,
            witness: witness.clone(),
            events: events.clone(),
        };
        let pool = self.shared.executor.block_on(LIMIT, async move {
            let mut uuid = || u128::from(random.draw()) << 64 | u128::from(random.draw());
            match formatted {
                true => Pool::open_within(devices, &patience).await,
                false => Pool::format(devices, &mut uuid, true).await,
            }
        });
        let pool = pool.map_err(Refused::Stopped)?.map_err(Refused::Pool)?;
        self.shared.tell(|| format!("pool: {pool:?}"));
        if pool.segment_size > 1 << 20 {
            self.shared.hits.hit(Fault::LargeSegment);
        }
        self.formatted = true;
        self.shared.lost.lock().clear();
        self.look_for_destroyed(&pool);
        if self.plan.has(Trouble::Leaving) {
            self.put_away(&pool);
        }
        let members: Vec<_> = pool.present().map(|(_, device)| device.name().to_owned()).collect();
        *self.shared.members.lock() = members.clone();
        let env = Env {
            clock: executor.clone(),
            spawn: executor,
            backing: self.backing.clone().unwrap_or_else(|| Arc::new(self.shared.store.for_engine())),
            witness,
            deliver: Arc::new(|batch| batch()),
            events,
        };
        let settings = Settings {
            mode: self.plan.mode,
            ram: self.plan.ram,
            destage_after: self.plan.destage_after,
            device_deadline: self.plan.deadline,
            scrub_every: self.plan.destage_after * 3 + Duration::from_millis(50),
        };
        // The engine's owner does this before service, after a crash.
        self.shared.store.write_back();
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
            // The last device reports that the other devices are out of date. Two of those may have had both copies of
            // something.
            OpenError::Hole { .. }
                if self.plan.disaster == Some(Disaster::AllGone) && self.disks.len() > 2 =>
            {
                Refused::Lost
            }
            // A device died for good before the others had all of the log, or while another was added.
            OpenError::Hole { .. }
                if self.plan.has(Trouble::Leaving)
                    && (!self.mirrored || !members.iter().any(|name| legs.contains(name))) =>
            {
                Refused::Lost
            }
            // The log of a failing single device holds nothing that counts.
            OpenError::Hole { .. } if self.plan.devices.len() == 1 && self.plan.victim_fails() => {
                Refused::Lost
            }
            OpenError::Pool(error) => Refused::Pool(error),
            // Only one device remembers that it is a member, and it fails at the first write.
            OpenError::Engine(Error::NoDevice) if self.plan.is_lenient() => {
                Refused::Pool(PoolError::NoMemberLeft)
            }
            error => Refused::Engine(error.to_string()),
        })?;
        self.check_outdated(&members);
        if self.plan.has(Trouble::Turns) {
            self.opened_in_turn(&legs, &members);
        }
        self.shared.tell(|| {
            let brief = Recovered { notes: Vec::new(), ..recovered.clone() };
            format!("the engine is open, with {} notes: {brief:?}", recovered.notes.len())
        });
        if let (true, Some(last)) = (self.plan.fills, recovered.notes.last()) {
            engine.release_user_records(last.id);
        }
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

    /// Returns the receiver of the engine's events.
    fn events(&self) -> Arc<dyn Fn(Event) + Send + Sync> {
        let gone_for_good = self.plan.has(Trouble::Leaving);
        let shared = self.shared.clone();
        Arc::new(move |event| {
            shared.tell(|| format!("event {event:?}"));
            shared.told.lock().push(event.clone());
            if matches!(event, Event::DeviceLate { .. }) {
                shared.hits.hit(Fault::DeviceHung);
            }
            if let Event::DeviceRemoved { device } = &event {
                shared.members.lock().retain(|name| name != device);
            }
            if let Event::DeviceLost { device, left, data_lost } = event {
                shared.lost.lock().push(device);
                let lost = shared.lost.lock().len();
                if data_lost && lost < 2 {
                    shared.fail("dirty blocks had one copy only, and their device is lost (P1)".to_owned());
                }
                if left == 0 {
                    shared.log_broke();
                }
                if left == 0 && gone_for_good {
                    shared.notes.lock().lose_all();
                }
            }
        })
    }

    /// Tells the model which part of the log the faults of this world have destroyed on every device (P3).
    fn look_for_destroyed(&self, pool: &Pool) {
        if !self.plan.is_lenient() {
            return;
        }
        // The contents of a device with other troubles are unknown.
        let doubtful = self.disks.len() > 1 && !self.plan.troubles.is_empty();
        let is_member = |disk: &Disk| pool.present().any(|(_, device)| device.name() == disk.name());
        let counted = self.disks.iter().filter(|disk| is_member(disk));
        let counted = counted.filter(|disk| !doubtful || disk.name() != self.victim().name());
        let counted: Vec<Disk> = counted.cloned().collect();
        if let Some(first) = disk::first_destroyed(&self.disks, &counted) {
            self.shared.tell(|| format!("every copy of frame {first} was destroyed"));
            self.shared.hits.hit(Fault::Destroyed);
            self.shared.model.lock().destroyed(first);
        }
    }

    /// Checks that the engine noticed the missing end of the log.
    fn check_headless(&mut self) {
        if self.headless.take().is_some_and(|before| self.logs_dropped() == before) {
            self.shared.fail("the end of the log is lost, and nobody noticed".to_owned());
        }
    }

    pub(super) fn logs_dropped(&self) -> usize {
        self.shared.told.lock().iter().filter(|told| **told == Event::LogDropped).count()
    }

    /// Checks that the loss of a leg was durable before the next acknowledgement (P11).
    fn check_outdated(&self, members: &[String]) {
        // If every device forgets its flushed writes, the record of a loss is forgotten too.
        if self.plan.is_lenient() {
            return;
        }
        // A crash may have come after the adding of a device and before its report.
        let adding = std::mem::take(&mut *self.shared.adding.lock());
        let mut outdated = self.shared.outdated.lock();
        outdated.retain(|name| !(adding.contains(name) && members.contains(name)));
        for name in members.iter().filter(|name| outdated.contains(name)) {
            self.shared
                .fail(format!("{name} is used again, though writes were acknowledged without it (P11)"));
        }
    }
}
