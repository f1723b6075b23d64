//! The place of a cache device: the disks it lies on, and names for it that stay equal when the system starts again.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Dev, major, makedev, minor};

/// The number of layers of partitions, volumes and loop devices that are followed.
const LAYERS: usize = 8;
/// Beginnings of names in /dev/disk/by-id, the most informative ones first.
const TELLING: [&str; 6] = ["nvme-", "ata-", "scsi-", "virtio-", "usb-", "mmc-"];

/// The place of a block device or a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Whereabouts {
    /// Names in /sys/block of all disks that it lies on. Without a disk (a network file system), the number of the file
    /// system.
    pub disks: BTreeSet<String>,
    /// The serial number, or else the world-wide name, of the one disk that it lies on.
    pub serial: Option<String>,
    /// A block device's name in /dev/disk/by-id, if it has one. The name is equal after every start of the system.
    pub stable: Option<PathBuf>,
    /// For a file: the mount point of its file system.
    pub mount: Option<PathBuf>,
}

/// Finds the place of the block device, file or directory at `path`. Facts that the system does not report are left
/// out.
///
/// # Errors
/// The path does not exist, or cannot be examined.
pub fn whereabouts(path: &Path) -> std::io::Result<Whereabouts> {
    let meta = std::fs::metadata(path)?;
    let is_device = meta.file_type().is_block_device();
    let number = if is_device { meta.rdev() } else { meta.dev() };
    let mut disks = BTreeSet::new();
    disks_below(Path::new("/sys"), number, path, LAYERS, &mut disks);
    let serial = match disks.iter().collect::<Vec<_>>()[..] {
        [disk] => serial(&Path::new("/sys/block").join(disk)),
        _ => None,
    };
    if disks.is_empty() {
        disks.insert(format!("file system {}:{}", major(number), minor(number)));
    }
    Ok(Whereabouts {
        disks,
        serial,
        stable: is_device.then(|| by_id(Path::new("/dev/disk/by-id"), number)).flatten(),
        mount: if is_device { None } else { mount_point(path) },
    })
}

/// Adds the disks below the block device `number`. For a file system without a device number of its own (btrfs), the
/// table of mounts has the block device.
fn disks_below(sys: &Path, number: Dev, path: &Path, layers: usize, disks: &mut BTreeSet<String>) {
    if layers == 0 {
        return;
    }
    let number = if major(number) == 0 { mounted_from(path).unwrap_or(number) } else { number };
    let place = sys.join(format!("dev/block/{}:{}", major(number), minor(number)));
    let Ok(mut place) = std::fs::canonicalize(place) else { return };
    if place.join("partition").exists() {
        place.pop();
    }
    let slaves = std::fs::read_dir(place.join("slaves")).into_iter().flatten().flatten();
    let below: Vec<_> = slaves.filter_map(|slave| number_in(&slave.path().join("dev"))).collect();
    for slave in &below {
        disks_below(sys, *slave, path, layers - 1, disks);
    }
    if !below.is_empty() {
        return;
    }
    let image = std::fs::read(place.join("loop/backing_file")).ok();
    let image = image.map(|name| PathBuf::from(OsStr::from_bytes(name.trim_ascii_end())));
    if let Some((image, meta)) = image.and_then(|image| image.metadata().ok().map(|meta| (image, meta))) {
        let before = disks.len();
        disks_below(sys, meta.dev(), &image, layers - 1, disks);
        if disks.len() > before {
            return;
        }
    }
    disks.extend(place.file_name().map(|name| name.to_string_lossy().into_owned()));
}

/// Returns the device number in a file of sysfs.
fn number_in(file: &Path) -> Option<Dev> {
    let text = std::fs::read_to_string(file).ok()?;
    let (major, minor) = text.trim().split_once(':')?;
    Some(makedev(major.parse().ok()?, minor.parse().ok()?))
}

/// Returns the block device that the file system of `path` is mounted from.
fn mounted_from(path: &Path) -> Option<Dev> {
    let path = path.canonicalize().ok()?;
    let table = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
    let source = source_of(&table, &path)?;
    let meta = std::fs::metadata(source).ok()?;
    meta.file_type().is_block_device().then(|| meta.rdev())
}

/// Returns the source of the mount that `path` is in. Of two mounts in one place the later one counts.
fn source_of(table: &str, path: &Path) -> Option<String> {
    let mounts = table.lines().filter_map(|line| {
        let (own, kind) = line.split_once(" - ")?;
        let at = unescaped(own.split(' ').nth(4)?);
        path.starts_with(&at).then_some((at.len(), unescaped(kind.split(' ').nth(1)?)))
    });
    mounts.max_by_key(|(depth, _)| *depth).map(|(_, source)| source)
}

/// Decodes spaces, tabs, line ends and backslashes, which the kernel writes as octal numbers.
fn unescaped(text: &str) -> String {
    [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")]
        .iter()
        .fold(text.to_owned(), |text, (from, to)| text.replace(from, to))
}

/// Returns the serial number, which disks report in different places.
fn serial(disk: &Path) -> Option<String> {
    let places = ["device/serial", "serial", "device/wwid", "wwid", "device/vpd_pg80"];
    let read = |place: &&str| {
        let text = String::from_utf8_lossy(&std::fs::read(disk.join(place)).ok()?).into_owned();
        let text: String = text.chars().filter(|c| c.is_ascii_graphic() || *c == ' ').collect();
        Some(text.trim().to_owned()).filter(|text| !text.is_empty())
    };
    places.iter().find_map(read)
}

/// Returns the most telling name in `directory` for the block device with this number. Names from vendor and serial
/// number come first.
fn by_id(directory: &Path, number: Dev) -> Option<PathBuf> {
    let names = std::fs::read_dir(directory).ok()?.flatten().map(|entry| entry.path());
    let is_it = |path: &PathBuf| std::fs::metadata(path).is_ok_and(|meta| meta.rdev() == number);
    let rank = |path: &PathBuf| {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        (TELLING.iter().position(|telling| name.starts_with(telling)).unwrap_or(TELLING.len()), name)
    };
    names.filter(is_it).min_by_key(rank)
}

/// Returns the mount point of the file system that holds `path`. A second mount of the file system is not noticed.
fn mount_point(path: &Path) -> Option<PathBuf> {
    let path = path.canonicalize().ok()?;
    let device = std::fs::metadata(&path).ok()?.dev();
    let same = |above: &&Path| std::fs::metadata(above).is_ok_and(|meta| meta.dev() == device);
    path.ancestors().take_while(same).last().map(Path::to_owned)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// Returns a sysfs tree with two disks, a partition of one, a volume over both, and a loop device without a file.
    fn sysfs() -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let devices = root.path().join("devices");
        let add = |place: &str, number: &str| {
            std::fs::create_dir_all(devices.join(place).join("slaves")).unwrap();
            std::fs::create_dir_all(root.path().join("dev/block")).unwrap();
            std::fs::write(devices.join(place).join("dev"), format!("{number}\n")).unwrap();
            symlink(devices.join(place), root.path().join("dev/block").join(number)).unwrap();
        };
        add("nvme0n1", "259:0");
        add("nvme0n1/nvme0n1p2", "259:2");
        std::fs::write(devices.join("nvme0n1/nvme0n1p2/partition"), "2").unwrap();
        add("sda", "8:0");
        add("md0", "9:0");
        symlink(devices.join("sda"), devices.join("md0/slaves/sda")).unwrap();
        symlink(devices.join("nvme0n1/nvme0n1p2"), devices.join("md0/slaves/nvme0n1p2")).unwrap();
        add("loop0", "7:0");
        root
    }

    #[test]
    fn every_disk_below_is_found() {
        let sys = sysfs();
        let below = |major, minor| {
            let mut disks = BTreeSet::new();
            disks_below(sys.path(), makedev(major, minor), Path::new("/"), LAYERS, &mut disks);
            disks.into_iter().collect::<Vec<_>>()
        };
        assert_eq!(below(259, 0), ["nvme0n1"]);
        assert_eq!(below(259, 2), ["nvme0n1"]);
        assert_eq!(below(9, 0), ["nvme0n1", "sda"]);
        assert_eq!(below(7, 0), ["loop0"]);
        assert_eq!(below(7, 7), [""; 0]);
    }

    #[test]
    fn a_mount_is_found_by_its_longest_path() {
        let table = "22 1 254:0 / / rw - ext4 /dev/vda rw\n\
                     30 22 0:40 /sub /mnt/a\\040b rw shared:1 - btrfs /dev/sdb rw\n";
        assert_eq!(source_of(table, Path::new("/mnt/a b/cache")).as_deref(), Some("/dev/sdb"));
        assert_eq!(source_of(table, Path::new("/mnt/other")).as_deref(), Some("/dev/vda"));
    }

    #[test]
    fn a_file_is_on_the_disk_of_its_file_system() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let here = whereabouts(file.path()).unwrap();
        assert!(!here.disks.is_empty(), "{here:?}");
        assert!(here.mount.is_some_and(|mount| file.path().starts_with(mount)));
        assert!(whereabouts(Path::new("/no/such/file")).is_err());
    }
}
