//! The limit on the number of notifications in a minute, and the sum of the events beyond it. Knows no clock.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use forebay_control::{Event, Severity};

/// The time for which notifications are counted.
pub(crate) const WINDOW: Duration = Duration::from_secs(60);
/// Most kinds of events that a sum tells apart; further kinds count together.
const MOST_KINDS: usize = 12;

/// One notification.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Notice {
    /// One event.
    One(Event),
    /// The sum of several events.
    Sum(Sum),
}

impl Notice {
    /// Returns the notification as an event.
    pub(crate) fn as_event(&self) -> Event {
        match self {
            Notice::One(event) => event.clone(),
            Notice::Sum(sum) => sum.as_event(),
        }
    }
}

/// Events that are told in one notification.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Sum {
    kinds: BTreeMap<String, u64>,
    /// Events whose kinds are not told apart.
    others: u64,
    /// Events whose contents are not known.
    missed: u64,
    /// The last one of the most severe events.
    gravest: Option<Event>,
}

impl Sum {
    /// Returns the number of events.
    pub(crate) fn count(&self) -> u64 {
        self.kinds.values().sum::<u64>() + self.others + self.missed
    }

    fn add(&mut self, event: Event) {
        self.add_kind(&event.kind, 1);
        self.weigh(event);
    }

    /// Counts events of a kind. Kinds beyond the bound are counted together.
    fn add_kind(&mut self, kind: &str, count: u64) {
        if self.kinds.len() < MOST_KINDS || self.kinds.contains_key(kind) {
            *self.kinds.entry(kind.to_owned()).or_default() += count;
        } else {
            self.others += count;
        }
    }

    /// Keeps the event if it is as severe as the most severe one so far.
    fn weigh(&mut self, event: Event) {
        if self.gravest.as_ref().is_none_or(|gravest| event.severity >= gravest.severity) {
            self.gravest = Some(event);
        }
    }

    /// Adds the events of another sum.
    fn merge(&mut self, other: Sum) {
        other.kinds.iter().for_each(|(kind, count)| self.add_kind(kind, *count));
        self.others += other.others;
        self.missed += other.missed;
        other.gravest.into_iter().for_each(|event| self.weigh(event));
    }

    /// Returns the sum as one event, with the severity of its most severe one.
    fn as_event(&self) -> Event {
        let mut parts: Vec<_> = self.kinds.iter().map(|(kind, count)| format!("{count} {kind}")).collect();
        if self.others + self.missed > 0 {
            parts.push(format!("{} of other kinds", self.others + self.missed));
        }
        let mut message = format!("{} events in one notification: {}", self.count(), parts.join(", "));
        if let Some(gravest) = &self.gravest {
            message.push_str(&format!("; the most severe is {}: {}", gravest.kind, gravest.message));
        }
        message.push_str("; `forebay events` lists all");
        let severity = self.gravest.as_ref().map_or(Severity::Warning, |event| event.severity);
        Event {
            sequence: self.gravest.as_ref().map_or(0, |event| event.sequence),
            time_ns: self.gravest.as_ref().map_or(0, |event| event.time_ns),
            severity,
            kind: "events".to_owned(),
            message,
            fields: self.kinds.iter().map(|(kind, count)| (kind.clone(), count.to_string())).collect(),
        }
    }
}

/// The count of the notifications of one target.
#[derive(Debug, Default)]
pub(crate) struct Limiter {
    /// Begin of the window; `None` before the first notification.
    begun: Option<Instant>,
    /// Notifications in the window.
    sent: u32,
    held: Sum,
}

impl Limiter {
    /// Counts an event. Returns the event if it is told by itself; otherwise it is held for the next sum.
    pub(crate) fn offer(&mut self, event: Event, now: Instant, per_minute: u32) -> Option<Event> {
        if self.held.count() > 0 {
            // The sum comes first, so that notifications keep the order of events.
            self.held.add(event);
            return None;
        }
        if self.begun.is_none_or(|begun| now.saturating_duration_since(begun) >= WINDOW) {
            (self.begun, self.sent) = (Some(now), 0);
        }
        if self.sent >= per_minute {
            self.held.add(event);
            return None;
        }
        self.sent += 1;
        Some(event)
    }

    /// Holds an event for the next sum.
    pub(crate) fn hold(&mut self, event: Event, now: Instant) {
        self.begun.get_or_insert(now);
        self.held.add(event);
    }

    /// Counts events whose contents are not known.
    pub(crate) fn miss(&mut self, count: u64, now: Instant) {
        self.begun.get_or_insert(now);
        self.held.missed += count;
    }

    /// Holds a notification that failed, and everything that comes until the window from `now` on ends.
    pub(crate) fn give_back(&mut self, notice: Notice, now: Instant) {
        self.begun = Some(now);
        match notice {
            Notice::One(event) => self.held.add(event),
            Notice::Sum(sum) => self.held.merge(sum),
        }
    }

    /// Returns the moment at which the sum of the held events is told; `None` if none is held.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.begun.filter(|_| self.held.count() > 0).map(|begun| begun + WINDOW)
    }

    /// Returns the sum of the held events and begins a window with it.
    pub(crate) fn take(&mut self, now: Instant) -> Sum {
        (self.begun, self.sent) = (Some(now), 1);
        std::mem::take(&mut self.held)
    }

    /// Returns the number of held events.
    pub(crate) fn held(&self) -> u64 {
        self.held.count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(sequence: u64, severity: Severity, kind: &str) -> Event {
        let (kind, message) = (kind.to_owned(), format!("number {sequence}"));
        Event { sequence, time_ns: 7, severity, kind, message, fields: BTreeMap::new() }
    }

    #[test]
    fn events_beyond_the_limit_are_told_in_one_notification_at_the_end_of_the_minute() {
        let (mut limiter, start) = (Limiter::default(), Instant::now());
        let offer = |limiter: &mut Limiter, number, severity, at: u64| {
            let offered = event(number, severity, if number % 2 == 0 { "late" } else { "lost" });
            limiter.offer(offered, start + Duration::from_secs(at), 2).map(|event| event.sequence)
        };
        assert_eq!(offer(&mut limiter, 1, Severity::Info, 0), Some(1));
        assert_eq!(offer(&mut limiter, 2, Severity::Info, 1), Some(2));
        assert_eq!(limiter.due(), None);
        assert_eq!(offer(&mut limiter, 3, Severity::Error, 2), None);
        assert_eq!(offer(&mut limiter, 4, Severity::Info, 3), None);
        assert_eq!(offer(&mut limiter, 5, Severity::Info, 4), None);
        assert_eq!(limiter.due(), Some(start + WINDOW));
        // Also after the minute the sum comes before a new event.
        assert_eq!(offer(&mut limiter, 6, Severity::Info, 61), None);
        let told = limiter.take(start + Duration::from_secs(61)).as_event();
        assert_eq!(
            told.message,
            "4 events in one notification: 2 late, 2 lost; the most severe is lost: number 3; `forebay events` lists all"
        );
        assert_eq!((told.severity, told.sequence), (Severity::Error, 3));
        // The sum is the first notification of its minute.
        assert_eq!(offer(&mut limiter, 7, Severity::Info, 62), Some(7));
        assert_eq!(offer(&mut limiter, 8, Severity::Info, 63), None);
        assert_eq!(limiter.due(), Some(start + Duration::from_secs(61) + WINDOW));
    }

    #[test]
    fn a_minute_after_the_first_notification_the_count_begins_again() {
        let (mut limiter, start) = (Limiter::default(), Instant::now());
        for minute in 0..3 {
            let offered = event(minute, Severity::Info, "x");
            assert!(limiter.offer(offered, start + WINDOW * minute as u32, 1).is_some(), "{minute}");
        }
    }

    #[test]
    fn a_failed_notification_and_what_follows_are_one_sum_a_minute_later() {
        let (mut limiter, start) = (Limiter::default(), Instant::now());
        let first = limiter.offer(event(1, Severity::Warning, "late"), start, 9).unwrap();
        let later = start + Duration::from_secs(30);
        limiter.give_back(Notice::One(first), later);
        assert_eq!(limiter.offer(event(2, Severity::Info, "late"), later, 9), None);
        assert_eq!(limiter.due(), Some(later + WINDOW));
        let sum = limiter.take(later + WINDOW);
        limiter.give_back(Notice::Sum(sum), later + 2 * WINDOW);
        limiter.miss(5, later);
        assert_eq!(limiter.held(), 7);
        let told = limiter.take(later + 3 * WINDOW).as_event();
        assert!(
            told.message.starts_with("7 events in one notification: 2 late, 5 of other kinds"),
            "{}",
            told.message
        );
    }

    #[test]
    fn a_sum_tells_a_bounded_number_of_kinds_apart() {
        let (mut limiter, start) = (Limiter::default(), Instant::now());
        (0..100).for_each(|number| limiter.hold(event(number, Severity::Info, &format!("k{number}")), start));
        let told = limiter.take(start).as_event();
        assert_eq!(told.fields.len(), MOST_KINDS);
        assert!(told.message.contains("88 of other kinds"), "{}", told.message);
    }
}
