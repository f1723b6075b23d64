//! A session, from a start to the next: clients work, and the session ends by a stop or a crash.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use forebay_engine::Engine;
use forebay_engine::io::Device;

use super::{Crash, LIMIT, World};
use crate::client::Client;
use crate::disk::{self, Disk};
use crate::executor::Stop;
use crate::filler::fill;
use crate::gremlin::{Gremlin, heal};
use crate::hanger::Hanger;
use crate::hits::Fault;
use crate::leaver::Leaver;
use crate::plan::{Disaster, Trouble};
use crate::policies::Policies;
use crate::turner::Turner;

impl World {
    /// Starts the engine, runs clients, and stops or crashes.
    pub(super) fn session(&mut self) -> Result<(), String> {
        let crash = self.rng.chance(self.plan.crashes);
        self.stopped = false;
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
        self.count_events(&engine);
        self.victim().crash_at_header(None);
        drop(engine);
        self.crash(how);
        match self.shared.failure.lock().clone() {
            Some(failure) => Err(failure),
            None => Ok(()),
        }
    }

    /// Adds the engine's waits for room and for the log, and the blocks that a priority kept, to the counts of faults.
    fn count_events(&self, engine: &Engine) {
        let counters = engine.counters();
        let counts = [
            (Fault::WaitedForRoom, counters.room_waits),
            (Fault::LogFull, counters.log_waits),
            (Fault::KeptByPriority, counters.kept_by_priority),
        ];
        counts.into_iter().for_each(|(fault, times)| self.shared.hits.hits(fault, times));
    }

    /// Runs a session without faults, after which everything must be right.
    pub(super) fn last_session(&mut self) -> Result<(), String> {
        heal(&self.shared, self.victim());
        self.victim().vanish_in(None);
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
            // After a flush, the directory needs neither the cache nor the page cache.
            self.crash(Crash::PowerCut);
        }
        self.check_backing()
    }

    /// Runs the clients.
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
        if self.plan.has(Trouble::Leaving) {
            self.start_leavers(engine);
        }
        if self.plan.policies {
            let (shared, engine) = (self.shared.clone(), engine.clone());
            let policies = Policies { shared, engine, rng: self.rng.fork() };
            self.shared.executor.start("policies", Box::pin(policies.run()));
        }
        self.start_losing(engine);
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

    /// Starts the tasks that remove devices. Two of these tasks may hinder each other.
    fn start_leavers(&mut self, engine: &Arc<Engine>) {
        let dies = self.rng.chance(8000);
        for _ in 0..self.rng.pick(&[1, 1, 1, 2]) {
            let client = Client::new(&self.shared, engine, self.allowed(), self.rng.fork());
            let (victim, rng) = (self.victim().clone(), self.rng.fork());
            let leaver = Leaver { client, victim, dies, rng };
            self.shared.executor.start("leaver", Box::pin(leaver.run()));
        }
    }

    /// Starts the task that hangs a device, loses devices in turn, or fills the log.
    fn start_losing(&mut self, engine: &Arc<Engine>) {
        let client = Client::new(&self.shared, engine, self.allowed(), self.rng.clone());
        if self.plan.has(Trouble::DeviceHang) {
            let (victim, deadline) = (self.victim().clone(), self.plan.deadline);
            let hanger = Hanger { client, victim, deadline, rng: self.rng.fork() };
            self.shared.executor.start("hanger", Box::pin(hanger.run()));
        } else if self.plan.has(Trouble::Turns) {
            let turner = Turner { client, disks: self.disks.clone(), rng: self.rng.fork() };
            self.shared.executor.start("turner", Box::pin(turner.run()));
        } else if self.plan.fills {
            let filling = fill(self.shared.clone(), engine.clone(), self.rng.fork());
            self.shared.executor.start("filler", Box::pin(filling));
        }
    }

    /// Stops cleanly: nothing accepted may be lost.
    pub(crate) fn close(&mut self, engine: &Arc<Engine>) -> Result<(), Stop> {
        let client = Client::new(&self.shared, engine, self.allowed(), self.rng.fork());
        let closed = self.shared.executor.block_on(LIMIT, async move {
            client.sync_everything().await;
            client.engine.close().await
        })?;
        self.shared.tell(|| format!("closed: {closed:?}"));
        match closed {
            Ok(_) => {
                self.stopped = true;
                let mut model = self.shared.model.lock();
                model.open(u64::MAX).into_iter().for_each(|id| model.durable_by(id, engine.last()));
            }
            Err(error) if self.allowed().permits(error) => {}
            Err(error) => self.shared.fail(format!("a clean stop failed: {error}")),
        }
        Ok(())
    }

    /// Crashes: all tasks end, and changes that were not durable may be lost.
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
        if self.shared.model.lock().is_past_log() {
            self.shared.hits.hit(Fault::HoleCut);
        }
        *self.shared.verifier_changed.lock() = false;
        self.shared.model.lock().crash(how == Crash::PowerCut);
        self.shared.objects.lock().reset();
        self.disks.append(&mut self.shared.joined.lock());
    }

    /// Applies the planned faults while the machine is off.
    pub(super) fn between(&mut self) {
        if self.plan.disaster == Some(Disaster::Rot) {
            self.disks.iter().for_each(|disk| disk.rot(20));
            self.shared.hits.hit(Fault::BothRotten);
        }
        if self.plan.disaster == Some(Disaster::AllGone) {
            // A device that was removed from the pool does not come back.
            let joined = |disk: &&Disk| !self.shared.left.lock().contains(&disk.name().to_owned());
            self.disks.iter().filter(joined).for_each(Disk::appear);
        }
        if self.plan.foreign {
            self.swap_names();
        }
        // Only now: a swap passes the victim's contents to another name.
        let victim = self.victim().clone();
        if self.disks.len() < 2 {
            // The contents of the victim are in the backing store as well.
            if self.plan.has(Trouble::Rot) && self.rng.chance(7000) {
                match self.rng.chance(5000) {
                    true => victim.rot_newest_header(),
                    false => victim.rot_newest_frame(),
                }
                let noticed = self.stopped && !self.plan.is_lenient();
                self.headless = noticed.then(|| self.logs_dropped());
            }
            return;
        }
        // A removed victim is gone for good.
        if self.plan.has(Trouble::Leaving) {
            return;
        }
        if self.plan.has(Trouble::LoneLegs) {
            return self.between_lone_legs();
        }
        if self.plan.has(Trouble::Turns) {
            return self.offer_some();
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
            // The device is left out, and offered as a new one.
            victim.vanish();
            let size = victim.size();
            let fresh = Disk::new(&self.shared.executor, "fresh", size, self.rng.fork(), &self.shared.hits);
            self.shared.spares.lock().push(fresh);
            self.shared.hits.hit(Fault::Wiped);
        }
    }

    /// Loses copies of the victim. If the engine reports two copies of everything, another device is lost instead.
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
