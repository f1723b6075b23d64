//! Decides which steps run side by side.
//!
//! A step that computes uses all processors, a step that waits for a server or a guest hardly one. So the two kinds run
//! side by side: a prompt step has priority, and background steps get the time that it leaves.

use super::Step;

/// The way in which a step shares the machine with other steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Share {
    /// The step is correct at any speed. It runs at a low priority, beside at most one step of each kind per processor.
    Background,
    /// The step has clients that wait for real servers. It runs at normal priority, and no other prompt step runs.
    Prompt,
    /// The step measures. No other step runs.
    Alone,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Waiting,
    Running,
    Ended,
}

/// The steps of a run and how far each has come. Steps begin in their order, except that a step which must not begin
/// yet lets later ones pass.
pub(super) struct Schedule<'a> {
    steps: &'a [Step],
    states: Vec<State>,
    /// Most background steps at a time.
    processors: usize,
}

impl<'a> Schedule<'a> {
    pub(super) fn new(steps: &'a [Step], processors: usize) -> Self {
        Self { steps, states: vec![State::Waiting; steps.len()], processors: processors.max(1) }
    }

    /// Begins the next step and returns its index. `None` means that a running step has to end first, or that every
    /// step has begun.
    pub(super) fn begin(&mut self) -> Option<usize> {
        let next = (0..self.steps.len()).find(|&step| self.may_begin(step))?;
        self.states[next] = State::Running;
        Some(next)
    }

    pub(super) fn end(&mut self, step: usize) {
        self.states[step] = State::Ended;
    }

    /// Returns true if the step waits, the steps before it have ended, and its share of the machine is free.
    fn may_begin(&self, step: usize) -> bool {
        if self.states[step] != State::Waiting {
            return false;
        }
        let Step { share, after, .. } = &self.steps[step];
        // A step that is not part of this run is not waited for.
        let is_ready = self
            .steps
            .iter()
            .zip(&self.states)
            .all(|(other, state)| *state == State::Ended || !after.contains(&other.name));
        is_ready
            && self.running(Share::Alone) == 0
            && match share {
                Share::Background => self.running(Share::Background) < self.processors,
                Share::Prompt => self.running(Share::Prompt) == 0,
                Share::Alone => !self.states.contains(&State::Running),
            }
    }

    /// Returns the number of running steps of this kind.
    fn running(&self, share: Share) -> usize {
        let steps = self.steps.iter().zip(&self.states);
        steps.filter(|(step, state)| step.share == share && **state == State::Running).count()
    }
}

#[cfg(test)]
mod tests {
    use super::{Schedule, Share::*};
    use crate::{
        ci::{Step, step},
        suites::Counts,
    };

    fn of(name: &'static str) -> Step {
        step(name, "", || Ok(Counts::default()))
    }

    fn begin(schedule: &mut Schedule<'_>) -> Vec<usize> {
        std::iter::from_fn(|| schedule.begin()).collect()
    }

    #[test]
    fn one_prompt_step_runs_beside_a_background_step_for_each_processor() {
        let steps = ["a", "b", "c", "d", "e"].map(of);
        let [a, b, c, d, e] = steps;
        let steps = [a.shared(Prompt), b.shared(Prompt), c, d, e];
        let mut schedule = Schedule::new(&steps, 2);
        assert_eq!(begin(&mut schedule), [0, 2, 3]);
        schedule.end(3);
        assert_eq!(begin(&mut schedule), [4]);
        schedule.end(0);
        assert_eq!(begin(&mut schedule), [1]);
    }

    #[test]
    fn a_step_waits_for_those_that_it_needs_and_lets_others_pass() {
        let steps = [of("suite").after(&["release", "gone"]), of("release"), of("sim")];
        let mut schedule = Schedule::new(&steps, 1);
        assert_eq!(begin(&mut schedule), [1]);
        schedule.end(1);
        assert_eq!(begin(&mut schedule), [0]);
    }

    #[test]
    fn a_step_that_measures_is_alone() {
        let steps = [of("a"), of("array").shared(Alone), of("b")];
        let mut schedule = Schedule::new(&steps, 2);
        assert_eq!(begin(&mut schedule), [0, 2]);
        schedule.end(0);
        assert!(begin(&mut schedule).is_empty());
        schedule.end(2);
        assert_eq!(begin(&mut schedule), [1]);
        schedule.end(1);
        assert!(begin(&mut schedule).is_empty());
    }
}
