//! A single-threaded executor in virtual time. The seed alone decides which ready task runs next and how long each
//! operation takes. So a run can be repeated step by step.
//!
//! A *step* is the beginning or the completion of one device or backing operation. A crash is planned as a step's
//! number: from that step on, no operation begins or completes.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use forebay_common::lock::Mutex;
use forebay_engine::io::{Clock, Io, Spawn};

use crate::rng::{Rng, mix};

mod event;
mod promise;
mod run;
mod steps;
#[cfg(test)]
mod tests;

use event::Event;

pub use promise::{Completion, Promise, promise};

/// The reason for which the executor returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The awaited condition is true.
    Done,
    /// The planned step was reached.
    Crashed,
    /// No task is ready, and none ever will be: a deadlock.
    Idle,
    /// Too much virtual time or too many polls: a livelock.
    Stuck,
}

/// The executor. Clones share their state.
#[derive(Clone)]
pub struct Executor(Arc<Shared>);

struct Shared {
    state: Mutex<State>,
    /// Not part of `state`, since tasks are woken while the state is locked.
    ready: Mutex<Vec<u64>>,
}

struct State {
    now: Duration,
    rng: Rng,
    tasks: BTreeMap<u64, Task>,
    events: BinaryHeap<Reverse<Event>>,
    next: u64,
    steps: u64,
    /// Steps that changed the durable state, if they are recorded.
    marks: Option<Vec<u64>>,
    crash_at: Option<u64>,
    crashed: bool,
    digest: u64,
    polls: u64,
    jumped: Duration,
    callers_busy: bool,
}

struct Task {
    name: &'static str,
    polls: u64,
    run: Io<()>,
}

/// The time that callers take before they run a task that the engine gave them, see [`Executor::keep_callers_busy`].
pub const BUSY: Duration = Duration::from_secs(100);

impl Executor {
    /// Makes an executor that draws every choice from `rng`.
    pub fn new(rng: Rng) -> Self {
        Executor(Arc::new(Shared {
            state: Mutex::new(State {
                now: Duration::from_secs(1),
                rng,
                tasks: BTreeMap::new(),
                events: BinaryHeap::new(),
                next: 0,
                steps: 0,
                marks: None,
                crash_at: None,
                crashed: false,
                digest: 0,
                polls: 0,
                jumped: Duration::ZERO,
                callers_busy: false,
            }),
            ready: Mutex::new(Vec::new()),
        }))
    }

    /// Lets every caller from now on accept any task from the engine ([`Spawn::here`]), and do something else first.
    pub fn keep_callers_busy(&self) {
        self.0.state.lock().callers_busy = true;
    }

    /// Returns the virtual time.
    pub fn time(&self) -> Duration {
        self.0.state.lock().now
    }

    /// Returns the number of steps so far.
    pub fn steps(&self) -> u64 {
        self.0.state.lock().steps
    }

    /// Returns a hash of everything that has happened so far.
    pub fn digest(&self) -> u64 {
        self.0.state.lock().digest
    }

    /// Adds `value` to the digest.
    pub fn note(&self, value: u64) {
        let mut state = self.0.state.lock();
        let time = state.now.as_nanos() as u64;
        state.digest = mix(state.digest ^ mix(value) ^ time.rotate_left(32)).wrapping_add(1);
    }

    /// Ends every task and forgets every operation in flight. The executor stays usable.
    pub fn reset(&self) {
        loop {
            // Tasks are dropped one by one, with the state unlocked: a dropped task may wake other tasks or start
            // operations.
            let (tasks, events) = {
                let mut state = self.0.state.lock();
                (std::mem::take(&mut state.tasks), std::mem::take(&mut state.events))
            };
            if tasks.is_empty() && events.is_empty() {
                break;
            }
            drop(tasks);
            drop(events);
        }
        self.0.ready.lock().clear();
        let mut state = self.0.state.lock();
        state.crashed = false;
        state.crash_at = None;
    }

    /// Returns a time drawn from the seed.
    pub fn latency(&self, low: Duration, high: Duration) -> Duration {
        self.0.state.lock().rng.time(low, high)
    }

    /// Runs `action` after `delay`, and gives its result to the future.
    pub fn after<T: Send + 'static>(
        &self,
        delay: Duration,
        action: impl FnOnce() -> Option<T> + Send + 'static,
    ) -> Io<T> {
        let (promise, completion) = promise();
        let action = Box::new(move || {
            // Without a result, the machine crashed at this very step, and no task will ever learn of the operation.
            if let Some(value) = action() {
                promise.keep(value);
            }
        });
        let mut state = self.0.state.lock();
        let (time, order) = (state.now + delay, state.rng.draw());
        state.events.push(Reverse(Event { time, order, action }));
        Box::pin(completion)
    }

    /// Returns a future that never ends: an operation that began after the crash.
    pub fn never<T: Send + 'static>(&self) -> Io<T> {
        Box::pin(std::future::pending())
    }

    /// Lets time pass at once, as if the machine had been suspended.
    pub fn jump(&self, time: Duration) {
        let mut state = self.0.state.lock();
        state.now += time;
        state.jumped += time;
    }

    /// Returns the tasks and the number of runs of each, to show where a hanging engine is stuck.
    pub fn busiest(&self) -> String {
        let state = self.0.state.lock();
        let mut tasks: Vec<_> = state.tasks.values().map(|task| (task.polls, task.name)).collect();
        tasks.sort_unstable();
        tasks.iter().rev().take(8).map(|(polls, name)| format!(" {name} ({polls} times)")).collect()
    }

    /// Runs `task` beside the other tasks. `name` is for people.
    pub fn start(&self, name: &'static str, task: Io<()>) {
        let id = {
            let mut state = self.0.state.lock();
            state.next += 1;
            let id = state.next;
            state.tasks.insert(id, Task { name, polls: 0, run: task });
            id
        };
        self.0.ready.lock().push(id);
    }

    /// Runs all tasks until `future` is done. An `Err` holds the reason why it never will be. Gives up after `limit` of
    /// virtual time.
    pub fn block_on<T: Send + 'static>(
        &self,
        limit: Duration,
        future: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, Stop> {
        let slot = Arc::new(Mutex::new(None));
        let theirs = slot.clone();
        self.start(
            "main",
            Box::pin(async move {
                let value = future.await;
                *theirs.lock() = Some(value);
            }),
        );
        match self.run(limit, || slot.lock().is_some()) {
            Stop::Done => slot.lock().take().ok_or(Stop::Idle),
            stop => Err(stop),
        }
    }
}

impl Clock for Executor {
    fn now(&self) -> Duration {
        self.time()
    }

    fn sleep(&self, time: Duration) -> Io<()> {
        self.after(time, || Some(()))
    }
}

impl Spawn for Executor {
    fn spawn(&self, name: &'static str, task: Io<()>) {
        self.start(name, task);
    }

    /// Gives the task to some of the callers, since only some can run it themselves.
    fn here(&self, task: Io<()>) -> Option<Io<()>> {
        let (place, busy) = {
            let mut state = self.0.state.lock();
            (state.rng.chance(5_000), state.callers_busy)
        };
        if busy {
            let executor = self.clone();
            let late = async move {
                executor.sleep(BUSY).await;
                task.await;
            };
            self.start("caller", Box::pin(late));
        } else if place {
            self.start("caller", task);
        } else {
            return Some(task);
        }
        None
    }
}
