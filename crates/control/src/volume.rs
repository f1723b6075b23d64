//! Block volumes in the control protocol.

use std::path::PathBuf;

use forebay_config::Mode;
use serde::{Deserialize, Serialize};

/// A request about block volumes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "volume", rename_all = "kebab-case")]
pub enum VolumeRequest {
    /// Shows all volumes, or one.
    List {
        /// Name of the volume; absent means all.
        #[serde(default)]
        name: Option<String>,
    },
    /// Makes a volume of a block device or file. Its data stays as it is.
    Create {
        /// Name of the volume.
        name: String,
        /// Absolute path of the block device or file.
        backing: PathBuf,
        /// The volume's own mode; absent means that of the server.
        #[serde(default)]
        mode: Option<Mode>,
        /// True to refuse every change.
        #[serde(default)]
        read_only: bool,
    },
    /// Destages a volume and takes it out of service. The device is an ordinary device then.
    Remove {
        /// Name of the volume.
        name: String,
        /// True to give up data that cannot be destaged.
        #[serde(default)]
        give_up: bool,
    },
    /// Takes over a larger size of the backing device.
    Resize {
        /// Name of the volume.
        name: String,
        /// New size of a file in bytes; absent means the size that the device has.
        #[serde(default)]
        size: Option<u64>,
    },
    /// Changes the mode of a volume.
    Mode {
        /// Name of the volume.
        name: String,
        /// The volume's own mode; absent means that of the server.
        #[serde(default)]
        mode: Option<Mode>,
    },
    /// Makes everything written so far durable on the backing device.
    Flush {
        /// Name of the volume.
        name: String,
    },
    /// Makes a block device of a volume on the server's host. Without ublk there, the answer has the reason.
    Attach {
        /// Name of the volume.
        name: String,
    },
    /// Ends the block device of a volume, and makes everything written so far durable on the backing device.
    Detach {
        /// Name of the volume.
        name: String,
    },
}

/// A block volume.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct VolumeStatus {
    /// Name of the volume.
    pub name: String,
    /// UUID of the volume, which no other volume ever has.
    pub uuid: String,
    /// The backing block device or file.
    pub backing: PathBuf,
    /// Size in bytes.
    pub size_bytes: u64,
    /// State: `serving`, or `refused` if the backing device is missing or is another one.
    pub state: String,
    /// Why the volume is refused, a sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The volume's own mode; absent if it has the server's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub own_mode: Option<Mode>,
    /// Mode in force.
    pub mode: Mode,
    /// True if every change is refused.
    #[serde(default)]
    pub read_only: bool,
    /// Serial number of the disk under the device, if the disk reports one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serial: Option<String>,
    /// Bytes that the backing device does not have yet.
    #[serde(default)]
    pub dirty_bytes: u64,
    /// The block device of the volume on the server's host, if it is attached and served.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<PathBuf>,
    /// In the answer to a request to attach: why the server's host has no block device of the volume, a sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub no_device: Option<String>,
    /// In the answer to a request to create: a danger that the backing device has, a sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub caution: Option<String>,
    /// Address of the NBD server, if the volume is exported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nbd: Option<String>,
    /// Read requests since the start.
    #[serde(default)]
    pub reads: u64,
    /// Bytes read since the start.
    #[serde(default)]
    pub read_bytes: u64,
    /// Write requests since the start.
    #[serde(default)]
    pub writes: u64,
    /// Bytes written since the start.
    #[serde(default)]
    pub written_bytes: u64,
    /// Flushes since the start.
    #[serde(default)]
    pub flushes: u64,
    /// Bytes discarded or zeroed since the start.
    #[serde(default)]
    pub discarded_bytes: u64,
    /// Requests that failed since the start.
    #[serde(default)]
    pub errors: u64,
}
