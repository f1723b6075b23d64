//! Decides which thread runs next.
//!
//! With equal chances at each step, a thread hardly ever stands still while another finishes something long. So each
//! thread has a rate here. Some threads are thousands of times slower than others, and rates change now and then. A
//! thread goes on for a while before another one is chosen.
//!
//! In most orders, threads also stop at steps drawn at random. A stopped thread stands still until the other threads
//! have made many steps, or until all of them wait. This produces a late thread: it has read a state, and acts after
//! that state has changed completely.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

use shuttle::current::me;
use shuttle::scheduler::{Schedule, Scheduler, Task, TaskId};

/// The rates of two threads differ by at most this power of two.
const SLOWEST: u64 = 14;
/// At each choice of a thread, a new rate is drawn with a chance of one in this number.
const CHANGE: u64 = 64;

/// A stopped thread stands still while all other threads make this number of steps.
const LENGTHS: [u64; 3] = [1 << 6, 1 << 10, FOR_LONG];
/// More steps than an order has, unless threads poll for the thread that stands still.
const FOR_LONG: u64 = 1 << 15;
/// The late client is one of this number of first clients of a scenario.
const LATE: u64 = 2;
/// The late client stops within this number of its first steps.
const REACH: u64 = 100;

/// The scheduler of a range of seeds, one order for each.
#[derive(Debug)]
pub struct Orders {
    seeds: Range<u64>,
    /// The seed of the present order, or of the last one.
    now: Rc<Cell<u64>>,
    random: u64,
    /// A thread goes on with a chance of this number in 256.
    goes_on: u64,
    paces: BTreeMap<usize, u64>,
    /// The rates of two threads differ by at most this power of two.
    slowest: u64,
    stops: Stops,
    step: u64,
}

/// The threads that stand still.
#[derive(Debug, Default)]
struct Stops {
    /// The client of the scenario that goes first for this number of steps, and then stops.
    late: Option<(usize, u64)>,
    /// Each thread stops at one in this number of steps; 0: at none.
    every: u64,
    /// One in this number of operations of devices and of the backing store stands still; 0: none.
    operations: u64,
    /// If all threads stand still, the thread that stopped first goes on last.
    first_is_last: bool,
    /// Tasks that stand still, and the step at which each goes on.
    still: Vec<(TaskId, u64)>,
}

impl Orders {
    /// Makes the scheduler of `seeds`. It makes the choices of a seed identically each time. `now` holds the seed of
    /// the present order.
    pub fn new(seeds: Range<u64>, now: Rc<Cell<u64>>) -> Self {
        let stops = Stops::default();
        Orders { seeds, now, random: 0, goes_on: 0, paces: BTreeMap::new(), slowest: 0, stops, step: 0 }
    }

    /// Begins an order. The seed decides the kind of order: different rates of the threads, one late thread, or stops
    /// at random steps.
    fn begin(&mut self, seed: u64) {
        self.now.set(seed);
        (self.random, self.step) = (seed, 0);
        self.paces.clear();
        CLIENTS.with_borrow_mut(Vec::clear);
        STANDS.set(false);
        OTHERS.set(false);
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

    /// Returns the next number of the generator splitmix64.
    fn draw(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.random ^ self.random >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.draw() % bound
    }

    /// Returns the rate of a thread, which is drawn at the first call. The chance that the scheduler chooses a thread
    /// is proportional to its rate.
    fn pace(&mut self, task: usize) -> u64 {
        if let Some(pace) = self.paces.get(&task) {
            return *pace;
        }
        let pace = 1 << self.below(self.slowest + 1);
        self.paces.insert(task, pace);
        pace
    }

    /// Lets the running thread stop here, if this order says so.
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

    /// Returns the tasks that do not stand still. If there are none, one of the stopped tasks goes on: the task that
    /// stopped first, or the task that stopped last, which makes the first one very late.
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
    /// The clients of this order, as the scenario lists them. An entry is `None` until the client's thread runs. All of
    /// them run on one thread of the machine.
    static CLIENTS: RefCell<Vec<Option<TaskId>>> = const { RefCell::new(Vec::new()) };
    /// True while the running thread is about to carry out an operation, and may stand still before it.
    static STANDS: Cell<bool> = const { Cell::new(false) };
    /// True while the main thread waits for all other threads.
    static OTHERS: Cell<bool> = const { Cell::new(false) };
}

/// Returns the number of the client whose thread is about to begin.
pub fn next_client() -> usize {
    CLIENTS.with_borrow_mut(|clients| {
        clients.push(None);
        clients.len() - 1
    })
}

/// Notes that the calling thread is the thread of client `n`.
pub fn enter_client(n: usize) {
    CLIENTS.with_borrow_mut(|clients| clients[n] = Some(me()));
}

/// Lets the calling thread stand still before it carries out an operation of a device or of the backing store.
pub async fn may_stand_still() {
    STANDS.set(true);
    shuttle::future::yield_now().await;
    STANDS.set(false);
}

fn nth_client(n: usize) -> Option<TaskId> {
    CLIENTS.with_borrow(|clients| clients.get(n).copied().flatten())
}

/// Lets every thread except the main thread run until it waits. The main thread calls it.
pub fn run_others() {
    OTHERS.set(true);
    shuttle::thread::yield_now();
    OTHERS.set(false);
}

impl Scheduler for Orders {
    fn new_execution(&mut self) -> Option<Schedule> {
        let seed = self.seeds.next()?;
        self.begin(seed);
        Some(Schedule::new(seed))
    }

    fn next_task(&mut self, runnable: &[&Task], current: Option<TaskId>, yields: bool) -> Option<TaskId> {
        self.step += 1;
        if OTHERS.get() {
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
