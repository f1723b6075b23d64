//! Questions that may hang, such as one to a file system whose disks do not answer. The asking thread goes on without
//! the answer.

use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_common::lock::{Condvar, Mutex};

/// The time to wait for an answer for which an older one can stand in.
const PATIENCE: Duration = Duration::from_millis(250);

/// A question that is asked in a thread of its own, by one thread at a time.
#[derive(Debug)]
pub struct Question<T> {
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

/// The state of an answer.
#[derive(Debug)]
pub struct Answer<T> {
    /// The newest answer; `None` if there was none yet.
    pub answer: Option<T>,
    /// The time that a question has been without an answer; zero if it was answered in time.
    pub late: Duration,
}

impl<T> Default for Question<T> {
    fn default() -> Self {
        Question { state: Mutex::new(State { since: None, last: None }), answered: Condvar::default() }
    }
}

impl<T: Clone + Send + 'static> Question<T> {
    /// Asks, unless an answer is younger than `young` or a question is in progress. Waits for the answer for at most a
    /// quarter of a second from the time of the question.
    pub fn ask(
        self: &Arc<Self>,
        young: Duration,
        question: impl FnOnce() -> T + Send + 'static,
    ) -> Answer<T> {
        self.begin(young, question);
        self.known()
    }

    /// Asks, unless an answer is younger than `young` or a question is in progress. Waits for nothing. Returns the time
    /// of the question that it asked, if it asked one.
    pub fn begin(
        self: &Arc<Self>,
        young: Duration,
        question: impl FnOnce() -> T + Send + 'static,
    ) -> Option<Instant> {
        let mut state = self.state.lock();
        let is_young = state.last.as_ref().is_some_and(|(at, _)| at.elapsed() < young);
        if is_young || state.since.is_some() {
            return None;
        }
        let (this, now) = (self.clone(), Instant::now());
        let asking = move || {
            let answer = question();
            let mut state = this.state.lock();
            (state.since, state.last) = (None, Some((now, answer)));
            drop(state);
            this.answered.notify_all();
        };
        // Without a thread the last answer has to do.
        std::thread::Builder::new().name("forebay-ask".into()).spawn(asking).ok()?;
        state.since = Some(now);
        Some(now)
    }

    /// Waits until a question in progress has had a quarter of a second, then returns the last answer.
    pub fn known(&self) -> Answer<T> {
        let state = self.state.lock();
        let waited = state.since.map_or(PATIENCE, |since| since.elapsed());
        let left = PATIENCE.saturating_sub(waited);
        let state = self.answered.wait_while_for(state, left, |state| state.since.is_some());
        let late = state.since.map_or(Duration::ZERO, |since| since.elapsed());
        Answer { answer: state.last.as_ref().map(|(_, answer)| answer.clone()), late }
    }

    /// Returns the last answer, and waits for nothing.
    pub fn last(&self) -> Option<T> {
        self.state.lock().last.as_ref().map(|(_, answer)| answer.clone())
    }

    /// Asks, unless a question was asked at `from` or later. Lets an earlier question end before that. Waits until each
    /// of the two questions has had `patience`.
    pub fn ask_since(
        self: &Arc<Self>,
        from: Instant,
        patience: Duration,
        question: impl FnOnce() -> T + Clone + Send + 'static,
    ) {
        // The second round asks after an earlier question has ended.
        for _ in 0..2 {
            self.begin(from.elapsed(), question.clone());
            let state = self.state.lock();
            let waited = state.since.map_or(patience, |since| since.elapsed());
            let left = patience.saturating_sub(waited);
            drop(self.answered.wait_while_for(state, left, |state| state.since.is_some()));
        }
    }

    /// Asks, and returns the answer to this question only. Returns `None` if an earlier question is in progress, or if
    /// there is no answer within `patience`.
    pub fn anew(
        self: &Arc<Self>,
        patience: Duration,
        question: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let asked = self.begin(Duration::ZERO, question)?;
        let state = self.state.lock();
        let state = self.answered.wait_while_for(state, patience, |state| state.since == Some(asked));
        state.last.as_ref().filter(|(at, _)| *at == asked).map(|(_, answer)| answer.clone())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn a_question_that_hangs_is_asked_once_and_nobody_waits_for_it() {
        let asked = Arc::new(Question::default());
        assert_eq!(asked.ask(Duration::ZERO, || 1).answer, Some(1));
        let (go_on, hanging) = channel::<()>();
        let question = move || hanging.recv().map_or(0, |()| 2);
        let known = asked.ask(Duration::ZERO, question);
        assert!(known.answer == Some(1) && known.late > Duration::ZERO, "{known:?}");
        let known = asked.ask(Duration::ZERO, || panic!("it is asked already"));
        assert!(known.answer == Some(1) && known.late > Duration::ZERO, "{known:?}");
        assert_eq!(asked.anew(Duration::MAX, || panic!("it is asked already")), None);
        go_on.send(()).unwrap();
        while asked.ask(Duration::MAX, || 3).answer != Some(2) {
            std::thread::yield_now();
        }
        assert_eq!(asked.ask(Duration::ZERO, || 4).answer, Some(4));
    }

    #[test]
    fn a_question_follows_an_earlier_one_that_ends_and_is_left_out_if_that_one_hangs() {
        let asked = Arc::new(Question::default());
        let (go_on, hanging) = channel::<()>();
        asked.begin(Duration::ZERO, move || hanging.recv().map_or(0, |()| 1));
        asked.ask_since(Instant::now(), Duration::ZERO, || panic!("an earlier question hangs"));
        assert_eq!(asked.last(), None);
        go_on.send(()).unwrap();
        let from = Instant::now();
        asked.ask_since(from, Duration::from_secs(60), || 2);
        assert_eq!(asked.last(), Some(2));
        asked.ask_since(from, Duration::from_secs(60), || panic!("a question was asked since"));
    }

    #[test]
    fn an_answer_to_an_earlier_question_is_no_answer_to_a_new_one() {
        let asked = Arc::new(Question::default());
        assert_eq!(asked.anew(Duration::from_secs(60), || 1), Some(1));
        let (go_on, hanging) = channel::<()>();
        assert_eq!(asked.anew(Duration::ZERO, move || hanging.recv().map_or(0, |()| 2)), None);
        go_on.send(()).unwrap();
        while asked.known().answer != Some(2) {
            std::thread::yield_now();
        }
        assert_eq!(asked.anew(Duration::from_secs(60), || 3), Some(3));
    }
}
