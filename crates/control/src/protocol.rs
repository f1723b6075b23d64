//! The requests and responses of the control protocol.

use std::path::PathBuf;

use forebay_config::{Entry, Mode};
use serde::{Deserialize, Serialize};

use crate::activity::Activity;
use crate::advice::Advice;
use crate::event::Event;
use crate::notify::Delivery;
use crate::policy::{PolicyInForce, PolicyReport, PolicyRequest};
use crate::sample::{CacheCounters, StatSample};
use crate::status::Status;
use crate::trace::TraceBatch;
use crate::volume::{VolumeRequest, VolumeStatus};

/// Version of the protocol. It is raised when an old client or server would misunderstand a new one.
pub const PROTOCOL_VERSION: u32 = 1;

/// The line that a client sends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Call {
    /// [`PROTOCOL_VERSION`] of the client.
    pub version: u32,
    /// The request.
    #[serde(flatten)]
    pub request: Request,
}

/// A request of a client.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "kebab-case")]
pub enum Request {
    /// Asks for one [`Response::Status`].
    Status,
    /// Asks for one [`Response::Sample`].
    Sample,
    /// Asks for one [`Response::Advice`].
    Advise,
    /// Asks for one [`Response::Activity`]: what clients do, by client, export, user, file and device.
    Activity {
        /// Entries wanted of each group, the busiest ones; at most [`MOST_ACTIVE`](crate::MOST_ACTIVE) are returned.
        top: usize,
    },
    /// Records the operations of clients. The answer is a [`Response::Trace`] several times a second, until the client
    /// disconnects or the server stops.
    Trace,
    /// Makes the counters of [`Request::Activity`] begin at 0, except those of devices. The answer is one
    /// [`Response::Done`].
    ResetActivity,
    /// Asks for one [`Response::Text`]: every figure in the text format of Prometheus, version 0.0.4.
    Metrics,
    /// Asks for one [`Response::Text`]: a URL that opens the page of the server with the rights of an administrator,
    /// once.
    Invite {
        /// Name of the administrator, for the events of later actions.
        who: String,
    },
    /// Asks for [`Response::Event`]s, oldest first, then [`Response::Done`].
    Events {
        /// Largest number of past events, the newest ones; absent means all that are kept.
        #[serde(default)]
        last: Option<usize>,
        /// Moment of the oldest event wanted, in nanoseconds since 1970; absent means no bound.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        since_ns: Option<u64>,
        /// True to continue with new events until the client disconnects or the server stops.
        #[serde(default)]
        follow: bool,
    },
    /// Asks for one [`Response::Config`].
    Config,
    /// Asks for one [`Response::Mode`].
    Mode,
    /// Changes the mode. The answer is one [`Response::Mode`].
    SetMode {
        /// New mode.
        mode: Mode,
    },
    /// Makes all changes acknowledged so far durable on the backing store.
    Flush {
        /// True for [`Response::Progress`]es, then one [`Response::Flushed`]. False for [`Response::Done`] at once;
        /// an event then reports the end of the flush.
        wait: bool,
    },
    /// Shows or changes the pool. The answer is one [`Response::Pool`].
    Pool(PoolRequest),
    /// Shows or changes what is cached how. The answer is one [`Response::Policies`].
    Policy(PolicyRequest),
    /// Brings files to the cache devices. The answer is [`Response::Warming`]s, then one [`Response::Warmed`]. The
    /// warming ends when the client disconnects.
    Warm {
        /// File or directory: absolute path. Absent means the files that clients have read most.
        #[serde(default)]
        path: Option<PathBuf>,
    },
    /// Shows or changes block volumes. The answer is one [`Response::Volumes`].
    Volume(VolumeRequest),
    /// Sends a test to targets of notifications. The answer is one [`Response::Delivered`].
    TestNotify {
        /// Name of the target; absent means all.
        #[serde(default)]
        target: Option<String>,
    },
    /// Reads the configuration again and applies the settings that can change in service. The answer is one
    /// [`Response::Reloaded`].
    Reload,
    /// Asks how much is cached of a file, or of all files below a directory. The answer is one [`Response::Cached`].
    Cached {
        /// Absolute path.
        path: PathBuf,
        /// True to destage the dirty blocks of the files and drop all their blocks. The answer counts the blocks
        /// before that.
        drop: bool,
    },
}

/// A request about the pool of cache devices.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "pool", rename_all = "kebab-case")]
pub enum PoolRequest {
    /// Shows the pool.
    Status,
    /// Adds a device.
    Add {
        /// Absolute path of a block device or file.
        path: PathBuf,
        /// True to add the device even if it holds data.
        #[serde(default)]
        force: bool,
    },
    /// Removes a device, after the data that only this device holds has been copied.
    Remove {
        /// Path of the device as `pool status` shows it.
        path: PathBuf,
        /// True to answer only when the device may be unplugged.
        wait: bool,
    },
    /// Reads every copy of every block and repairs bad copies.
    Scrub {
        /// True to answer only when the scrub has ended.
        wait: bool,
    },
}

/// One line of an answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "response", rename_all = "kebab-case")]
pub enum Response {
    /// The state of the server at this moment.
    Status(Box<Status>),
    /// The server's counters.
    Sample(Box<StatSample>),
    /// The miss-ratio curve, and what follows from it.
    Advice(Box<Advice>),
    /// The activity of clients.
    Activity(Box<Activity>),
    /// Some operations of clients; another response follows.
    Trace(TraceBatch),
    /// The settings in force.
    Config {
        /// Every setting of the configuration file.
        entries: Vec<Entry>,
    },
    /// A text, as the request names it.
    Text {
        /// The text.
        text: String,
    },
    /// One event; another response follows.
    Event(Event),
    /// The progress of a flush; another response follows.
    Progress(FlushProgress),
    /// The progress of warming; another response follows.
    Warming(WarmReport),
    /// The warming has ended.
    Warmed(WarmReport),
    /// A flush has succeeded.
    Flushed(FlushReport),
    /// The mode, after the change if the request made one.
    Mode {
        /// Configured mode.
        mode: Mode,
        /// Mode in force, if it differs because cache devices are missing.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        effective_mode: Option<Mode>,
    },
    /// The pool, after the change if the request made one.
    Pool(Box<PoolStatus>),
    /// The block volumes that the request was about, after the change.
    Volumes {
        /// The volumes.
        volumes: Vec<VolumeStatus>,
    },
    /// The policies that the request was about, after the change.
    Policies(PolicyReport),
    /// The results of a test of notifications.
    Delivered {
        /// One result for each target.
        deliveries: Vec<Delivery>,
    },
    /// The result of reading the configuration again.
    Reloaded(ReloadReport),
    /// How much is cached of some files; with `drop`, how much was cached before.
    Cached(CachedFiles),
    /// The answer is complete.
    Done,
    /// The request failed.
    Error {
        /// One sentence that names the failure and the remedy.
        message: String,
    },
}

impl Response {
    /// Returns true if this line is the last of the answer.
    pub fn is_final(&self) -> bool {
        !matches!(self, Self::Event(_) | Self::Progress(_) | Self::Trace(_) | Self::Warming(_))
    }
}

/// The result of reading the configuration again. If there are mistakes, nothing has changed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReloadReport {
    /// Mistakes in the configuration, a sentence each.
    #[serde(default)]
    pub mistakes: Vec<String>,
    /// Settings that have changed in service, each with its table, its key and its two values.
    pub changed: Vec<String>,
    /// Settings that take effect only at the next start, each with its table, its key and its two values.
    pub at_next_start: Vec<String>,
}

/// The progress of a flush.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlushProgress {
    /// Bytes that are durable; file systems instead of bytes if `bytes` is false.
    pub done: u64,
    /// Bytes or file systems in total, as far as known.
    pub total: u64,
    /// True if `done` and `total` count bytes; false if they count file systems.
    pub bytes: bool,
}

/// The result of a flush.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlushReport {
    /// File systems made durable.
    pub filesystems: u64,
    /// Bytes written from the cache to the backing store; 0 without a cache.
    pub destaged_bytes: u64,
    /// Bytes that are still only in the cache; 0 unless writes went on meanwhile.
    pub dirty_bytes: u64,
    /// Duration of the flush, in nanoseconds.
    pub elapsed_ns: u64,
}

/// How far warming has come.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WarmReport {
    /// Files in total.
    pub total_files: u64,
    /// Bytes in total.
    pub total_bytes: u64,
    /// Files that were looked at.
    pub files: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Bytes that were brought to the cache devices.
    pub brought_bytes: u64,
    /// Bytes that the cache devices had before.
    pub had_bytes: u64,
    /// Bytes that did not fit into unused space, or that are never kept by their policy.
    pub left_bytes: u64,
    /// Files that could not be read.
    pub failed_files: u64,
}

/// How much is cached of some files.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CachedFiles {
    /// Files that were examined; a file with several names counts once.
    pub files: u64,
    /// Files of which any block is cached.
    pub cached_files: u64,
    /// Files with contents that the directory does not have yet.
    pub dirty_files: u64,
    /// Bytes on the cache devices; dirty data counts once, not once per copy.
    pub ssd_bytes: u64,
    /// Bytes among `ssd_bytes` that the directory does not have yet.
    pub dirty_bytes: u64,
    /// Bytes cached in memory.
    pub ram_bytes: u64,
    /// Files that could not be dropped completely because clients wrote to them meanwhile; 0 unless `drop` was set.
    #[serde(default)]
    pub kept_files: u64,
    /// The policy of the path; absent with `drop`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<PolicyInForce>,
}

/// The pool of cache devices.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct PoolStatus {
    /// True if there is a cache. If false, all other fields are empty.
    pub configured: bool,
    /// Devices of the pool.
    pub devices: Vec<PoolDevice>,
    /// Facts about the devices that are not failures, such as two devices on one disk; one sentence each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// Bytes of clean data.
    pub clean_bytes: u64,
    /// Bytes of dirty data, counted once.
    pub dirty_bytes: u64,
    /// Percentage of the devices' segments loaded since the start; below 100, clean data is still being loaded.
    #[serde(default = "all_loaded")]
    pub loaded_percent: u8,
    /// Age of the oldest dirty data, in nanoseconds.
    #[serde(default)]
    pub dirty_age_ns: u64,
    /// Bytes cached in memory.
    #[serde(default)]
    pub ram_bytes: u64,
    /// Most bytes that may be cached in memory.
    #[serde(default)]
    pub ram_limit_bytes: u64,
    /// Files that the cache has an index entry for.
    #[serde(default)]
    pub objects: u64,
    /// Bytes of memory that the index of the cache devices uses; the figure is some seconds old at most.
    #[serde(default)]
    pub index_bytes: u64,
    /// Bytes of index memory for each block of 4 KiB on the cache devices.
    #[serde(default)]
    pub index_bytes_per_block: f64,
    /// The scrub in progress, or the last one since the start.
    #[serde(default)]
    pub scrub: ScrubStatus,
    /// The work on the pool that is in progress.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub work: Vec<PoolWork>,
    /// Counters since the start.
    #[serde(default)]
    pub counters: CacheCounters,
}

/// A work on the pool that is in progress. Amounts of a load and of a scrub are segments, the others are bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolWork {
    /// The kind of the work.
    pub kind: PoolWorkKind,
    /// The device that the work is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<PathBuf>,
    /// The amount that is done.
    pub done: u64,
    /// The whole amount; it grows if clients write.
    pub total: u64,
    /// The estimated time left in nanoseconds; absent until the rate is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left_ns: Option<u64>,
}

/// A kind of work on the pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PoolWorkKind {
    /// Clean data is found again after a start.
    Load,
    /// Dirty data that is on one device gets its second copy, or is destaged.
    Rebuild,
    /// The data that keeps a device in use is destaged.
    Removal,
    /// Every copy is read and checked.
    Scrub,
}

fn all_loaded() -> u8 {
    100
}

/// A scrub, which reads every copy of every block. Blocks are of 4 KiB.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScrubStatus {
    /// Number of the scrub since the start; 0 if there was none.
    pub number: u64,
    /// True if the scrub is in progress.
    pub running: bool,
    /// Segments that the scrub has finished.
    pub segments_done: u64,
    /// Segments in total.
    pub segments: u64,
    /// Copies of blocks that were read.
    pub blocks_checked: u64,
    /// Bad copies that were rewritten from good ones.
    pub blocks_repaired: u64,
    /// Clean blocks dropped because their copy was bad. The backing store has their contents.
    pub blocks_dropped: u64,
    /// Dirty blocks without any readable copy. Their contents are lost.
    pub blocks_lost: u64,
}

/// A device of the pool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolDevice {
    /// Block device or file, as the administrator named it.
    pub path: PathBuf,
    /// Name in /dev/disk/by-id of a block device. It does not change when the system restarts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stable_path: Option<String>,
    /// Serial number of the disk under the device, if the disk reports one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serial: Option<String>,
    /// The device's UUID in the pool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uuid: Option<String>,
    /// Size in bytes; 0 if the device is absent.
    pub size_bytes: u64,
    /// State: `healthy`; `leaving` while the device is being removed; `lost` if it failed or is out of date;
    /// `missing` if it was absent at the start.
    pub state: String,
    /// Health report of the SSD, if the SSD gives one and the server may ask for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wear: Option<DeviceWear>,
}

/// An SSD's report on its health. A field is absent if the SSD does not report it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceWear {
    /// Percentage of the rated life used; it may exceed 100.
    pub life_used_percent: Option<u8>,
    /// Percentage of the spare blocks that are left.
    pub spare_percent: Option<u8>,
    /// Times that the device could not return stored data.
    pub media_errors: Option<u64>,
    /// Warnings of the SSD, one bit each (NVM Express Base Specification 2.0, figure 207); 0 means none.
    pub warnings: Option<u8>,
}
