//! Which thread runs next.
//!
//! A choice with equal chances at each step hardly ever lets one thread stand still while another does something long. Here
//! each thread has a pace: some are thousands of times slower than others, and paces change now and then. A thread goes on
//! for a while before another one is chosen.
//!
//! In most orders threads also stop at steps drawn at random, and stand still until the others have made many steps or all
//! wait. That is what a late thread is made of: one that has looked, and acts when everything has changed meanwhile.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

use shuttle::current::me;
use shuttle::scheduler::{Schedule, Scheduler, Task, TaskId};

/// Paces differ by up to this power of two.
const SLOWEST: u64 = 14;
/// A thread's pace is drawn anew at one of so many choices of it.
const CHANGE: u64 = 64;

/// A thread that stops stands still for so many steps of all others.
const LENGTHS: [u64; 3] = [1 << 6, 1 << 10, FOR_LONG];
/// More steps than an order has, unless threads wait for the one that stands still by looking again and again.
const FOR_LONG: u64 = 1 << 15;
/// One of so many first clients of a scenario is late.
const LATE: u64 = 2;
/// The late client stops at one of so many first steps.
const REACH: u64 = 100;

/// The scheduler of some seeds, one order each.
#[derive(Debug)]
pub struct Orders {
    seeds: Range<u64>,
    /// The seed of the order that runs, or ran last.
    now: Rc<Cell<u64>>,
    random: u64,
    /// A thread goes on with a chance of this many in 256.
    goes_on: u64,
    paces: BTreeMap<usize, u64>,
    /// Paces differ by up to this power of two.
    slowest: u64,
    stops: Stops,
    step: u64,
}

/// Threads that stand still.
#[derive(Debug, Default)]
struct Stops {
    /// This client of the scenario goes first up to so many steps, and then stops.
    late: Option<(usize, u64)>,
    /// Any thread stops at one of so many steps; 0: none.
    every: u64,
    /// One in so many operations of devices and of the backing store stands still; 0: none.
    operations: u64,
    /// Where all stand still, those that stopped first go on last.
    first_is_last: bool,
    /// Tasks that stand still, and until which step.
    still: Vec<(TaskId, u64)>,
}

impl Orders {
    /// The scheduler of `seeds`: the same choices each time. `now` tells which one it is at.
    pub fn new(seeds: Range<u64>, now: Rc<Cell<u64>>) -> Self {
        let stops = Stops::default();
        Orders { seeds, now, random: 0, goes_on: 0, paces: BTreeMap::new(), slowest: 0, stops, step: 0 }
    }

    fn begin(&mut self, seed: u64) {
        self.now.set(seed);
        (self.random, self.step) = (seed, 0);
        self.paces.clear();
        CLIENTS.with_borrow_mut(Vec::clear);
        STANDS.set(false);
        SETTLES.set(false);
        self.goes_on = [128, 224, 248, 254][self.below(4) as usize];
        let (kind, n) = (seed % 4, seed / 4 * 2 + seed % 2);
        let late = ((n % LATE) as usize, n / LATE % REACH);
        self.slowest = if kind == 1 || kind == 2 { 0 } else { SLOWEST };
        self.stops = Stops {
            late: Some(late).filter(|_| kind == 1 || kind == 2),
            every: if kind == 3 && seed % 8 == 3 { 256 } else { 0 },
            operations: if kind == 3 && seed % 8 == 7 { 8 } else { 0 },
            first_is_last: self.below(2) == 0,
            still: Vec::new(),
        };
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
        let pace = 1 << self.below(self.slowest + 1);
        self.paces.insert(task, pace);
        pace
    }

    /// The thread that runs may stop here.
    fn may_stop(&mut self, current: TaskId) {
        let late = self.stops.late.as_mut().filter(|(client, _)| nth_client(*client) == Some(current));
        let steps = if let Some((_, left)) = late {
            if *left > 0 {
                *left -= 1;
                return;
            }
            self.stops.late = None;
            FOR_LONG
        } else if STANDS.take() && self.stops.operations > 0 && self.below(self.stops.operations) == 0 {
            FOR_LONG
        } else if self.stops.every > 0 && self.below(self.stops.every) == 0 {
            LENGTHS[self.below(LENGTHS.len() as u64) as usize]
        } else {
            return;
        };
        self.stops.still.push((current, self.step + steps));
    }

    /// Returns the tasks that do not stand still. If there are none, the task that stopped first goes on, or the one that stopped
    /// last, so that the first is very late.
    fn awake<'a>(&mut self, runnable: &[&'a Task]) -> Vec<&'a Task> {
        let step = self.step;
        let Stops { still, first_is_last, .. } = &mut self.stops;
        still.retain(|(_, until)| *until > step);
        let stands =
            |task: &Task, still: &[(TaskId, u64)]| still.iter().any(|(other, _)| *other == task.id());
        loop {
            let awake: Vec<_> = runnable.iter().copied().filter(|task| !stands(task, still)).collect();
            if !awake.is_empty() || still.is_empty() {
                return awake;
            }
            still.remove(if *first_is_last { still.len() - 1 } else { 0 });
        }
    }
}

thread_local! {
    /// The clients of this order, as the scenario lists them; `None` until its thread runs. All run on one thread of the machine.
    static CLIENTS: RefCell<Vec<Option<TaskId>>> = const { RefCell::new(Vec::new()) };
    /// The thread that runs carries out an operation, and may stand still before that.
    static STANDS: Cell<bool> = const { Cell::new(false) };
    /// The main thread waits for all others.
    static SETTLES: Cell<bool> = const { Cell::new(false) };
}

/// Returns the number of the client whose thread is about to begin.
pub fn next_client() -> usize {
    CLIENTS.with_borrow_mut(|clients| {
        clients.push(None);
        clients.len() - 1
    })
}

/// The calling thread is that of client `n`.
pub fn enter_client(n: usize) {
    CLIENTS.with_borrow_mut(|clients| clients[n] = Some(me()));
}

/// Called by the thread that carries out an operation of a device or of the backing store, in front of it.
pub async fn may_stand_still() {
    STANDS.set(true);
    shuttle::future::yield_now().await;
    STANDS.set(false);
}

fn nth_client(n: usize) -> Option<TaskId> {
    CLIENTS.with_borrow(|clients| clients.get(n).copied().flatten())
}

/// Called by the main thread: lets every other one run until it waits.
pub fn settle() {
    SETTLES.set(true);
    shuttle::thread::yield_now();
    SETTLES.set(false);
}

impl Scheduler for Orders {
    fn new_execution(&mut self) -> Option<Schedule> {
        let seed = self.seeds.next()?;
        self.begin(seed);
        Some(Schedule::new(seed))
    }

    fn next_task(&mut self, runnable: &[&Task], current: Option<TaskId>, yields: bool) -> Option<TaskId> {
        self.step += 1;
        if SETTLES.get() {
            let is_main = |task: &Task| usize::from(task.id()) == 0;
            return runnable.iter().find(|task| !is_main(task)).or(runnable.first()).map(|task| task.id());
        }
        if let Some(current) = current {
            self.may_stop(current);
        }
        let awake = self.awake(runnable);
        if let Some((late, _)) = self.stops.late
            && let Some(late) = nth_client(late)
            && awake.iter().any(|task| task.id() == late)
            && !(yields && current == Some(late))
        {
            return Some(late);
        }
        let current = current.filter(|current| awake.iter().any(|task| task.id() == *current));
        if let Some(current) = current
            && !yields
            && self.below(256) < self.goes_on
        {
            return Some(current);
        }
        let paces: Vec<_> = awake.iter().map(|task| self.pace(task.id().into())).collect();
        let mut left = self.below(paces.iter().sum());
        let mut chosen = awake.first()?.id();
        for (task, pace) in awake.iter().zip(paces) {
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
