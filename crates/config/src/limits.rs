//! The limits by name, each with its range. The file, the flags and the help share this table.

use std::ops::RangeInclusive;
use std::time::Duration;

use crate::entries::Change;
use crate::settings::Limits;
use crate::units::{format_duration, format_size_exactly, parse_duration, parse_size};

/// One limit.
pub struct Limit {
    /// Key in `[limits]`. The flag has the key's name with dashes for underscores.
    pub key: &'static str,
    /// Meaning of the limit, for the help.
    pub help: &'static str,
    /// True if the default depends on the machine. The help then does not state it.
    pub per_machine: bool,
    /// Moment at which another value takes effect.
    pub change: Change,
    kind: Kind,
}

/// The field of a limit and its range, both ends included. Sizes are in bytes, times in microseconds.
enum Kind {
    Count(fn(&mut Limits) -> &mut usize, RangeInclusive<u64>),
    Size(fn(&mut Limits) -> &mut u64, RangeInclusive<u64>),
    Time(fn(&mut Limits) -> &mut Duration, RangeInclusive<u64>),
}

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const TIB: u64 = 1 << 40;
const SECOND: u64 = 1_000_000;
const DAY: u64 = 86_400 * SECOND;

const fn limit(key: &'static str, help: &'static str, kind: Kind) -> Limit {
    Limit { key, help, per_machine: false, change: Change::InService, kind }
}

/// All limits in the order of the documentation. The smallest buffers hold a few requests of 1 MiB.
pub const LIMITS: &[Limit] = &[
    Limit {
        per_machine: true,
        change: Change::NeedsRestart,
        ..limit(
            "threads",
            "Event-loop threads; one per core unless given",
            Kind::Count(|l| &mut l.threads, 1..=1024),
        )
    },
    Limit {
        per_machine: true,
        change: Change::NeedsRestart,
        ..limit(
            "workers",
            "Threads for requests that wait for the disk; 16 per core, from 32 to 256, unless given",
            Kind::Count(|l| &mut l.workers, 1..=4096),
        )
    },
    limit(
        "worker_queue",
        "Requests that may wait for a worker before clients are told to try again later",
        Kind::Count(|l| &mut l.worker_queue, 1..=1_048_576),
    ),
    limit(
        "memory",
        "Memory for requests and replies in total",
        Kind::Size(|l| &mut l.memory, 16 * MIB..=64 * TIB),
    ),
    limit(
        "connection_memory",
        "Memory for requests and replies of one connection",
        Kind::Size(|l| &mut l.connection_memory, 4 * MIB..=TIB),
    ),
    limit("connections", "Connections open at once", Kind::Count(|l| &mut l.connections, 1..=1_048_576)),
    limit(
        "inflight",
        "Requests of one connection worked on at once",
        Kind::Count(|l| &mut l.inflight, 1..=65_536),
    ),
    limit(
        "shared_inflight",
        "Most requests worked on at once for busy clients while a less busy client is active; 0 means no bound",
        Kind::Count(|l| &mut l.shared_inflight, 0..=65_536),
    ),
    limit(
        "reply_cache_entries",
        "Replies kept to answer retransmitted requests",
        Kind::Count(|l| &mut l.reply_cache_entries, 64..=16_777_216),
    ),
    limit(
        "reply_cache_memory",
        "Memory for replies kept to answer retransmitted requests",
        Kind::Size(|l| &mut l.reply_cache_memory, 64 * KIB..=TIB),
    ),
    Limit {
        per_machine: true,
        change: Change::NeedsRestart,
        ..limit(
            "metadata_memory",
            "Memory for names and attributes of files; an eighth of the host's memory, rounded down to a power of two, unless given",
            Kind::Size(|l| &mut l.metadata_memory, 0..=TIB),
        )
    },
    limit(
        "open_files",
        "Files and directories kept open between requests",
        Kind::Count(|l| &mut l.open_files, 16..=16_777_216),
    ),
    Limit {
        change: Change::NeedsRestart,
        ..limit(
            "busy_poll",
            "Time that a thread polls for more work before it sleeps; 0 means no polling",
            Kind::Time(|l| &mut l.busy_poll, 0..=SECOND / 100),
        )
    },
    Limit {
        change: Change::NeedsRestart,
        ..limit(
            "lease",
            "Time without a request after which the opens and locks of an NFSv4 client may be taken away",
            Kind::Time(|l| &mut l.lease, 10 * SECOND..=3600 * SECOND),
        )
    },
    limit(
        "idle_timeout",
        "Time without a request after which a connection is closed; 0 means never",
        Kind::Time(|l| &mut l.idle_timeout, 0..=30 * DAY),
    ),
    limit(
        "stall_timeout",
        "Time after which a connection is closed that stops within a request or does not read replies",
        Kind::Time(|l| &mut l.stall_timeout, SECOND..=DAY),
    ),
    limit(
        "drain_timeout",
        "Longest time that a stop waits for requests in flight",
        Kind::Time(|l| &mut l.drain_timeout, 0..=DAY),
    ),
];

impl Limit {
    /// Sets the limit from text.
    ///
    /// # Errors
    /// One sentence, if the text is not of the limit's kind or is out of its range.
    pub fn set(&self, limits: &mut Limits, text: &str) -> Result<(), String> {
        match &self.kind {
            Kind::Count(field, range) => {
                let number = text.parse().map_err(|_| format!("`{text}` is not a whole number"))?;
                within(number, range, |n| n.to_string())?;
                *field(limits) = number as usize;
            }
            Kind::Size(field, range) => {
                let bytes = parse_size(text)?;
                within(bytes, range, format_size_exactly)?;
                *field(limits) = bytes;
            }
            Kind::Time(field, range) => {
                let time = parse_duration(text)?;
                let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
                within(micros, range, |n| format_duration(Duration::from_micros(n)))?;
                *field(limits) = time;
            }
        }
        Ok(())
    }

    /// Gives `to` the value that `from` has.
    pub(crate) fn copy(&self, from: &Limits, to: &mut Limits) {
        let mut from = from.clone();
        match &self.kind {
            Kind::Count(field, _) => *field(to) = *field(&mut from),
            Kind::Size(field, _) => *field(to) = *field(&mut from),
            Kind::Time(field, _) => *field(to) = *field(&mut from),
        }
    }

    /// Returns the kind of value as the help names it.
    pub fn value_name(&self) -> &'static str {
        match self.kind {
            Kind::Count(..) => "COUNT",
            Kind::Size(..) => "SIZE",
            Kind::Time(..) => "TIME",
        }
    }

    /// Returns the limit's value as text that [`set`](Self::set) can parse.
    pub fn show(&self, limits: &Limits) -> String {
        let mut limits = limits.clone();
        match &self.kind {
            Kind::Count(field, _) => field(&mut limits).to_string(),
            Kind::Size(field, _) => format_size_exactly(*field(&mut limits)),
            Kind::Time(field, _) => format_duration(*field(&mut limits)),
        }
    }
}

/// Returns an error that names the range if a limit is out of it. `show` formats a value in the limit's unit.
fn within(number: u64, range: &RangeInclusive<u64>, show: impl Fn(u64) -> String) -> Result<(), String> {
    if range.contains(&number) {
        return Ok(());
    }
    let (low, high) = (show(*range.start()), show(*range.end()));
    Err(format!("{} is out of range; allowed: {low} to {high}", show(number)))
}
