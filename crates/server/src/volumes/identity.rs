//! The identity of a volume's backing device, and its use by others.
//!
//! The device holds the user's data from its first byte to its last, so Forebay writes no mark of its own on it. The
//! identity is what the system reports: the serial number of the disk, the place of the partition, the UUID of a device
//! mapper or MD device; of a file its inode and the time of its creation. A copy of a file is another file.

use std::fs::Metadata;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use forebay_common::nbd_url::NbdUrl;
use forebay_disk::whereabouts;
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
    /// Of a file: its inode number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) inode: Option<u64>,
    /// Of a file: the time of its creation, in nanoseconds since 1970, if the file system has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) born_ns: Option<i128>,
}

/// The devices and directories that no volume may be on.
#[derive(Default)]
pub(crate) struct Taken {
    /// Exported directories, and the state directory.
    pub(crate) directories: Vec<PathBuf>,
    /// Cache devices.
    pub(crate) cache: Vec<PathBuf>,
    /// The backing devices of other volumes: name and path.
    pub(crate) volumes: Vec<(String, PathBuf)>,
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
            return Ok(Identity { is_block: true, size, serial, mapped, partition, ..Identity::default() });
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
        Ok(Identity { is_block: false, size, inode, born_ns, ..Identity::default() })
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
        if (self.inode, self.born_ns) != (here.inode, here.born_ns) {
            return Some("another file is there, perhaps a copy".to_owned());
        }
        let shrunk = here.size < self.size;
        shrunk.then(|| format!("expected are {} bytes, and there are {}", self.size, here.size))
    }
}

/// Returns why a device must not become a volume's, as a sentence; `None` if it may.
pub(crate) fn refusal(path: &Path, front: &[u8], size: u64, taken: &Taken) -> Option<String> {
    let shown = path.display();
    let meta = match std::fs::metadata(path) {
        Ok(meta) => meta,
        Err(error) => return Some(unopened(path, &error)),
    };
    let is = |other: &Path| std::fs::metadata(other).is_ok_and(|other| same(&meta, &other));
    if let Some((name, _)) = taken.volumes.iter().find(|(_, other)| is(other)) {
        return Some(format!("{shown} is the backing device of volume {name} already"));
    }
    if taken.cache.iter().any(|other| is(other)) {
        return Some(format!("{shown} is a cache device; name another device"));
    }
    if let Some(directory) = taken.directories.iter().find(|directory| path.starts_with(directory)) {
        return Some(format!(
            "{shown} is inside of {}, which Forebay uses; name a file elsewhere",
            directory.display()
        ));
    }
    if let Some(reason) = unusable(&shown.to_string(), front, size) {
        return Some(reason);
    }
    if is_swap(&meta) {
        return Some(format!("{shown} is swap space; end that with `swapoff {shown}`"));
    }
    if meta.file_type().is_block_device() { device_user(path, meta.rdev()) } else { loop_user(path, &meta) }
}

/// Returns true if the kernel swaps to a device or file. It does not lock a file that it swaps to.
fn is_swap(meta: &Metadata) -> bool {
    let table = std::fs::read_to_string("/proc/swaps").unwrap_or_default();
    let mut places = table.lines().skip(1).filter_map(|line| line.split_whitespace().next());
    // The kernel writes a space in a name as its octal number.
    places.any(|place| std::fs::metadata(place.replace("\\040", " ")).is_ok_and(|other| same(meta, &other)))
}

/// Returns why an NBD export must not become a volume's, as a sentence; `None` if it may.
pub(crate) fn refusal_of_export(url: &NbdUrl, front: &[u8], size: u64, taken: &Taken) -> Option<String> {
    let is = |other: &Path| NbdUrl::of(other).as_ref() == Some(url);
    if let Some((name, _)) = taken.volumes.iter().find(|(_, other)| is(other)) {
        return Some(format!("{url} is the backing device of volume {name} already"));
    }
    if taken.cache.iter().any(|other| is(other)) {
        return Some(format!("{url} is a cache device; name another device"));
    }
    unusable(&url.to_string(), front, size)
}

/// Returns why the contents of a device must not become a volume's.
fn unusable(shown: &str, front: &[u8], size: u64) -> Option<String> {
    if front.starts_with(b"FOREBAY\0") {
        return Some(format!("{shown} is a cache device; name another device"));
    }
    if let Some(user) = signature(front) {
        return Some(format!("{shown} is {user}; name the device that is made of it"));
    }
    (!size.is_multiple_of(512) || size < 4096)
        .then(|| format!("{shown} has {size} bytes; a volume needs a multiple of 512 bytes, 4096 or more"))
}

/// Returns true if both are one block device, under whatever names, or one file.
fn same(one: &Metadata, other: &Metadata) -> bool {
    match (one.file_type().is_block_device(), other.file_type().is_block_device()) {
        (true, true) => one.rdev() == other.rdev(),
        (false, false) => (one.dev(), one.ino()) == (other.dev(), other.ino()),
        _ => false,
    }
}

/// Returns the use of a device as a part of another one, by the signatures of libblkid.
fn signature(front: &[u8]) -> Option<&'static str> {
    const MD: [u8; 4] = [0xfc, 0x4e, 0x2b, 0xa9];
    const BCACHE: [u8; 8] = [0xc6, 0x85, 0x73, 0xf6, 0x4e, 0x1a, 0x45, 0xca];
    let at = |offset: usize, magic: &[u8]| front.get(offset..).is_some_and(|rest| rest.starts_with(magic));
    let is_lvm = (0..4).any(|sector| at(sector * 512, b"LABELONE") && at(sector * 512 + 24, b"LVM2"));
    if is_lvm {
        Some("a physical volume of LVM")
    } else if at(0, &MD) || at(4096, &MD) {
        Some("a member of an MD array")
    } else if at(4096 + 24, &BCACHE) {
        Some("a device of bcache")
    } else {
        None
    }
}

/// Returns the use of a block device that the kernel knows.
fn device_user(path: &Path, number: Dev) -> Option<String> {
    let sys = sys_of(number);
    let parts = std::fs::read_dir(&sys).into_iter().flatten().flatten().map(|entry| entry.path());
    let parts: Vec<_> = parts.filter(|part| part.join("partition").exists()).collect();
    for place in parts.iter().chain([&sys]) {
        let holders = std::fs::read_dir(place.join("holders")).into_iter().flatten().flatten();
        if let Some(holder) = holders.map(|entry| entry.file_name()).next() {
            return Some(format!("{} is a part of /dev/{}", path.display(), holder.to_string_lossy()));
        }
        let number = text(&place.join("dev"))?;
        if let Some(mount) = mounted(&number) {
            return Some(format!("{} is mounted at {mount}; unmount it", path.display()));
        }
    }
    None
}

/// Returns where the block device with this number is mounted.
fn mounted(number: &str) -> Option<String> {
    let table = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
    let mut lines = table.lines().map(|line| line.split(' '));
    let mut line = lines.find(|line| line.clone().nth(2) == Some(number))?;
    line.nth(4).map(str::to_owned)
}

/// Returns the loop device that a file is under.
fn loop_user(path: &Path, meta: &Metadata) -> Option<String> {
    let devices = std::fs::read_dir("/sys/block").into_iter().flatten().flatten();
    let mut loops = devices
        .filter_map(|device| Some((device.file_name(), text(&device.path().join("loop/backing_file"))?)));
    let found = loops.find(|(_, image)| std::fs::metadata(image).is_ok_and(|image| same(meta, &image)));
    found.map(|(name, _)| format!("{} is under /dev/{}; detach that", path.display(), name.to_string_lossy()))
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
        let mut disk = sys_of(meta.rdev()).canonicalize().ok()?;
        if disk.join("partition").exists() {
            disk.pop();
        }
        // Sectors written and discarded since the system started (Documentation/block/stat.rst).
        let counters = text(&disk.join("stat"))?;
        let counters: Vec<_> = counters.split_whitespace().collect();
        let boot = text(Path::new("/proc/sys/kernel/random/boot_id"))?;
        let sequence = text(&disk.join("diskseq")).unwrap_or_default();
        Some(Sign(format!("{boot} {sequence} {} {}", counters.get(6)?, counters.get(13).unwrap_or(&"0"))))
    }
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
    }

    #[test]
    fn a_device_that_another_use_needs_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        std::fs::write(&path, [0; 8192]).unwrap();
        let refused = |front: &[u8], size, taken: &Taken| refusal(&path, front, size, taken).unwrap();
        let none = Taken::default();
        assert_eq!(refusal(&path, &[0; 8192], 8192, &none), None);
        assert!(refused(b"FOREBAY\0", 8192, &none).contains("cache device"));
        let mut front = vec![0; 8192];
        front[512..520].copy_from_slice(b"LABELONE");
        front[536..540].copy_from_slice(b"LVM2");
        assert!(refused(&front, 8192, &none).contains("LVM"));
        let mut front = vec![0; 8192];
        front[4096..4100].copy_from_slice(&[0xfc, 0x4e, 0x2b, 0xa9]);
        assert!(refused(&front, 8192, &none).contains("MD array"));
        assert!(refused(&[0; 8192], 8191, &none).contains("multiple of 512"));
        let inside = Taken { directories: vec![dir.path().to_owned()], ..Taken::default() };
        assert!(refused(&[0; 8192], 8192, &inside).contains("inside of"));
        let cache = Taken { cache: vec![path.clone()], ..Taken::default() };
        assert!(refused(&[0; 8192], 8192, &cache).contains("cache device"));
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        let volumes = Taken { volumes: vec![("scratch".to_owned(), link)], ..Taken::default() };
        assert!(refused(&[0; 8192], 8192, &volumes).contains("volume scratch already"));
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
