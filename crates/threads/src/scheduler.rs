//! Which thread runs next.
//!
//! A choice with equal chances at each step hardly ever lets one thread stand still while another does something long. Here
//! each thread has a pace: some are thousands of times slower than others, and paces change now and then. A thread goes on
//! for a while before another one is chosen.

use std::collections::BTreeMap;

use shuttle::scheduler::{Schedule, Scheduler, Task, TaskId};

/// Paces differ by up to this power of two.
const SLOWEST: u64 = 14;
/// A thread's pace is drawn anew at one of so many choices of it.
const CHANGE: u64 = 64;

/// The scheduler of one seed.
#[derive(Debug)]
pub struct Paces {
    seed: u64,
    random: u64,
    started: bool,
    /// A thread goes on with a chance of this many in 256.
    goes_on: u64,
    paces: BTreeMap<usize, u64>,
}

impl Paces {
    /// The scheduler of `seed`: the same choices each time.
    pub fn new(seed: u64) -> Self {
        let mut new = Paces { seed, random: seed, started: false, goes_on: 0, paces: BTreeMap::new() };
        new.goes_on = [128, 224, 248, 254][new.below(4) as usize];
        new
    }

    /// splitmix64.
    fn draw(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.random ^ self.random >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.draw() % bound
    }

    fn pace(&mut self, task: usize) -> u64 {
        if let Some(pace) = self.paces.get(&task) {
            return *pace;
        }
        let pace = 1 << self.below(SLOWEST + 1);
        self.paces.insert(task, pace);
        pace
    }
}

impl Scheduler for Paces {
    fn new_execution(&mut self) -> Option<Schedule> {
        (!std::mem::replace(&mut self.started, true)).then(|| Schedule::new(self.seed))
    }

    fn next_task(&mut self, runnable: &[&Task], current: Option<TaskId>, yields: bool) -> Option<TaskId> {
        let current = current.filter(|current| runnable.iter().any(|task| task.id() == *current));
        if let Some(current) = current
            && !yields
            && self.below(256) < self.goes_on
        {
            return Some(current);
        }
        let paces: Vec<_> = runnable.iter().map(|task| self.pace(task.id().into())).collect();
        let mut left = self.below(paces.iter().sum());
        let mut chosen = runnable.first()?.id();
        for (task, pace) in runnable.iter().zip(paces) {
            chosen = task.id();
            match left.checked_sub(pace) {
                Some(rest) => left = rest,
                None => break,
            }
        }
        if self.below(CHANGE) == 0 {
            self.paces.remove(&chosen.into());
        }
        Some(chosen)
    }

    fn next_u64(&mut self) -> u64 {
        self.draw()
    }
}
