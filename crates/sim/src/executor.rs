//! A single-threaded executor in virtual time. The seed alone decides which ready task runs next and how long each
//! operation takes. So a run can be repeated step by step.
//!
//! A *step* is the beginning or the completion of one device or backing operation. A crash is planned as a step's
//! number: from that step on, no operation begins or completes.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::future::Future;
use std::sync::Arc;
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use forebay_common::lock::Mutex;
use forebay_engine::io::{Clock, Io, Spawn};

use crate::rng::{Rng, mix};

mod promise;
#[cfg(test)]
mod tests;

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

type Action = Box<dyn FnOnce() + Send>;

struct Event {
    time: Duration,
    /// Orders events with equal times; drawn from the seed.
    order: u64,
    action: Action,
}

impl PartialEq for Event {
    fn eq(&self, other: &Self) -> bool {
        (self.time, self.order) == (other.time, other.order)
    }
}

impl Eq for Event {}

impl PartialOrd for Event {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Event {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.time, self.order).cmp(&(other.time, other.order))
    }
}

struct TaskWaker {
    shared: Arc<Shared>,
    task: u64,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let mut ready = self.shared.ready.lock();
        if !ready.contains(&self.task) {
            ready.push(self.task);
        }
    }
}

/// Polls within one `run`. If there are more, the engine counts as spinning.
const POLLS: u64 = 20_000_000;
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

    /// Plans a crash `steps` from now, or none.
    pub fn crash_in(&self, steps: Option<u64>) {
        let mut state = self.0.state.lock();
        state.crash_at = steps.map(|more| state.steps + more);
    }

    /// Counts a step. Returns false if the machine has crashed and the step must not happen.
    pub fn step(&self) -> bool {
        let mut state = self.0.state.lock();
        if state.crashed {
            return false;
        }
        state.steps += 1;
        state.crashed = state.crash_at.is_some_and(|at| state.steps >= at);
        !state.crashed
    }

    /// Notes that the last counted step changes the state that a crash leaves.
    pub fn mark(&self) {
        let mut state = self.0.state.lock();
        let step = state.steps;
        if let Some(marks) = &mut state.marks
            && marks.last() != Some(&step)
        {
            marks.push(step);
        }
    }

    /// Records the steps passed to [`Executor::mark`] from now on.
    pub fn record_marks(&self) {
        self.0.state.lock().marks = Some(Vec::new());
    }

    /// Returns the recorded steps, and stops recording.
    pub fn take_marks(&self) -> Vec<u64> {
        self.0.state.lock().marks.take().unwrap_or_default()
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

    /// Runs until `done` returns true, a crash, a deadlock, or `limit` of virtual time.
    pub fn run(&self, limit: Duration, done: impl Fn() -> bool) -> Stop {
        let end = {
            let mut state = self.0.state.lock();
            state.polls = 0;
            state.now - state.jumped + limit
        };
        loop {
            if self.0.state.lock().crashed {
                return Stop::Crashed;
            }
            if done() {
                return Stop::Done;
            }
            match self.choose() {
                Choice::Task(id) => self.poll(id),
                Choice::Event(action) => action(),
                Choice::Nothing => return Stop::Idle,
            }
            let state = self.0.state.lock();
            if state.now - state.jumped > end || state.polls > POLLS {
                return Stop::Stuck;
            }
        }
    }

    fn choose(&self) -> Choice {
        let mut state = self.0.state.lock();
        let mut ready = self.0.ready.lock();
        // Now and then an event overtakes ready tasks: a processor is not infinitely fast.
        let overtake = !ready.is_empty() && state.rng.chance(300);
        if !ready.is_empty() && !overtake {
            let place = state.rng.index(ready.len());
            return Choice::Task(ready.swap_remove(place));
        }
        let due = match state.events.peek() {
            Some(Reverse(event)) => !overtake || event.time < state.now + Duration::from_millis(50),
            None => false,
        };
        if due && let Some(Reverse(event)) = state.events.pop() {
            state.now = state.now.max(event.time);
            return Choice::Event(event.action);
        }
        match ready.pop() {
            Some(id) => Choice::Task(id),
            None => Choice::Nothing,
        }
    }

    fn poll(&self, id: u64) {
        let task = {
            let mut state = self.0.state.lock();
            state.polls += 1;
            state.tasks.remove(&id)
        };
        // A task may have been woken after it ended.
        let Some(mut task) = task else { return };
        let waker = Waker::from(Arc::new(TaskWaker { shared: self.0.clone(), task: id }));
        task.polls += 1;
        if task.run.as_mut().poll(&mut Context::from_waker(&waker)).is_pending() {
            self.0.state.lock().tasks.insert(id, task);
        }
    }
}

enum Choice {
    Task(u64),
    Event(Action),
    Nothing,
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
