//! The settings of an engine.

use std::time::Duration;

use crate::mode::Mode;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// The configurable settings of an engine.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// The mode, as long as the pool has two devices.
    pub mode: Mode,
    /// Bytes of memory for cached blocks.
    pub ram: u64,
    /// The time that dirty data waits to be written together with more data, if the log has room.
    pub destage_after: Duration,
    /// The interval between two scrubs. The time of the scrub itself comes on top.
    pub scrub_every: Duration,
    /// The time after which a device without an answer is lost, while another device answers.
    pub device_deadline: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            mode: Mode::WriteBack,
            ram: 256 << 20,
            destage_after: Duration::from_secs(5),
            scrub_every: DAY,
            device_deadline: Duration::from_secs(10),
        }
    }
}
