//! Questions that may hang, such as one to a file system whose disks do not answer: whoever asks goes on with an older answer.

use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_common::lock::{Condvar, Mutex};

/// How long an answer is waited for.
const PATIENCE: Duration = Duration::from_millis(250);

/// A question that is asked in a thread of its own, by one thread at a time.
#[derive(Debug)]
pub(crate) struct Asked<T> {
    state: Mutex<State<T>>,
    answered: Condvar,
}

#[derive(Debug)]
struct State<T> {
    /// Since when an answer is waited for.
    since: Option<Instant>,
    /// The answer, and when it was asked for.
    last: Option<(Instant, T)>,
}

/// What is known of an answer.
#[derive(Debug)]
pub(crate) struct Known<T> {
    /// The newest answer; `None` if there was none yet.
    pub(crate) answer: Option<T>,
    /// How long a question has been without an answer; zero if it was answered in time.
    pub(crate) late: Duration,
}

impl<T> Default for Asked<T> {
    fn default() -> Self {
        Asked { state: Mutex::new(State { since: None, last: None }), answered: Condvar::default() }
    }
}

impl<T: Clone + Send + 'static> Asked<T> {
    /// Asks, unless an answer is younger than `young` or a question is under way; waits a quarter of a second for the answer.
    pub(crate) fn ask(
        self: &Arc<Self>,
        young: Duration,
        question: impl FnOnce() -> T + Send + 'static,
    ) -> Known<T> {
        let mut state = self.state.lock();
        let is_young = state.last.as_ref().is_some_and(|(at, _)| at.elapsed() < young);
        if !is_young && state.since.is_none() {
            let (this, now) = (self.clone(), Instant::now());
            let asking = move || {
                let answer = question();
                let mut state = this.state.lock();
                (state.since, state.last) = (None, Some((now, answer)));
                drop(state);
                this.answered.notify_all();
            };
            // Without a thread the last answer has to do.
            if std::thread::Builder::new().name("forebay-ask".into()).spawn(asking).is_ok() {
                state.since = Some(now);
            }
        }
        if !is_young {
            state = self.answered.wait_while_for(state, PATIENCE, |state| state.since.is_some());
        }
        let late = state.since.map_or(Duration::ZERO, |since| since.elapsed());
        Known { answer: state.last.as_ref().map(|(_, answer)| answer.clone()), late }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn a_question_that_hangs_is_asked_once_and_nobody_waits_for_it() {
        let asked = Arc::new(Asked::default());
        assert_eq!(asked.ask(Duration::ZERO, || 1).answer, Some(1));
        let (go_on, hanging) = channel::<()>();
        let question = move || hanging.recv().map_or(0, |()| 2);
        let known = asked.ask(Duration::ZERO, question);
        assert!(known.answer == Some(1) && known.late > Duration::ZERO, "{known:?}");
        let known = asked.ask(Duration::ZERO, || panic!("it is asked already"));
        assert!(known.answer == Some(1) && known.late > Duration::ZERO, "{known:?}");
        go_on.send(()).unwrap();
        while asked.ask(Duration::MAX, || 3).answer != Some(2) {
            std::thread::yield_now();
        }
        assert_eq!(asked.ask(Duration::ZERO, || 4).answer, Some(4));
    }
}
