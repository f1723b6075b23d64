//! The identity of a volume's backing device.
//!
//! The device holds the user's data from its first byte to its last, so Forebay writes no mark of its own on it. The
//! identity is what the system reports: the serial number of the disk, the place of the partition, the UUID of a device
//! mapper or MD device; of a file its file system, its inode and the time of its creation. A copy of a file is another
//! file. The identity of a loop device is that of the file below.

use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use forebay_common::nbd_url::NbdUrl;
use forebay_disk::whereabouts;
use forebay_vfs::ExportIdentity;
use rustix::fs::{AtFlags, CWD, Dev, StatxFlags, major, minor};
use serde::{Deserialize, Serialize};

use super::unopened::unopened;

/// The facts that the system reports of a backing device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Identity {
    /// True if it is a block device, false if it is a file.
    pub(crate) is_block: bool,
    /// Size in bytes.
    pub(crate) size: u64,
    /// Serial number or world-wide name of the disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) serial: Option<String>,
    /// UUID of a device mapper or MD device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) mapped: Option<String>,
    /// Of a partition: its number, and its first sector of 512 bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) partition: Option<(u64, u64)>,
    /// Of an NBD export: its name. The server says nothing more that lasts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) export: Option<String>,
    /// Of an NBD export: the unit of requests in bytes, which are then possible before the server is there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) unit: Option<u32>,
    /// Of a loop device: the file below. Absent in records of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) image: Option<Box<Image>>,
    /// Of a file: its file system, if that has a UUID, and the subvolume. Absent in records of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) file_system: Option<String>,
    /// Of a file: its inode number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) inode: Option<u64>,
    /// Of a file: the time of its creation, in nanoseconds since 1970, if the file system has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) born_ns: Option<i128>,
}

/// The part of a file or device that is under a loop device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Image {
    /// The file or device, with 0 as its size.
    below: Identity,
    /// The offset of the part in bytes.
    offset: u64,
    /// The length of the part in bytes; 0: up to the end.
    limit: u64,
}

impl Image {
    /// Examines what is under the block device with this directory of sysfs. `None` if that is no loop device, or its
    /// file cannot be reached.
    fn under(disk: &Path) -> Option<Image> {
        let place = disk.join("loop");
        let number = |name: &str| text(&place.join(name))?.parse().ok();
        let path = PathBuf::from(text(&place.join("backing_file"))?);
        let below = Identity::of(&path, 0).ok()?;
        Some(Image { below, offset: number("offset")?, limit: number("sizelimit")? })
    }

    /// Returns what of `here` differs from this one, as the end of a sentence.
    fn difference(&self, here: &Image) -> Option<String> {
        if (self.offset, self.limit) != (here.offset, here.limit) {
            return Some("another part of the file is under the loop device".to_owned());
        }
        let below = self.below.difference(&here.below)?;
        Some(format!("the loop device has another file below: {below}"))
    }
}

impl Identity {
    /// Examines the device at `path`, which is not opened.
    ///
    /// # Errors
    /// A sentence: it is neither a block device nor a file, or cannot be examined.
    pub(crate) fn of(path: &Path, size: u64) -> Result<Identity, String> {
        let failed = |error: std::io::Error| unopened(path, &error);
        let meta = std::fs::metadata(path).map_err(failed)?;
        if meta.file_type().is_block_device() {
            let sys = sys_of(meta.rdev());
            let number = |name: &str| text(&sys.join(name))?.parse().ok();
            let serial = whereabouts(path).map_err(failed)?.serial;
            let mapped = text(&sys.join("dm/uuid")).or_else(|| text(&sys.join("md/uuid")));
            let partition = number("partition").zip(number("start"));
            let image = disk_of(meta.rdev()).and_then(|disk| Image::under(&disk)).map(Box::new);
            return Ok(Identity {
                is_block: true,
                size,
                serial,
                mapped,
                partition,
                image,
                ..Identity::default()
            });
        }
        if !meta.is_file() {
            return Err(format!(
                "{} is neither a block device nor a regular file; name one of these",
                path.display()
            ));
        }
        let wanted = StatxFlags::BTIME | StatxFlags::INO;
        let found =
            rustix::fs::statx(CWD, path, AtFlags::empty(), wanted).map_err(|errno| failed(errno.into()))?;
        let has_birth = found.stx_mask & StatxFlags::BTIME.bits() != 0;
        let birth = i128::from(found.stx_btime.tv_sec) * 1_000_000_000 + i128::from(found.stx_btime.tv_nsec);
        let (inode, born_ns) = (Some(found.stx_ino), has_birth.then_some(birth));
        Ok(Identity { size, inode, born_ns, file_system: file_system(path), ..Identity::default() })
    }

    /// Returns true if the system reports nothing by which the device at `path` differs from another one of its size.
    /// A serial number under a loop or device mapper device is that of a disk, which may be under several of these.
    pub(crate) fn is_ambiguous(&self, path: &Path) -> bool {
        if !self.is_block || self.mapped.is_some() || self.image.is_some() {
            return false;
        }
        let number = std::fs::metadata(path).map(|meta| meta.rdev());
        let disk = number.ok().and_then(disk_of);
        self.serial.is_none()
            || disk.is_none_or(|disk| ["loop", "dm"].iter().any(|kind| disk.join(kind).exists()))
    }

    /// Takes over the facts of the recorded device as the system reports them now: a larger size, and facts that an
    /// earlier version did not record. [`Identity::difference`] has found none.
    pub(crate) fn learn(&mut self, here: Identity) {
        let file_system = self.file_system.take();
        *self = here;
        self.file_system = self.file_system.take().or(file_system);
    }

    /// Returns what of `here` differs from this identity, as the end of a sentence. A larger device is the same one.
    pub(crate) fn difference(&self, here: &Identity) -> Option<String> {
        let shown = |value: &Option<String>| value.clone().unwrap_or_else(|| "none".to_owned());
        if self.export != here.export {
            let kind = |export: &Option<String>| match export {
                Some(name) => format!("the NBD export `{name}`"),
                None => "a device of this host".to_owned(),
            };
            return Some(format!("expected is {}, and there is {}", kind(&self.export), kind(&here.export)));
        }
        if self.is_block != here.is_block {
            let kind = |is_block| if is_block { "a block device" } else { "a file" };
            return Some(format!(
                "expected is {}, and there is {}",
                kind(self.is_block),
                kind(here.is_block)
            ));
        }
        if self.serial != here.serial {
            let (expected, here) = (shown(&self.serial), shown(&here.serial));
            return Some(format!("expected is serial number {expected}, and there is {here}"));
        }
        if self.mapped != here.mapped {
            let (expected, here) = (shown(&self.mapped), shown(&here.mapped));
            return Some(format!("expected is UUID {expected}, and there is {here}"));
        }
        if self.partition != here.partition {
            return Some("another partition of the disk is there".to_owned());
        }
        match (&self.image, &here.image) {
            (Some(image), Some(here)) => {
                if let Some(difference) = image.difference(here) {
                    return Some(difference);
                }
            }
            (Some(_), None) => {
                return Some("expected is a loop device over a file, and there is none".to_owned());
            }
            (None, _) => {}
        }
        if let (Some(expected), Some(here)) = (&self.file_system, &here.file_system)
            && expected != here
        {
            return Some(format!(
                "another file is there, perhaps a copy: expected is one on {expected}, and it is on {here}"
            ));
        }
        if (self.inode, self.born_ns) != (here.inode, here.born_ns) {
            return Some("another file is there, perhaps a copy".to_owned());
        }
        let shrunk = here.size < self.size;
        shrunk.then(|| format!("expected are {} bytes, and there are {}", self.size, here.size))
    }
}

/// Returns the file system of a file for people and for comparison: its type, its UUID, and the subvolume. `None` if it
/// has no UUID that survives a mount.
fn file_system(path: &Path) -> Option<String> {
    let here = ExportIdentity::at(path.parent()?).ok()?;
    let subvolume = here.subvolume().map(|number| format!(", subvolume {number}")).unwrap_or_default();
    Some(format!("{} {}{subvolume}", here.fs_type(), here.uuid()?))
}

/// Returns true if the disks of a device are slow at random access.
pub(crate) fn is_rotational(path: &Path) -> bool {
    let disks = whereabouts(path).map(|place| place.disks).unwrap_or_default();
    let queue = |disk: &String| text(&Path::new("/sys/block").join(disk).join("queue/rotational"));
    disks.iter().any(|disk| queue(disk).as_deref() == Some("1"))
}

/// A sign that changes whenever a program writes to the device. It is compared after a time without this server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Sign(String);

impl Sign {
    /// Returns the present sign; `None` if the system has none.
    pub(crate) fn of(path: &Path) -> Option<Sign> {
        if NbdUrl::is_meant(path) {
            return None;
        }
        let meta = std::fs::metadata(path).ok()?;
        if !meta.file_type().is_block_device() {
            return Some(Sign(format!("{} {}.{:09}", meta.size(), meta.ctime(), meta.ctime_nsec())));
        }
        let disk = disk_of(meta.rdev())?;
        // Sectors written and discarded since the system started (Documentation/block/stat.rst).
        let counters = text(&disk.join("stat"))?;
        let counters: Vec<_> = counters.split_whitespace().collect();
        let boot = text(Path::new("/proc/sys/kernel/random/boot_id"))?;
        let sequence = text(&disk.join("diskseq")).unwrap_or_default();
        Some(Sign(format!("{boot} {sequence} {} {}", counters.get(6)?, counters.get(13).unwrap_or(&"0"))))
    }
}

/// Returns the directory of sysfs of a block device, or of its disk if the device is a partition.
pub(super) fn disk_of(number: Dev) -> Option<PathBuf> {
    let mut disk = sys_of(number).canonicalize().ok()?;
    if disk.join("partition").exists() {
        disk.pop();
    }
    Some(disk)
}

pub(super) fn sys_of(number: Dev) -> PathBuf {
    PathBuf::from(format!("/sys/dev/block/{}:{}", major(number), minor(number)))
}

/// Returns the trimmed text of a file of sysfs, or `None` if it is empty or cannot be read.
pub(super) fn text(path: &Path) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    Some(text.trim().to_owned()).filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_of_a_file_is_another_file_and_a_longer_one_is_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let (path, copy) = (dir.path().join("image"), dir.path().join("copy"));
        std::fs::write(&path, [7; 8192]).unwrap();
        let own = Identity::of(&path, 8192).unwrap();
        std::fs::copy(&path, &copy).unwrap();
        let other = Identity::of(&copy, 8192).unwrap();
        assert_eq!(own.difference(&Identity::of(&path, 8192).unwrap()), None);
        assert_eq!(own.difference(&Identity::of(&path, 12288).unwrap()), None);
        assert!(own.difference(&other).unwrap().contains("another file"));
        assert!(own.difference(&Identity::of(&path, 4096).unwrap()).unwrap().contains("8192 bytes"));
        let device = Identity { is_block: true, serial: Some("A".into()), ..Identity::default() };
        let swapped = Identity { serial: Some("B".into()), ..device.clone() };
        assert!(device.difference(&swapped).unwrap().contains("serial number A"));
        let moved = Identity { partition: Some((1, 2048)), ..device.clone() };
        assert!(device.difference(&moved).unwrap().contains("partition"));
        assert!(device.difference(&own).unwrap().contains("a file"));
        assert!(Identity::of(dir.path(), 0).unwrap_err().contains("neither"));
        let snapshot = Identity { file_system: Some("btrfs X, subvolume 257".into()), ..own.clone() };
        let expected = Identity { file_system: Some("btrfs X, subvolume 256".into()), ..own.clone() };
        assert!(expected.difference(&snapshot).unwrap().contains("perhaps a copy"));
        let recorded = Identity { file_system: None, ..own };
        assert_eq!(recorded.difference(&expected), None, "a record of an earlier version");
    }

    #[test]
    fn a_loop_device_is_its_file_wherever_it_is() {
        let below = |inode| Identity { inode: Some(inode), ..Identity::default() };
        let device = |inode, offset| {
            let image = Image { below: below(inode), offset, limit: 0 };
            Identity {
                is_block: true,
                serial: Some("A".into()),
                image: Some(Box::new(image)),
                ..Identity::default()
            }
        };
        assert_eq!(device(5, 0).difference(&device(5, 0)), None);
        assert!(device(5, 0).difference(&device(6, 0)).unwrap().contains("another file"));
        assert!(device(5, 0).difference(&device(5, 4096)).unwrap().contains("another part"));
        let earlier = Identity { image: None, ..device(5, 0) };
        assert_eq!(earlier.difference(&device(5, 0)), None, "a record of an earlier version");
        assert!(device(5, 0).difference(&earlier).unwrap().contains("a loop device"));
        let text = serde_json::to_string(&device(5, 4096)).unwrap();
        assert_eq!(serde_json::from_str::<Identity>(&text).unwrap(), device(5, 4096));
        let text = r#"{"is_block": true, "size": 8192, "serial": "A"}"#;
        assert_eq!(
            serde_json::from_str::<Identity>(text)
                .unwrap()
                .difference(&Identity { size: 8192, ..device(5, 0) }),
            None
        );
    }

    #[test]
    fn a_write_changes_the_sign_of_a_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        std::fs::write(&path, [7; 4096]).unwrap();
        let before = Sign::of(&path).unwrap();
        assert_eq!(Sign::of(&path), Some(before.clone()));
        std::fs::write(&path, [8; 8192]).unwrap();
        assert_ne!(Sign::of(&path), Some(before));
    }
}
