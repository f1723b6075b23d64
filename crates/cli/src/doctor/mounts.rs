//! The mount that contains a directory, from `/proc/self/mountinfo` (proc(5)).

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// A mounted file system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mount {
    pub(crate) point: PathBuf,
    pub(crate) fs_type: String,
    pub(crate) source: PathBuf,
    /// Number of the device, such as `0:52`.
    pub(crate) device: String,
    /// Options of the mount and of the file system.
    options: Vec<String>,
}

impl Mount {
    /// Returns the mount that contains `path`, which is absolute and without symbolic links.
    pub(crate) fn of(path: &Path) -> Option<Self> {
        let table = std::fs::read("/proc/self/mountinfo").ok()?;
        Self::find(&table, path)
    }

    /// Returns all mounts.
    pub(crate) fn all() -> Vec<Self> {
        let table = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
        table.split(|byte| *byte == b'\n').filter_map(Self::parse).collect()
    }

    /// Finds the mount that contains `path`. Of two mounts on one point, the later one hides the earlier one.
    fn find(table: &[u8], path: &Path) -> Option<Self> {
        let mounts = table.split(|byte| *byte == b'\n').filter_map(Self::parse);
        let holding = mounts.filter(|mount| path.starts_with(&mount.point));
        holding.max_by_key(|mount| mount.point.components().count())
    }

    /// Parses a line such as `36 35 98:0 /root /point rw,noatime master:1 - ext3 /dev/root rw,errors=continue`.
    pub(super) fn parse(line: &[u8]) -> Option<Self> {
        let fields: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
        let dash = fields.iter().position(|field| *field == b"-")?;
        let text = |field: &[u8]| String::from_utf8_lossy(field).into_owned();
        let options = fields.get(5).into_iter().chain(fields.get(dash + 3));
        Some(Self {
            point: unescape(fields.get(4)?),
            fs_type: text(fields.get(dash + 1)?),
            source: unescape(fields.get(dash + 2)?),
            device: text(fields.get(2)?),
            options: options.flat_map(|field| field.split(|byte| *byte == b',')).map(text).collect(),
        })
    }

    pub(crate) fn has(&self, option: &str) -> bool {
        self.options.iter().any(|own| own == option)
    }
}

impl Mount {
    /// Returns the value of an option such as `vers=4.2`.
    pub(crate) fn value(&self, option: &str) -> Option<&str> {
        self.options.iter().find_map(|own| own.strip_prefix(option)?.strip_prefix('='))
    }
}

/// Replaces the octal escapes of space, tab, newline and backslash.
fn unescape(field: &[u8]) -> PathBuf {
    let mut bytes = Vec::new();
    let mut rest = field;
    while let [first, tail @ ..] = rest {
        let escaped = match rest {
            [b'\\', a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', ..] => {
                Some((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'))
            }
            _ => None,
        };
        bytes.push(escaped.unwrap_or(*first));
        rest = if escaped.is_some() { &rest[4..] } else { tail };
    }
    PathBuf::from(OsString::from_vec(bytes))
}

/// Returns true if the path is below /dev.
pub(crate) fn is_device_path(path: &Path) -> bool {
    path.as_os_str().as_bytes().starts_with(b"/dev/")
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &[u8] = b"\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw,errors=remount-ro
30 22 8:17 / /srv rw,noatime - xfs /dev/sdb1 rw,inode64
31 22 0:40 / /srv/my\\040data rw - tmpfs tmpfs rw,size=1024k
32 22 8:33 / /srv rw,strictatime - ext4 /dev/sdc1 rw,nobarrier
broken line
";

    #[test]
    fn the_deepest_and_latest_mount_holds_a_path() {
        let mount = |path: &str| Mount::find(TABLE, Path::new(path)).unwrap();
        assert_eq!(
            (mount("/home").fs_type.as_str(), mount("/home").source.as_path()),
            ("ext4", Path::new("/dev/sda1"))
        );
        assert_eq!(mount("/srv/my data/x").fs_type, "tmpfs");
        let later = mount("/srv/other");
        assert_eq!(later.source, Path::new("/dev/sdc1"));
        assert!(later.has("nobarrier") && later.has("strictatime") && !later.has("noatime"));
        assert_eq!(mount("/srvx").point, Path::new("/"));
    }
}
