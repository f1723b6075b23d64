//! Requests and responses.

use std::path::PathBuf;

use forebay_config::Mode;
use serde::{Deserialize, Serialize};

use crate::event::Event;
use crate::sample::{CacheCounters, StatSample};
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
        /// Only those of this moment, in nanoseconds since 1970, and later ones.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        since_ns: Option<u64>,
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
    /// Read the configuration anew and put into force what can change in service: one [`Response::Reloaded`].
    Reload,
    /// What is cached of a file, or of all files below a directory: one [`Response::Cached`].
    Cached {
        /// Absolute, without symbolic links.
        path: PathBuf,
        /// Destage what is dirty of it, then drop it all; the answer says what there was.
        drop: bool,
    },
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
        /// Whatever is on it.
        #[serde(default)]
        force: bool,
    },
    /// Take a device away, after what only it holds has been copied.
    Remove {
        /// The device as `pool status` shows it.
        path: PathBuf,
        /// Answer only when the device may be pulled.
        wait: bool,
    },
    /// Read every copy of every block, and repair what is bad.
    Scrub {
        /// Answer only when that is through.
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
        /// The mode in force, where it is another for want of devices.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        effective_mode: Option<Mode>,
    },
    /// The pool, after the change if one was asked for.
    Pool(Box<PoolStatus>),
    /// What came of reading the configuration anew.
    Reloaded(ReloadReport),
    /// What is, or was, cached of some files.
    Cached(CachedFiles),
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

/// What came of reading the configuration anew. With mistakes nothing has changed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReloadReport {
    /// Mistakes in the configuration, a sentence each.
    #[serde(default)]
    pub mistakes: Vec<String>,
    /// What is in force now and was not before, a sentence each.
    pub changed: Vec<String>,
    /// Settings that differ and take effect at the next start, a sentence each.
    pub at_next_start: Vec<String>,
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

/// What is cached of some files.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CachedFiles {
    /// Files looked at; one with several names counts once.
    pub files: u64,
    /// Those of which anything is cached.
    pub cached_files: u64,
    /// Those with contents that the directory does not have yet.
    pub dirty_files: u64,
    /// Bytes on the cache devices, each copy of dirty data counted once.
    pub ssd_bytes: u64,
    /// Bytes of them that the directory does not have yet.
    pub dirty_bytes: u64,
    /// Bytes in memory.
    pub ram_bytes: u64,
    /// Where they were to be dropped: files of which something was kept since clients wrote to them meanwhile.
    #[serde(default)]
    pub kept_files: u64,
}

/// The pool of cache devices.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct PoolStatus {
    /// Whether there is a cache; without one the rest is empty.
    pub configured: bool,
    /// Devices of the pool.
    pub devices: Vec<PoolDevice>,
    /// What to know about the devices that is no failure, such as two on one disk; one sentence each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// Bytes of clean data.
    pub clean_bytes: u64,
    /// Bytes of dirty data, counted once.
    pub dirty_bytes: u64,
    /// Share of the devices' segments looked at since the start, in percent: below 100, clean data is still being loaded.
    #[serde(default = "all_loaded")]
    pub loaded_percent: u8,
    /// How long the oldest dirty data has waited, in nanoseconds.
    #[serde(default)]
    pub dirty_age_ns: u64,
    /// Bytes cached in memory.
    #[serde(default)]
    pub ram_bytes: u64,
    /// Bytes that may be cached in memory.
    #[serde(default)]
    pub ram_limit_bytes: u64,
    /// Files the cache knows something of.
    #[serde(default)]
    pub objects: u64,
    /// Bytes of memory that the index of the devices takes, some seconds ago at most.
    #[serde(default)]
    pub index_bytes: u64,
    /// The same for each block of 4 KiB on the devices.
    #[serde(default)]
    pub index_bytes_per_block: f64,
    /// The scrub under way, or the last one since the start.
    #[serde(default)]
    pub scrub: ScrubStatus,
    /// What was done since the start.
    #[serde(default)]
    pub counters: CacheCounters,
}

fn all_loaded() -> u8 {
    100
}

/// A scrub: every copy of every block is read. Blocks are of 4 KiB.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScrubStatus {
    /// Its number since the start; 0 if there was none.
    pub number: u64,
    /// Whether it is under way.
    pub running: bool,
    /// Segments it has been through.
    pub segments_done: u64,
    /// Segments it goes through.
    pub segments: u64,
    /// Blocks read, every copy.
    pub blocks_checked: u64,
    /// Bad copies rewritten from good ones.
    pub blocks_repaired: u64,
    /// Clean blocks with bad copies that were dropped; the backing store has them.
    pub blocks_dropped: u64,
    /// Blocks that only the cache had and of which no copy can be read.
    pub blocks_lost: u64,
}

/// A device of the pool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolDevice {
    /// Block device or file, as it was named.
    pub path: PathBuf,
    /// A block device's name in /dev/disk/by-id, the same after every start of the system.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stable_path: Option<String>,
    /// Serial number of the disk that it is on, where there is one and it tells.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serial: Option<String>,
    /// The device's UUID in the pool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uuid: Option<String>,
    /// Size in bytes; 0 if it is not there.
    pub size_bytes: u64,
    /// State in a word: `healthy`; `leaving`, while it is being removed; `lost`, if it failed or is out of date; `missing`, if
    /// it was not there at the start.
    pub state: String,
    /// What the SSD says about its health, where it does and the server may ask.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wear: Option<DeviceWear>,
}

/// What an SSD says about its health; absent is what it does not tell.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceWear {
    /// Percent of the rated life used; may go past 100.
    pub life_used_percent: Option<u8>,
    /// Percent of the spare blocks left.
    pub spare_percent: Option<u8>,
    /// Times that the device could not give back what was stored on it.
    pub media_errors: Option<u64>,
    /// What it warns of, one bit each (NVM Express Base Specification 2.0, figure 207); 0 is nothing.
    pub warnings: Option<u8>,
}
