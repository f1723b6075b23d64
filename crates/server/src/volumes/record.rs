//! The record of the volumes in the state directory: the file `volumes.json`, replaced atomically and durably.

use std::io;
use std::path::{Path, PathBuf};

use forebay_common::state_file;
use forebay_config::Mode;
use serde::{Deserialize, Serialize};

use crate::volumes::attach::Attached;
use crate::volumes::identity::{Identity, Sign};

/// The version of the file. A later version is refused.
const VERSION: u32 = 1;

/// A volume as the state directory knows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    /// The name that an administrator gave it.
    pub(crate) name: String,
    /// The UUID in the keys of the cache. No other volume ever has it.
    #[serde(with = "hexadecimal")]
    pub(crate) uuid: u128,
    /// The backing device.
    pub(crate) backing: PathBuf,
    /// The identity of the backing device when it was last in use.
    pub(crate) identity: Identity,
    /// The volume's own mode; absent: it has the server's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) mode: Option<Mode>,
    /// True if every change is refused.
    #[serde(default)]
    pub(crate) read_only: bool,
    /// Present after a stop at which the backing device had everything. Others may have used the device since.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) rest: Option<Rest>,
    /// The block device of the volume on this host; absent: the volume is not attached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) ublk: Option<Attached>,
}

/// A clean stop without dirty data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Rest {
    /// The sign of the device at the stop; absent if the system had none.
    pub(crate) sign: Option<Sign>,
}

/// A volume that was removed. Its data in the log counts no more. The file names the volume until the log says so,
/// because a start that finds changes of an unknown volume fails.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Removed {
    /// The UUID in the keys of the cache.
    #[serde(with = "hexadecimal")]
    pub(crate) uuid: u128,
    /// The size of the backing device in bytes.
    pub(crate) size: u64,
}

/// The contents of the file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Records {
    version: u32,
    /// The volumes.
    pub(crate) volumes: Vec<Record>,
    /// The removed volumes of which the log may still have data.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) removed: Vec<Removed>,
}

impl Records {
    pub(crate) fn new(volumes: Vec<Record>, removed: Vec<Removed>) -> Self {
        Records { version: VERSION, volumes, removed }
    }

    /// Returns true if there is nothing to record.
    pub(crate) fn is_empty(&self) -> bool {
        self.volumes.is_empty() && self.removed.is_empty()
    }
}

/// Reads the record of a state directory.
///
/// # Errors
/// The file cannot be read, or is of a later version.
pub(crate) fn read(state_dir: &Path) -> io::Result<Records> {
    #[derive(Deserialize)]
    struct Versioned {
        version: u32,
    }
    let path = state_dir.join("volumes.json");
    let Some(text) = state_file::read(&path)? else { return Ok(Records::default()) };
    let remedy = "restore it; without it the server does not start while the cache has changes of volumes";
    let broken = |error: serde_json::Error| state_file::damaged(&path, &format!("{remedy} ({error})"));
    let Versioned { version } = serde_json::from_str(&text).map_err(broken)?;
    if version != VERSION {
        let message = format!("{} is of a later version of Forebay; start that version", path.display());
        return Err(io::Error::new(io::ErrorKind::InvalidData, message));
    }
    serde_json::from_str(&text).map_err(broken)
}

/// Writes the record of a state directory, durably.
///
/// # Errors
/// The file cannot be written.
pub(crate) fn write(state_dir: &Path, records: &Records) -> io::Result<()> {
    let text = serde_json::to_string_pretty(records)?;
    state_file::replace(&state_dir.join("volumes.json"), text + "\n")
}

/// Writes 128 bits as 32 hexadecimal digits.
mod hexadecimal {
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(value: &u128, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&format!("{value:032x}"))
    }

    /// Reads a UUID from hexadecimal digits without hyphens.
    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u128, D::Error> {
        let text = String::deserialize(deserializer)?;
        u128::from_str_radix(&text, 16).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_read_and_a_later_version_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        assert!(read(dir.path()).unwrap().is_empty());
        let record = Record {
            name: "scratch".into(),
            uuid: 0xab,
            backing: "/dev/sdx".into(),
            identity: Identity { is_block: true, size: 1 << 30, ..Identity::default() },
            mode: Some(Mode::WriteThrough),
            read_only: false,
            rest: Some(Rest { sign: None }),
            ublk: Some(Attached { number: 3, mark: u64::MAX }),
        };
        let records = Records::new(vec![record], vec![Removed { uuid: 0xcd, size: 4096 }]);
        write(dir.path(), &records).unwrap();
        assert_eq!(read(dir.path()).unwrap(), records);
        let path = dir.path().join("volumes.json");
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.contains(&format!("{:032x}", 0xab)), "{text}");
        std::fs::write(&path, text.replace("\"version\": 1", "\"version\": 2")).unwrap();
        assert!(read(dir.path()).unwrap_err().to_string().contains("later version"));
        std::fs::write(&path, "").unwrap();
        assert!(read(dir.path()).is_err(), "a damaged record is no empty record");
    }
}
