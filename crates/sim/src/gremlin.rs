//! The task that injects faults while the engine runs. Hours without faults and hours with faults take turns.

use std::sync::Arc;
use std::time::Duration;

use forebay_engine::io::Clock as _;

use crate::backing::{self, Stuck};
use crate::client::Shared;
use crate::disk::{self, Disk};
use crate::hits::Fault;
use crate::plan::{Disaster, Plan, Trouble};
use crate::rng::Rng;

/// More free space than any world needs, in bytes.
pub const PLENTY: u64 = 1 << 30;

/// The state of the task.
pub struct Gremlin {
    /// The world.
    pub shared: Arc<Shared>,
    /// The device that the task may harm.
    pub victim: Disk,
    /// Every device.
    pub disks: Vec<Disk>,
    /// The faults that the task may inject.
    pub plan: Plan,
    /// The source of the task's choices.
    pub rng: Rng,
}

impl Gremlin {
    /// Runs for ever.
    pub async fn run(mut self) {
        // Some faults come with the first operation, other faults after much work.
        let longest = self.rng.pick(&[1, 20, 500, 5000]) * Duration::from_millis(1);
        let mut bad = self.rng.chance(5000);
        loop {
            if bad {
                self.harm();
            } else {
                self.heal();
            }
            bad = !bad;
            let longest = if bad { longest } else { longest.max(self.plan.longest_stuck()) };
            let rest = self.rng.time(Duration::ZERO, longest);
            self.shared.executor.sleep(rest + Duration::from_micros(10)).await;
        }
    }

    /// Begins an hour with faults: sets the fault rates of a device and of the backing store, and lets time jump or
    /// space run out if the plan says so.
    fn harm(&mut self) {
        self.victim.set_rates(self.plan.disk_rates(&mut self.rng));
        let rates = self.plan.backing_rates(&mut self.rng);
        if self.plan.volumes > 1 || self.plan.has(Trouble::Stuck) {
            self.harm_one(rates);
        } else {
            self.shared.store.set_rates(rates);
        }
        if self.plan.disaster == Some(Disaster::AllGone) && self.rng.chance(3000) {
            self.disks.iter().for_each(Disk::vanish);
            self.shared.hits.hit(Fault::AllGone);
        }
        if self.plan.has(Trouble::NoSpace) {
            let free = self.rng.below(64 << 10);
            self.shared.store.set_free(free);
        }
        if self.plan.has(Trouble::ClockJump) && self.rng.chance(1000) {
            let jump = self.rng.time(Duration::ZERO, Duration::from_secs(3600));
            self.shared.executor.jump(jump);
            self.shared.hits.hit(Fault::ClockJump);
        }
        self.shared.tell(|| "a bad hour begins".to_owned());
    }

    /// Makes one volume misbehave, or all of them.
    fn harm_one(&mut self, rates: backing::Rates) {
        let stuck = [None, Some(Stuck::Write), Some(Stuck::Sync), Some(Stuck::Truncate)];
        let stuck = if self.plan.has(Trouble::Stuck) { self.rng.pick(&stuck) } else { None };
        let all = stuck.is_none() && self.rng.chance(3000);
        let one = self.rng.index(self.plan.volumes);
        for volume in (0..self.plan.volumes).filter(|volume| all || *volume == one) {
            self.shared.store.set_rates_of(volume, backing::Rates { stuck, ..rates.clone() });
        }
    }

    /// Begins an hour without faults: the victim and the backing store work again.
    fn heal(&mut self) {
        heal(&self.shared, &self.victim);
        self.shared.tell(|| "a good hour begins".to_owned());
    }
}

/// Ends all faults from now on.
pub fn heal(shared: &Shared, victim: &Disk) {
    victim.set_rates(disk::Rates::default());
    shared.store.set_rates(backing::Rates::default());
    shared.store.set_free(PLENTY);
}
