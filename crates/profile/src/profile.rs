//! The profile of a server, which all its threads share.

use std::net::IpAddr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use forebay_common::lock::{Mutex, MutexGuard};

use crate::counters::Counters;
use crate::hours::{Hours, WorkingSet};
use crate::kind::Kind;
use crate::new_files::{Followed, NewFiles};
use crate::operation::{FileId, Moved, Operation};
use crate::shard::Shard;
use crate::streams::Streams;
use crate::tables::{Counted, FileCounted, Most, Tables};
use crate::trace::{Recording, Trace};

/// Shards. More threads than these share them.
const SHARDS: usize = 16;

/// The profile of a server.
///
/// A thread locks the common tables only while it holds its shard, never the other way round.
pub struct Profile {
    enabled: AtomicBool,
    /// A shard is made with the first operation of one of its threads.
    shards: [OnceLock<Box<Mutex<Shard>>>; SHARDS],
    tables: Mutex<Tables>,
    streams: Streams,
    hours: Hours,
    new_files: Followed,
    trace: Trace,
    /// The time of the last reset, in nanoseconds since the profile began.
    since_ns: AtomicU64,
}

/// Everything that was counted since the last reset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// The time of the last reset, since the profile began.
    pub since: Duration,
    /// The sum over all clients.
    pub total: Counters,
    /// Clients, by address.
    pub clients: Counted<IpAddr>,
    /// Exports, by number.
    pub exports: Counted<u32>,
    /// Users, by number.
    pub users: Counted<u32>,
    /// Files and directories, busiest first.
    pub files: Vec<FileCounted>,
    /// The sum over all other files, as far as they were counted one by one.
    pub other_files: Counters,
    /// The working sets of the last hours, oldest first. The last one goes on.
    pub working_sets: Vec<WorkingSet>,
    /// The files that clients made.
    pub new_files: NewFiles,
}

impl Profile {
    /// Returns an empty profile, which counts if `enabled`.
    pub fn new(enabled: bool) -> Self {
        Profile {
            enabled: AtomicBool::new(enabled),
            shards: std::array::from_fn(|_| OnceLock::new()),
            tables: Mutex::new(Tables::new()),
            streams: Streams::new(),
            hours: Hours::new(),
            new_files: Followed::new(),
            trace: Trace::default(),
            since_ns: AtomicU64::new(0),
        }
    }

    /// Returns true if the profile counts.
    pub fn is_enabled(&self) -> bool {
        self.enabled.load(Relaxed)
    }

    /// Begins or ends counting. What was counted stays.
    pub fn set_enabled(&self, enabled: bool) {
        self.enabled.store(enabled, Relaxed);
    }

    /// Counts an operation that was carried out at the time `at` since the profile began. `id` returns the handle of
    /// the operation's file, and is called only if the operation has a file and counts for it.
    pub fn count(&self, operation: &Operation, at: Duration, id: impl FnOnce() -> FileId) {
        if !self.is_enabled() {
            return;
        }
        let sequential = match operation.moved.filter(|_| !operation.failed) {
            Some(moved) => self.count_range(operation, &moved, at),
            None => false,
        };
        self.trace.add(operation, at);
        self.shard().count(operation, sequential, at, &self.tables, id);
    }

    /// Counts a file that a client made at the time `at`.
    pub fn count_made(&self, file: u64, at: Duration) {
        if self.is_enabled() {
            self.new_files.made(file, at);
        }
    }

    /// Counts the range of a READ or WRITE. Returns true if it continues a stream.
    fn count_range(&self, operation: &Operation, moved: &Moved, at: Duration) -> bool {
        let Operation { subject, kind, file, .. } = operation;
        let Moved { offset, len, .. } = *moved;
        self.hours.add(at, subject.export(), *file, moved);
        if *kind == Kind::Write {
            self.new_files.written(*file, offset.saturating_add(len.into()));
        }
        let stream = file ^ subject.tag().rotate_left(*kind as u32);
        self.streams.follow(stream, offset, len.into())
    }

    /// Returns everything that was counted, with the `top` busiest keys of each table. `at` is the present time since
    /// the profile began.
    pub fn snapshot(&self, top: usize, at: Duration) -> Snapshot {
        for shard in self.shards.iter().filter_map(OnceLock::get) {
            let mut shard = shard.lock();
            shard.merge(&mut self.tables.lock());
        }
        let Most { clients, exports, users, files, other_files } = self.tables.lock().most(top);
        let mut total = clients.others.clone();
        clients.most.iter().for_each(|(_, counters)| total.add(counters));
        Snapshot {
            since: Duration::from_nanos(self.since_ns.load(Relaxed)),
            total,
            clients,
            exports,
            users,
            files,
            other_files,
            working_sets: self.hours.snapshot(at),
            new_files: self.new_files.snapshot(),
        }
    }

    /// Begins to record every operation that is counted. Returns none if a trace is being recorded already.
    pub fn record(&self) -> Option<Recording<'_>> {
        self.trace.begin()
    }

    /// Forgets everything that was counted before `at`.
    pub fn reset(&self, at: Duration) {
        for shard in self.shards.iter().filter_map(OnceLock::get) {
            shard.lock().merge(&mut Tables::new());
        }
        *self.tables.lock() = Tables::new();
        self.streams.clear();
        self.hours.clear();
        self.new_files.clear();
        self.since_ns.store(at.as_nanos() as u64, Relaxed);
    }

    /// Returns the calling thread's shard, or another one if that is taken. A thread waits only if all are taken.
    fn shard(&self) -> MutexGuard<'_, Shard> {
        let own = own_shard();
        let shard = |number: usize| {
            let number = number % SHARDS;
            self.shards[number].get_or_init(|| Box::new(Mutex::new(Shard::new(number as u64))))
        };
        let free = (own..own + SHARDS).find_map(|number| shard(number).try_lock());
        free.unwrap_or_else(|| shard(own).lock())
    }

    #[cfg(test)]
    pub(crate) fn table_sizes(&self) -> [usize; 4] {
        self.tables.lock().sizes()
    }
}

/// Returns the number of the calling thread's shard. Threads get the numbers in turn.
fn own_shard() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local!(static SHARD: usize = NEXT.fetch_add(1, Relaxed) % SHARDS);
    SHARD.with(|shard| *shard)
}
