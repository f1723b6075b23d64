//! Checks of a cache device, from sysfs.

use std::path::{Path, PathBuf};

use forebay_config::format_size;

use super::Check;
use super::device::{name, queue, sysfs_of};
use super::mounts::{Mount, is_device_path};

/// The alignment of a partition that suits every SSD, in sectors of 512 bytes.
const ALIGNMENT: u64 = 2048;
/// The part of an SSD that stays out of partitions where writes go on for hours.
const SPARE_PERCENT: u64 = 10;
/// The block of the cache in bytes.
const BLOCK: u64 = 4096;

/// The reason why `--apply` does not format or partition an SSD.
const ERASED: &str = "it erases what is on the device";

/// Checks a cache device: a block device, or a file on one.
pub(super) fn check(path: &Path) -> Vec<Check> {
    if let Err(error) = path.metadata() {
        let check = Check::warn(path.display().to_string(), format!("cannot be reached: {error}"));
        return vec![
            check.mend("`forebay pool status` shows the devices of the running server", "it may come back"),
        ];
    }
    let Some(node) = node_of(path) else { return Vec::new() };
    let Some(device) = sysfs_of(&node) else { return Vec::new() };
    let mut checks = vec![kind(&device)];
    checks.extend(partition_start(&node).map(|start| alignment(&node, start)));
    checks.extend(sectors(&device));
    checks.extend(write_cache(&device));
    checks.extend(spare(&device));
    checks
}

/// Returns the block device that is or has the cache device; `None` if it is a file on no block device.
fn node_of(path: &Path) -> Option<PathBuf> {
    let node = match path.metadata().ok()?.is_file() {
        true => Mount::of(&path.canonicalize().ok()?)?.source,
        false => path.to_owned(),
    };
    is_device_path(&node).then_some(node)
}

/// Returns the whole device below a cache device, in sysfs.
pub(super) fn device_of(path: &Path) -> Option<PathBuf> {
    sysfs_of(&node_of(path)?)
}

/// Returns the first sector of a partition; `None` if the device is no partition.
fn partition_start(node: &Path) -> Option<u64> {
    let real = node.canonicalize().ok()?;
    let path: PathBuf = Path::new("/sys/class/block").join(real.file_name()?);
    path.join("partition").exists().then_some(())?;
    std::fs::read_to_string(path.join("start")).ok()?.trim().parse().ok()
}

/// Checks that a cache device does not rotate.
fn kind(device: &Path) -> Check {
    let subject = format!("{}: kind", name(device));
    match queue(device, "rotational").as_deref() {
        Some("1") => Check::warn(
            subject,
            "the cache is on a device that says it rotates: it is no faster than the disks",
        )
        .mend("use an SSD; `lsblk -d -o NAME,ROTA,MODEL` lists the devices", "the pool gets another device"),
        _ => Check::ok(subject, "does not rotate"),
    }
}

/// Checks that a partition begins at a multiple of 1 MiB. `start` is its first sector of 512 bytes.
fn alignment(node: &Path, start: u64) -> Check {
    let subject = format!("{}: alignment", node.display());
    if start.is_multiple_of(ALIGNMENT) {
        return Check::ok(subject, format!("begins at {} MiB", start / ALIGNMENT));
    }
    let finding = format!("begins at sector {start}, which is no multiple of 1 MiB: the SSD rewrites pages");
    Check::warn(subject, finding)
        .mend("make the partition anew with parted -a optimal, after `forebay pool remove`", ERASED)
}

/// Checks the size of sectors. An SSD that offers 4 KiB works with less metadata than with 512 bytes.
fn sectors(device: &Path) -> Option<Check> {
    let size = |which| queue(device, which)?.parse::<u64>().ok();
    let (logical, physical) = (size("logical_block_size")?, size("physical_block_size")?);
    let subject = format!("{}: sectors", name(device));
    if logical > BLOCK {
        let finding = format!("{logical} bytes: the cache works with blocks of {BLOCK} bytes");
        return Some(
            Check::fail(subject, finding)
                .mend("format the namespace with a smaller sector (nvme format)", ERASED),
        );
    }
    let finding = format!("{logical} bytes, {physical} bytes inside");
    if logical < BLOCK && physical >= BLOCK && name(device).starts_with("nvme") {
        let node = name(device);
        let fix = format!("nvme id-ns -H /dev/{node} lists formats; nvme format -l erases the SSD");
        return Some(
            Check::ok(subject, format!("{finding}; a format of 4 KiB may be faster")).mend(fix, ERASED),
        );
    }
    Some(Check::ok(subject, finding))
}

/// Checks the volatile write cache. An SSD with protection against power loss reports none, or ignores flushes.
fn write_cache(device: &Path) -> Option<Check> {
    let subject = format!("{}: write cache", name(device));
    let kernel = queue(device, "write_cache")?;
    if kernel != "write through" {
        let finding = "volatile; nothing that was acknowledged is lost, because each group of writes waits for a flush. An SSD \
                       with power-loss protection is faster";
        return Some(Check::ok(subject, finding));
    }
    if reports_write_back(device) {
        let finding = "the kernel sends no flushes, but the device says that its cache is volatile: a power cut loses writes \
                       that clients were told are stable";
        let command = format!("echo write back > {}/queue/write_cache", device.display());
        let by_hand = "somebody has set that, and only you know whether the device has power-loss protection";
        return Some(Check::warn(subject, finding).mend(command, by_hand));
    }
    Some(Check::ok(subject, "none that a power cut could empty: flushes cost nothing"))
}

/// Returns true if a SCSI or SATA device says that it has a volatile cache. `queue/write_cache` is only what the kernel
/// assumes, and an administrator may write to it.
fn reports_write_back(device: &Path) -> bool {
    let disks = std::fs::read_dir(device.join("device/scsi_disk")).into_iter().flatten().flatten();
    let kinds = disks.filter_map(|disk| std::fs::read_to_string(disk.path().join("cache_type")).ok());
    kinds.into_iter().any(|kind| kind.trim().starts_with("write back"))
}

/// Looks for space of an SSD that is in no partition. The SSD uses it to move data, if it was never written or has been
/// discarded.
fn spare(device: &Path) -> Option<Check> {
    let sectors = |path: &Path| std::fs::read_to_string(path.join("size")).ok()?.trim().parse::<u64>().ok();
    let whole = sectors(device).filter(|size| *size > 0)?;
    if queue(device, "rotational").as_deref() != Some("0") {
        return None;
    }
    let inside = std::fs::read_dir(device).ok()?.flatten().map(|entry| entry.path());
    let partitions = inside.filter(|path| path.join("partition").exists());
    let (mut count, mut used) = (0, 0);
    for partition in partitions {
        count += 1;
        used += sectors(&partition)?;
    }
    let free = if count == 0 { 0 } else { whole.saturating_sub(used) };
    let subject = format!("{}: spare space", name(device));
    let (percent, size) = (free * 100 / whole, format_size(free * 512));
    if percent >= SPARE_PERCENT {
        return Some(Check::ok(subject, format!("{size}, {percent} %, in no partition")));
    }
    let finding =
        format!("{size}, {percent} %, in no partition; more keeps long writes fast on SSDs for reading");
    let fix = format!("blkdiscard the SSD, and partition {} % of it", 100 - SPARE_PERCENT);
    Some(Check::ok(subject, finding).mend(fix, ERASED))
}

#[cfg(test)]
mod tests {
    use super::super::State;
    use super::*;

    /// Returns a device in a directory like sysfs.
    fn device(dir: &Path, name: &str, values: &[(&str, &str)]) -> PathBuf {
        let device = dir.join(name);
        std::fs::create_dir_all(device.join("queue")).unwrap();
        values.iter().for_each(|(key, value)| std::fs::write(device.join("queue").join(key), value).unwrap());
        device
    }

    #[test]
    fn a_cache_on_a_disk_that_rotates_is_a_warning() {
        let dir = tempfile::TempDir::new().unwrap();
        assert_eq!(kind(&device(dir.path(), "sda", &[("rotational", "1\n")])).state, State::Warn);
        assert_eq!(kind(&device(dir.path(), "sdb", &[("rotational", "0\n")])).state, State::Ok);
    }

    #[test]
    fn space_in_no_partition_is_spare() {
        let dir = tempfile::TempDir::new().unwrap();
        let spared = |name: &str, rotational: &str, partitions: &[&str]| {
            let device = device(dir.path(), name, &[("rotational", rotational)]);
            std::fs::write(device.join("size"), "2097152000\n").unwrap();
            for (number, size) in partitions.iter().enumerate() {
                let partition = device.join(format!("{name}p{number}"));
                std::fs::create_dir(&partition).unwrap();
                std::fs::write(partition.join("partition"), "1\n").unwrap();
                std::fs::write(partition.join("size"), format!("{size}\n")).unwrap();
            }
            spare(&device).map(|check| (check.finding, check.fix.is_some()))
        };
        let (finding, has_fix) = spared("a", "0\n", &["1048576000", "524288000"]).unwrap();
        assert_eq!((&*finding, has_fix), ("250 GiB, 25 %, in no partition", false));
        let (finding, has_fix) = spared("b", "0\n", &["2097150000"]).unwrap();
        assert!(finding.contains(" 0 %, in no partition; more") && has_fix, "{finding}");
        assert!(spared("c", "0\n", &[]).unwrap().1, "the whole disk is in use");
        assert_eq!(spared("d", "1\n", &["1048576000"]), None);
    }

    #[test]
    fn a_volatile_cache_that_gets_no_flushes_is_a_warning() {
        let dir = tempfile::TempDir::new().unwrap();
        let judged = |name: &str, kernel: &str, kind: Option<&str>| {
            let device = device(dir.path(), name, &[("write_cache", kernel)]);
            if let Some(kind) = kind {
                let disk = device.join("device/scsi_disk/0:0:0:0");
                std::fs::create_dir_all(&disk).unwrap();
                std::fs::write(disk.join("cache_type"), kind).unwrap();
            }
            write_cache(&device).unwrap()
        };
        assert_eq!(judged("a", "write back\n", None).state, State::Ok);
        assert_eq!(judged("b", "write through\n", None).state, State::Ok);
        assert_eq!(judged("c", "write through\n", Some("write through\n")).state, State::Ok);
        let check = judged("d", "write through\n", Some("write back\n"));
        assert_eq!(check.state, State::Warn);
        assert!(check.fix.unwrap().by_hand.unwrap().contains("power-loss protection"));
    }

    #[test]
    fn partitions_begin_at_whole_mebibytes() {
        assert_eq!(alignment(Path::new("/dev/x1"), 2048).finding, "begins at 1 MiB");
        assert_eq!(alignment(Path::new("/dev/x1"), 63).state, State::Warn);
    }

    #[test]
    fn sectors_larger_than_a_block_are_refused_and_small_ones_named() {
        let dir = tempfile::TempDir::new().unwrap();
        let judged = |name: &str, logical: &str, physical: &str| {
            let values = [("logical_block_size", logical), ("physical_block_size", physical)];
            let check = sectors(&device(dir.path(), name, &values)).unwrap();
            (check.state, check.fix.is_some())
        };
        assert_eq!(judged("nvme0n1", "512\n", "4096\n"), (State::Ok, true));
        assert_eq!(judged("nvme1n1", "4096\n", "4096\n"), (State::Ok, false));
        assert_eq!(judged("sda", "16384\n", "16384\n"), (State::Fail, true));
    }
}
