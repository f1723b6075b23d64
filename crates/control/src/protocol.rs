//! Requests and responses.

use std::path::PathBuf;

use forebay_config::Mode;
use serde::{Deserialize, Serialize};

use crate::event::Event;
use crate::sample::StatSample;
use crate::status::Status;

/// Version of the protocol. Raised when old clients or servers would misunderstand new ones.
pub const PROTOCOL_VERSION: u32 = 1;

/// The line a client sends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Call {
    /// [`PROTOCOL_VERSION`] of the client.
    pub version: u32,
    /// What it wants.
    #[serde(flatten)]
    pub request: Request,
}

/// What a client wants.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "kebab-case")]
pub enum Request {
    /// One [`Response::Status`].
    Status,
    /// One [`Response::Sample`].
    Sample,
    /// [`Response::Event`]s, oldest first, then [`Response::Done`].
    Events {
        /// At most so many of the newest past events; absent means all that are kept.
        #[serde(default)]
        last: Option<usize>,
        /// Go on with new events until the client hangs up or the server stops.
        #[serde(default)]
        follow: bool,
    },
    /// One [`Response::Mode`].
    Mode,
    /// Change the mode, then one [`Response::Mode`].
    SetMode {
        /// The mode wanted.
        mode: Mode,
    },
    /// Make durable on the backing store what was written so far.
    Flush {
        /// With it: [`Response::Progress`]es, then one [`Response::Flushed`]. Without: [`Response::Done`] at once; how
        /// it ends is an event.
        wait: bool,
    },
    /// Show or change the pool: [`Response::Pool`].
    Pool(PoolRequest),
}

/// What to do with the pool of cache devices.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "pool", rename_all = "kebab-case")]
pub enum PoolRequest {
    /// Show it.
    Status,
    /// Add a device.
    Add {
        /// Block device or file, absolute.
        path: PathBuf,
    },
    /// Take a device away, after what only it holds has been copied.
    Remove {
        /// The device as `pool status` shows it.
        path: PathBuf,
        /// Answer only when the device may be pulled.
        wait: bool,
    },
}

/// One line of an answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "response", rename_all = "kebab-case")]
pub enum Response {
    /// The server at this moment.
    Status(Box<Status>),
    /// Its counters.
    Sample(Box<StatSample>),
    /// One event; more follow.
    Event(Event),
    /// How far a flush has come; more follow.
    Progress(FlushProgress),
    /// A flush has ended well.
    Flushed(FlushReport),
    /// The mode, after the change if one was asked for.
    Mode {
        /// The mode.
        mode: Mode,
    },
    /// The pool, after the change if one was asked for.
    Pool(PoolStatus),
    /// Nothing more follows.
    Done,
    /// The request failed.
    Error {
        /// One sentence.
        message: String,
    },
}

impl Response {
    /// Whether nothing follows this line.
    pub fn is_final(&self) -> bool {
        !matches!(self, Self::Event(_) | Self::Progress(_))
    }
}

/// How far a flush has come.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlushProgress {
    /// Bytes, or file systems where bytes are unknown, that are durable.
    pub done: u64,
    /// Those there are in total, as far as it is known.
    pub total: u64,
    /// Whether the two are bytes.
    pub bytes: bool,
}

/// What a flush did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlushReport {
    /// File systems made durable.
    pub filesystems: u64,
    /// Bytes written from the cache to the backing store; 0 without a cache.
    pub destaged_bytes: u64,
    /// Bytes that are still only in the cache; 0 unless writes went on meanwhile.
    pub dirty_bytes: u64,
    /// How long it took, in nanoseconds.
    pub elapsed_ns: u64,
}

/// The pool of cache devices.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolStatus {
    /// Whether there is a cache; without one the rest is empty.
    pub configured: bool,
    /// Devices of the pool.
    pub devices: Vec<PoolDevice>,
    /// Bytes of clean data.
    pub clean_bytes: u64,
    /// Bytes of dirty data, counted once.
    pub dirty_bytes: u64,
}

/// A device of the pool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolDevice {
    /// Block device or file.
    pub path: PathBuf,
    /// Size in bytes.
    pub size_bytes: u64,
    /// State in a word, such as `healthy`.
    pub state: String,
}
