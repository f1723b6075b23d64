//! What SSDs say about their health.

mod ata;
mod nvme;

use std::fs::File;
use std::path::{Path, PathBuf};

use rustix::fs::{Dev, FileType, Mode, OFlags};

/// How many layers of partitions and volumes are looked through.
const LAYERS: usize = 8;

/// The health of an SSD. What the device does not tell is `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Health {
    /// Percent of the rated life used, by the maker's estimate. May go past 100; 255 stands for more than 254.
    pub life_used: Option<u8>,
    /// Percent of the spare blocks left.
    pub spare: Option<u8>,
    /// Times that the device could not give back what was stored on it, over its life.
    pub media_errors: Option<u64>,
    /// What the device warns of, as a bit each, 0 for nothing: 1 spare blocks low, 2 too hot or cold, 4 unreliable, 8
    /// read-only, 16 its backup for power loss has failed (NVM Express Base Specification 2.0, figure 207).
    pub warnings: Option<u8>,
}

/// The health of the SSD behind an open file or block device; `None` where there is no single one, it tells nothing, or this
/// process may not ask (CAP_SYS_ADMIN or CAP_SYS_RAWIO).
pub(crate) fn health(file: &File) -> Option<Health> {
    let name = physical(device_of(file)?)?;
    let query = match &name {
        name if name.starts_with("nvme") => nvme::health,
        name if name.starts_with("sd") => ata::health,
        _ => return None,
    };
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let node = rustix::fs::open(Path::new("/dev").join(name), flags, Mode::empty()).ok()?;
    query(&node)
}

/// The block device that the file is or is stored on.
fn device_of(file: &File) -> Option<Dev> {
    let stat = rustix::fs::fstat(file).ok()?;
    Some(match FileType::from_raw_mode(stat.st_mode) {
        FileType::BlockDevice => stat.st_rdev,
        _ => stat.st_dev,
    })
}

/// The name in /dev of the whole disk below partitions, and below volumes that lie on one device only.
fn physical(device: Dev) -> Option<String> {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let mut place = std::fs::canonicalize(format!("/sys/dev/block/{major}:{minor}")).ok()?;
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

/// The device below a volume: `Some(None)` if there is none below, `None` if there are several.
fn only_slave(place: &Path) -> Option<Option<PathBuf>> {
    let Ok(mut slaves) = std::fs::read_dir(place.join("slaves")) else { return Some(None) };
    match (slaves.next(), slaves.next()) {
        (None, _) => Some(None),
        (Some(Ok(slave)), None) => std::fs::canonicalize(slave.path()).ok().map(Some),
        _ => None,
    }
}
