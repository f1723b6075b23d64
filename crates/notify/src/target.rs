//! One target: its queue, and the thread that sends its notifications.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_common::lock::{Condvar, Mutex, MutexGuard};
use forebay_config::{Notify, NotifySeverity, format_duration};
use forebay_control::{Event, Severity};

use crate::deliver::{self, Trouble};
use crate::limiter::{Limiter, Notice};
use crate::message::Report;

/// Most notifications that wait for a target. Further events are told in one notification.
const MOST_WAITING: usize = 64;
/// The longest wait without a reason to wake up.
const IDLE: Duration = Duration::from_secs(3600);

/// The attempts for one notification.
#[derive(Debug, Clone, Copy)]
pub struct Policy {
    /// Attempts in total.
    pub attempts: u32,
    /// Time between the first attempt and the second. Each further time is four times as long.
    pub first_delay: Duration,
    /// Time for the last notifications after the end of the server.
    pub last: Duration,
}

impl Default for Policy {
    fn default() -> Self {
        Policy { attempts: 4, first_delay: Duration::from_secs(1), last: Duration::from_secs(2) }
    }
}

/// The parts that all targets share.
pub(crate) struct Shared {
    pub(crate) policy: Policy,
    /// Name of this host.
    pub(crate) host: String,
    /// Sends a report to the server.
    pub(crate) report: Box<dyn Fn(Report) + Send + Sync>,
}

/// A target in service.
pub(crate) struct Target {
    shared: Arc<Shared>,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    settings: Arc<Notify>,
    waiting: VecDeque<Notice>,
    limiter: Limiter,
    /// True if the last notification failed.
    is_failing: bool,
    /// True if no further event comes: what waits is sent, and the thread ends.
    is_last: bool,
    /// True if the target is not configured any more: the thread ends.
    is_removed: bool,
}

impl Target {
    /// Returns a target without waiting events.
    pub(crate) fn new(settings: Notify, shared: &Arc<Shared>) -> Self {
        let state = State {
            settings: Arc::new(settings),
            waiting: VecDeque::new(),
            limiter: Limiter::default(),
            is_failing: false,
            is_last: false,
            is_removed: false,
        };
        Target { shared: shared.clone(), state: Mutex::new(state), changed: Condvar::new() }
    }

    /// Returns the settings in force.
    pub(crate) fn settings(&self) -> Arc<Notify> {
        self.state.lock().settings.clone()
    }

    /// Puts other settings in force. What waits is sent by them.
    pub(crate) fn set(&self, settings: Notify) {
        self.change(|state| state.settings = Arc::new(settings));
    }

    /// Takes an event, unless it is less severe than the target wants. Never waits.
    pub(crate) fn offer(&self, event: &Event) {
        self.change(|state| {
            if event.severity < least(state.settings.severity) {
                return;
            }
            let now = Instant::now();
            if state.waiting.len() >= MOST_WAITING {
                state.limiter.hold(event.clone(), now);
            } else if let Some(event) = state.limiter.offer(event.clone(), now, state.settings.per_minute) {
                state.waiting.push_back(Notice::One(event));
            }
        });
    }

    /// Takes the number of events that were lost on their way here.
    pub(crate) fn miss(&self, count: u64) {
        self.change(|state| state.limiter.miss(count, Instant::now()));
    }

    /// Says that no further event comes.
    pub(crate) fn finish(&self) {
        self.change(|state| state.is_last = true);
    }

    /// Ends the thread without sending what waits.
    pub(crate) fn remove(&self) {
        self.change(|state| state.is_removed = true);
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.lock());
        self.changed.notify_all();
    }

    /// Sends notifications until the end.
    pub(crate) fn run(&self) {
        if let Some(problem) = deliver::check(&self.settings()) {
            self.tell(Severity::Warning, "notify-config", |_| problem);
        }
        while let Some(notice) = self.next() {
            self.deliver(notice);
        }
    }

    /// Waits for the next notification. Returns `None` at the end.
    fn next(&self) -> Option<Notice> {
        let mut state = self.state.lock();
        loop {
            if state.is_removed {
                return None;
            }
            if let Some(notice) = state.waiting.pop_front() {
                return Some(notice);
            }
            let now = Instant::now();
            match state.limiter.due() {
                Some(due) if due <= now || state.is_last => {
                    return Some(Notice::Sum(state.limiter.take(now)));
                }
                None if state.is_last => return None,
                due => state = self.sleep(state, due.map_or(IDLE, |due| due - now)),
            }
        }
    }

    /// Sleeps until the state has changed, or for `limit`.
    fn sleep<'a>(&self, state: MutexGuard<'a, State>, limit: Duration) -> MutexGuard<'a, State> {
        let before = (state.waiting.len(), state.limiter.held(), state.is_last, state.is_removed);
        self.changed.wait_while_for(state, limit, |state| {
            before == (state.waiting.len(), state.limiter.held(), state.is_last, state.is_removed)
        })
    }

    /// Sends a notification, if need be several times.
    fn deliver(&self, notice: Notice) {
        let event = notice.as_event();
        let policy = self.shared.policy;
        let mut delay = policy.first_delay;
        for attempt in 1.. {
            let settings = self.settings();
            match deliver::attempt(&settings, &event, &self.shared.host) {
                Ok(()) => return self.succeeded(),
                Err(trouble) if trouble.is_lasting || attempt >= policy.attempts => {
                    return self.failed(notice, &trouble, attempt);
                }
                Err(trouble) => {
                    if !self.pause(delay) {
                        return self.failed(notice, &trouble, attempt);
                    }
                }
            }
            delay *= 4;
        }
    }

    /// Waits before the next attempt. Returns false if there must be none.
    fn pause(&self, delay: Duration) -> bool {
        let state = self.state.lock();
        let state = self.changed.wait_while_for(state, delay, |state| !state.is_removed && !state.is_last);
        // Each notification that still waits at the end gets one attempt.
        !state.is_removed && !state.is_last
    }

    /// Notes a delivery. Reports it to the server if the one before failed.
    fn succeeded(&self) {
        let was_failing = std::mem::replace(&mut self.state.lock().is_failing, false);
        if was_failing {
            self.tell(Severity::Info, "notify-restored", |name| {
                format!("notifications to {name} work again")
            });
        }
    }

    /// Keeps a notification that failed for the next sum, with everything that waits.
    fn failed(&self, notice: Notice, trouble: &Trouble, attempts: u32) {
        let mut state = self.state.lock();
        let waiting = std::mem::take(&mut state.waiting);
        if state.is_last || state.is_removed {
            return;
        }
        let now = Instant::now();
        for notice in std::iter::once(notice).chain(waiting) {
            state.limiter.give_back(notice, now);
        }
        let was_failing = std::mem::replace(&mut state.is_failing, true);
        drop(state);
        if !was_failing {
            let times = if attempts == 1 { "once".to_owned() } else { format!("{attempts} times") };
            let rest = format_duration(crate::limiter::WINDOW);
            let Trouble { message, .. } = trouble;
            self.tell(Severity::Warning, "notify-failed", |name| {
                format!(
                    "notifications to {name} fail: {message}; tried {times}. Events are summed up and tried every {rest}; \
                     `forebay notify test` shows whether it works again"
                )
            });
        }
    }

    /// Reports something about this target to the server. `message` gets the target's name.
    fn tell(&self, severity: Severity, kind: &str, message: impl FnOnce(&str) -> String) {
        let target = self.settings().name.clone();
        let message = message(&target);
        (self.shared.report)(Report::Happened { severity, kind: kind.to_owned(), message, target });
    }
}

/// Returns the least severity of the events that a target wants.
fn least(severity: NotifySeverity) -> Severity {
    match severity {
        NotifySeverity::Info => Severity::Info,
        NotifySeverity::Warning => Severity::Warning,
        NotifySeverity::Error => Severity::Error,
    }
}
