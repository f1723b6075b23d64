//! Events: occurrences that an administrator should know about. They are kept in memory and in the state directory,
//! and written to the log. A control client can follow them.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use forebay_common::lock::{Condvar, Mutex};
use serde::{Deserialize, Serialize};

use crate::client::Past;
use crate::history::{EventWriter, History};

/// The importance of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// A normal occurrence; no action is needed.
    Info,
    /// A condition that needs the administrator's attention.
    Warning,
    /// A failure.
    Error,
}

impl Severity {
    /// Returns the name in output.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Info => "info",
            Self::Warning => "warning",
            Self::Error => "error",
        }
    }
}

/// One occurrence in a server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// Number, from 1. The numbers continue over restarts; a gap shows that events were lost.
    pub sequence: u64,
    /// Time of the occurrence, in nanoseconds since 1970.
    pub time_ns: u64,
    /// Importance.
    pub severity: Severity,
    /// Kind in kebab case, such as `sync-failed`. Programs tell events apart by it.
    pub kind: String,
    /// One sentence for people.
    pub message: String,
    /// Details for programs.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub fields: BTreeMap<String, String>,
}

/// The newest events of a server. Any thread may add events. When the log is full, a new event replaces the oldest,
/// so memory is bounded.
#[derive(Debug)]
pub struct EventLog {
    ring: Mutex<Ring>,
    added: Condvar,
    history: OnceLock<History>,
    /// The error of the last write to the state directory; `None` if that write succeeded.
    trouble: Mutex<Option<String>>,
}

#[derive(Debug)]
struct Ring {
    events: VecDeque<Event>,
    capacity: usize,
    next_sequence: u64,
}

/// Longest message and longest field, in bytes; a longer text is cut. With the capacity this bounds the memory.
const LONGEST_TEXT: usize = 4096;
/// Most fields of one event; further fields are dropped.
const MOST_FIELDS: usize = 32;

impl Default for EventLog {
    fn default() -> Self {
        Self::new(1024)
    }
}

impl EventLog {
    /// Returns a log that keeps the newest `capacity` events. A capacity of 0 counts as 1.
    pub fn new(capacity: usize) -> Self {
        let ring = Ring { events: VecDeque::new(), capacity: capacity.max(1), next_sequence: 1 };
        Self {
            ring: Mutex::new(ring),
            added: Condvar::new(),
            history: OnceLock::new(),
            trouble: Mutex::new(None),
        }
    }

    /// Returns a log that begins with the events in the state directory and continues their numbers.
    pub fn kept_in(state_dir: &Path) -> Self {
        let log = Self::default();
        let history = History::new(state_dir);
        let earlier = history.read();
        let mut ring = log.ring.lock();
        ring.next_sequence = earlier.last().map_or(0, |event| event.sequence) + 1;
        let skipped = earlier.len().saturating_sub(ring.capacity);
        ring.events = earlier.into_iter().skip(skipped).collect();
        drop(ring);
        let _ = log.history.set(history);
        log
    }

    /// Starts a thread that writes events to the state directory, until the returned writer is dropped. Events that
    /// were added before the call are written, too. Call it once, and only on a log from [`EventLog::kept_in`].
    /// Nothing is synced: a power cut may lose the last seconds.
    ///
    /// # Errors
    /// The system refused to start the thread.
    pub fn write_behind(self: &Arc<Self>) -> io::Result<EventWriter> {
        let written = self.history.get().map_or(0, |history| history.last());
        EventWriter::start(self.clone(), written)
    }

    pub(crate) fn history(&self) -> Option<&History> {
        self.history.get()
    }

    /// Returns the reason why events cannot be written to the state directory at this moment.
    pub fn trouble(&self) -> Option<String> {
        self.trouble.lock().clone()
    }

    pub(crate) fn set_trouble(&self, trouble: Option<String>) {
        *self.trouble.lock() = trouble;
    }

    /// Wakes every thread that waits for events, so that it checks its condition again.
    pub fn wake(&self) {
        // While this thread holds the lock, no waiter is between its check and its sleep. So no waiter misses the
        // wake-up.
        drop(self.ring.lock());
        self.added.notify_all();
    }

    /// Adds an event and writes it to the server's log. `kind` is in kebab case; texts longer than 4 KiB are cut.
    pub fn add(
        &self,
        severity: Severity,
        kind: &str,
        message: impl Into<String>,
        fields: &[(&str, &dyn ToString)],
    ) {
        let message = message.into();
        match severity {
            Severity::Info => tracing::info!(kind, "{message}"),
            Severity::Warning => tracing::warn!(kind, "{message}"),
            Severity::Error => tracing::error!(kind, "{message}"),
        }
        self.keep(severity, kind, message, fields);
    }

    /// Adds an event without writing it to the server's log. The caller writes the log line in another form.
    pub fn keep(
        &self,
        severity: Severity,
        kind: &str,
        message: impl Into<String>,
        fields: &[(&str, &dyn ToString)],
    ) {
        let message = cut(message.into());
        let fields =
            fields.iter().take(MOST_FIELDS).map(|(name, value)| ((*name).to_owned(), cut(value.to_string())));
        let fields = fields.collect();
        let mut ring = self.ring.lock();
        let sequence = ring.next_sequence;
        ring.next_sequence += 1;
        if ring.events.len() == ring.capacity {
            ring.events.pop_front();
        }
        ring.events.push_back(Event {
            sequence,
            time_ns: now_ns(),
            severity,
            kind: kind.to_owned(),
            message,
            fields,
        });
        drop(ring);
        self.added.notify_all();
    }

    /// Returns the newest `count` events, oldest first.
    pub fn last(&self, count: usize) -> Vec<Event> {
        let ring = self.ring.lock();
        ring.events.iter().skip(ring.events.len().saturating_sub(count)).cloned().collect()
    }

    /// Returns the past events that `wanted` asks for, oldest first. Events that only the state directory still has
    /// are read from there.
    pub fn past(&self, wanted: Past) -> Vec<Event> {
        let (kept, capacity) = {
            let ring = self.ring.lock();
            (ring.events.iter().cloned().collect::<Vec<_>>(), ring.capacity)
        };
        let first = kept.first().map_or(u64::MAX, |event| event.sequence);
        let since = wanted.since_ns.unwrap_or(0);
        let enough = wanted.last.is_some_and(|last| last <= kept.len())
            || kept.len() < capacity
            || kept.first().is_some_and(|event| event.time_ns < since);
        let older = match self.history.get() {
            Some(history) if !enough => history.read(),
            _ => Vec::new(),
        };
        let older = older.into_iter().filter(|event| event.sequence < first);
        let mut events: Vec<_> = older.chain(kept).filter(|event| event.time_ns >= since).collect();
        if let Some(last) = wanted.last {
            events.drain(..events.len().saturating_sub(last));
        }
        events
    }

    /// Returns the events after number `sequence`, oldest first. Waits up to `wait` for the first one; empty if none
    /// came. Events that were already dropped leave a gap in the numbers.
    pub fn after(&self, sequence: u64, wait: Duration) -> Vec<Event> {
        self.after_unless(sequence, wait, &AtomicBool::new(false))
    }

    /// Returns the events after number `sequence`, as [`EventLog::after`] does, but stops waiting once `ending` is
    /// set. The thread that sets `ending` calls [`EventLog::wake`] afterwards.
    pub fn after_unless(&self, sequence: u64, wait: Duration, ending: &AtomicBool) -> Vec<Event> {
        let none_yet = |ring: &mut Ring| {
            ring.next_sequence <= sequence.saturating_add(1) && !ending.load(Ordering::SeqCst)
        };
        let ring = self.added.wait_while_for(self.ring.lock(), wait, none_yet);
        ring.events.iter().filter(|event| event.sequence > sequence).cloned().collect()
    }

    /// Returns the number of the newest event; 0 before the first.
    pub fn newest(&self) -> u64 {
        self.ring.lock().next_sequence - 1
    }
}

/// Truncates the text of an event to `LONGEST_TEXT` bytes, at a character's boundary, and marks the cut with an
/// ellipsis.
fn cut(mut text: String) -> String {
    if text.len() > LONGEST_TEXT {
        text.truncate(text.floor_char_boundary(LONGEST_TEXT));
        text.push('…');
    }
    text
}

/// Returns the time in nanoseconds since 1970.
fn now_ns() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}
