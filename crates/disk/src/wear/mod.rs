//! The health that SSDs report.

mod ata;
mod nvme;

use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{Dev, FileType, Mode, OFlags};

/// The number of layers of partitions and volumes that are followed.
const LAYERS: usize = 8;

/// The health of an SSD. Values that the device does not report are `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Health {
    /// Percent of the rated life used, by the manufacturer's estimate. May exceed 100; 255 stands for more than 254.
    pub life_used: Option<u8>,
    /// Percent of the spare blocks left.
    pub spare: Option<u8>,
    /// The number of times that the device could not return stored data, over its life.
    pub media_errors: Option<u64>,
    /// The warnings of the device, a bit each, 0 for none: 1 spare blocks low, 2 too hot or cold, 4 unreliable, 8
    /// read-only, 16 backup for power loss failed (NVM Express Base Specification 2.0, figure 207).
    pub warnings: Option<u8>,
}

/// Returns the name in /dev of the disk behind an open file or block device. Returns `None` if there is no single disk,
/// or disks of its kind do not report their health.
pub(crate) fn disk(file: &File) -> Option<String> {
    let name = drive(file)?;
    query_of(&name).map(|_| name)
}

/// Returns the name in /sys/block of the disk behind an open file or block device; `None` if there is no single disk.
pub(crate) fn drive(file: &File) -> Option<String> {
    physical(Path::new("/sys"), device_of(file)?)
}

/// Returns the query that disks of this name understand.
fn query_of(name: &str) -> Option<fn(&OwnedFd) -> Option<Health>> {
    if !name.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
        return None;
    }
    match name {
        name if name.starts_with("nvme") => Some(nvme::health),
        name if name.starts_with("sd") => Some(ata::health),
        _ => None,
    }
}

/// Returns the health that a disk reports; `name` is the result of [`FileDevice::disk`](crate::FileDevice::disk).
/// Returns `None` if the disk reports nothing, or this process may not ask (CAP_SYS_ADMIN for NVMe, CAP_SYS_RAWIO for
/// SATA). Blocks for some milliseconds.
pub fn ask(name: &str) -> Option<Health> {
    let query = query_of(name)?;
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let node = rustix::fs::open(Path::new("/dev").join(name), flags, Mode::empty()).ok()?;
    query(&node)
}

/// Returns the block device that the file is or is stored on.
fn device_of(file: &File) -> Option<Dev> {
    let stat = rustix::fs::fstat(file).ok()?;
    Some(match FileType::from_raw_mode(stat.st_mode) {
        FileType::BlockDevice => stat.st_rdev,
        _ => stat.st_dev,
    })
}

/// Returns the name in /dev of the whole disk below partitions, and below volumes that lie on one device only.
fn physical(sys: &Path, device: Dev) -> Option<String> {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let mut place = std::fs::canonicalize(sys.join(format!("dev/block/{major}:{minor}"))).ok()?;
    for _ in 0..LAYERS {
        if place.join("partition").exists() {
            place.pop();
        } else if let Some(below) = only_slave(&place)? {
            place = below;
        } else {
            return place.file_name()?.to_str().map(str::to_owned);
        }
    }
    None
}

/// Returns the device below a volume: `Some(None)` if there is none below, `None` if there are several.
fn only_slave(place: &Path) -> Option<Option<PathBuf>> {
    let Ok(mut slaves) = std::fs::read_dir(place.join("slaves")) else { return Some(None) };
    match (slaves.next(), slaves.next()) {
        (None, _) => Some(None),
        (Some(Ok(slave)), None) => std::fs::canonicalize(slave.path()).ok().map(Some),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// Returns a sysfs tree with a disk, a partition of the disk, a volume on that, and a volume over two disks.
    fn sysfs() -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let devices = root.path().join("devices");
        let add = |place: &str, number: &str| {
            std::fs::create_dir_all(devices.join(place).join("slaves")).unwrap();
            std::fs::create_dir_all(root.path().join("dev/block")).unwrap();
            symlink(devices.join(place), root.path().join("dev/block").join(number)).unwrap();
        };
        add("nvme0n1", "259:0");
        add("nvme0n1/nvme0n1p2", "259:2");
        std::fs::write(devices.join("nvme0n1/nvme0n1p2/partition"), "2").unwrap();
        add("sda", "8:0");
        add("dm-0", "253:0");
        symlink(devices.join("nvme0n1/nvme0n1p2"), devices.join("dm-0/slaves/nvme0n1p2")).unwrap();
        add("md0", "9:0");
        symlink(devices.join("sda"), devices.join("md0/slaves/sda")).unwrap();
        symlink(devices.join("nvme0n1"), devices.join("md0/slaves/nvme0n1")).unwrap();
        root
    }

    #[test]
    fn the_disk_below_is_found_where_there_is_one() {
        let sys = sysfs();
        let below = |major, minor| physical(sys.path(), rustix::fs::makedev(major, minor));
        for (major, minor) in [(259, 0), (259, 2), (253, 0)] {
            assert_eq!(below(major, minor).as_deref(), Some("nvme0n1"));
        }
        assert_eq!(below(8, 0).as_deref(), Some("sda"));
        assert_eq!(below(9, 0), None, "two disks");
        assert_eq!(below(7, 7), None, "no such device");
    }

    #[test]
    fn only_disks_are_asked() {
        for name in ["../etc/passwd", "sda/x", "loop0", "nvme0n1\n", ""] {
            assert!(query_of(name).is_none(), "{name}");
        }
        assert!(query_of("nvme12n1").is_some() && query_of("sdaa").is_some());
    }
}
