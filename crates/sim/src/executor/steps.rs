//! The count of steps, and the crash that is planned at one of them.

use super::Executor;

impl Executor {
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
}
