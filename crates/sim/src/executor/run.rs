//! The loop of the executor: which task or event is next.

use std::cmp::Reverse;
use std::sync::Arc;
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use super::event::Action;
use super::{Executor, Shared, Stop};

/// Polls within one `run`. If there are more, the engine counts as spinning.
const POLLS: u64 = 20_000_000;

enum Choice {
    Task(u64),
    Event(Action),
    Nothing,
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

impl Executor {
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

    /// Takes the next task or event. Ready tasks come before events, except that in 3 % of the calls an event within
    /// the next 50 ms overtakes them.
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

    /// Runs a task until it waits or ends. No lock is held meanwhile, since the task may start and wake tasks.
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
