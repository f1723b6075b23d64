//! Events: what an administrator should know about, kept in memory and in the state directory, written to the log and
//! followable.

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

/// How much an event matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// For the record.
    Info,
    /// Someone should look.
    Warning,
    /// Something failed.
    Error,
}

impl Severity {
    /// The name in output.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Info => "info",
            Self::Warning => "warning",
            Self::Error => "error",
        }
    }
}

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// Number, from 1. It goes on over restarts; a gap shows that events were lost.
    pub sequence: u64,
    /// When, in nanoseconds since 1970.
    pub time_ns: u64,
    /// How much it matters.
    pub severity: Severity,
    /// What kind, in kebab case, such as `sync-failed`; programs look at this.
    pub kind: String,
    /// One sentence for people.
    pub message: String,
    /// Details for programs.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub fields: BTreeMap<String, String>,
}

/// The newest events of a server. Any thread may add to it; memory is bounded.
#[derive(Debug)]
pub struct EventLog {
    ring: Mutex<Ring>,
    added: Condvar,
    history: OnceLock<History>,
    /// Why events could not be written to the state directory, the last time.
    trouble: Mutex<Option<String>>,
}

#[derive(Debug)]
struct Ring {
    events: VecDeque<Event>,
    capacity: usize,
    next_sequence: u64,
}

/// Longest message and longest field kept, in bytes: with the capacity it bounds the memory.
const LONGEST_TEXT: usize = 4096;
/// Most fields kept of one event.
const MOST_FIELDS: usize = 32;

impl Default for EventLog {
    fn default() -> Self {
        Self::new(1024)
    }
}

impl EventLog {
    /// Keeps the newest `capacity` events, at least one.
    pub fn new(capacity: usize) -> Self {
        let ring = Ring { events: VecDeque::new(), capacity: capacity.max(1), next_sequence: 1 };
        Self {
            ring: Mutex::new(ring),
            added: Condvar::new(),
            history: OnceLock::new(),
            trouble: Mutex::new(None),
        }
    }

    /// Goes on behind the events that are in the state directory.
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

    /// Starts to write the events that are added to the state directory, those since the start included, until the writer
    /// is dropped. Called once, for a log that is [kept](EventLog::kept_in). Nothing is synced: a power cut may take the
    /// last seconds.
    ///
    /// # Errors
    /// The system refuses a thread.
    pub fn write_behind(self: &Arc<Self>) -> io::Result<EventWriter> {
        let written = self.history.get().map_or(0, |history| history.last());
        EventWriter::start(self.clone(), written)
    }

    pub(crate) fn history(&self) -> Option<&History> {
        self.history.get()
    }

    /// Why events cannot be written to the state directory now.
    pub fn trouble(&self) -> Option<String> {
        self.trouble.lock().clone()
    }

    pub(crate) fn set_trouble(&self, trouble: Option<String>) {
        *self.trouble.lock() = trouble;
    }

    /// Lets those who wait for events look around.
    pub(crate) fn wake(&self) {
        // Nobody is between a look and the wait that follows from it.
        drop(self.ring.lock());
        self.added.notify_all();
    }

    /// Adds an event and writes it to the log. `kind` is in kebab case; texts are cut at 4 KiB.
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

    /// Adds an event that whoever looks at the log is told in another way.
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

    /// The newest `count` events, oldest first.
    pub fn last(&self, count: usize) -> Vec<Event> {
        let ring = self.ring.lock();
        ring.events.iter().skip(ring.events.len().saturating_sub(count)).cloned().collect()
    }

    /// The past events that are wanted, oldest first, also those that only the state directory has.
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

    /// Events after number `sequence`, oldest first; waits up to `wait` for one. Empty when none came. Events that
    /// were already dropped show as a gap in the numbers.
    pub fn after(&self, sequence: u64, wait: Duration) -> Vec<Event> {
        self.after_unless(sequence, wait, &AtomicBool::new(false))
    }

    /// The same; does not wait once `ending` is set, which [`EventLog::wake`] makes known.
    pub(crate) fn after_unless(&self, sequence: u64, wait: Duration, ending: &AtomicBool) -> Vec<Event> {
        let none_yet = |ring: &mut Ring| {
            ring.next_sequence <= sequence.saturating_add(1) && !ending.load(Ordering::SeqCst)
        };
        let ring = self.added.wait_while_for(self.ring.lock(), wait, none_yet);
        ring.events.iter().filter(|event| event.sequence > sequence).cloned().collect()
    }

    /// Number of the newest event; 0 before the first.
    pub fn newest(&self) -> u64 {
        self.ring.lock().next_sequence - 1
    }
}

fn cut(mut text: String) -> String {
    if text.len() > LONGEST_TEXT {
        text.truncate(text.floor_char_boundary(LONGEST_TEXT));
        text.push('…');
    }
    text
}

fn now_ns() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}
