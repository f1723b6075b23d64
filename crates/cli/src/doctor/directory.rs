//! Checks of a served directory: its file system, its mount options and its device.

use std::os::fd::AsRawFd;
use std::path::Path;

use forebay_config::format_size;

use super::mounts::{Mount, is_device_path};
use super::{Check, device, host};

/// Bytes of XFS's log below which slow disks let it fill up: mkfs.xfs makes a smaller one for less than 1 TiB.
const XFS_LOG: u64 = 512 << 20;
/// XFS_IOC_FSGEOMETRY_V1 (xfs_fs.h): 112 bytes, with the block size at 0, the blocks of the log at 16, all blocks for
/// data at 32 (64 bits), and the blocks of the stripe unit and the stripe width at 80 and 84.
const XFS_FSGEOMETRY: libc::c_ulong = 0x8070_5864;

/// The reasons why `--apply` leaves a remedy to the administrator.
const DATA: &str = "the files have to be moved";
const FSTAB: &str = "/etc/fstab is yours, and what it says comes back at the next mount";
const READ_ONLY: &str = "the kernel may have made it so after an error: see dmesg before you write to it";

/// Checks one directory.
pub(crate) fn check(path: &Path) -> Vec<Check> {
    let subject = path.display().to_string();
    let real = match path.canonicalize() {
        Ok(real) if real.is_dir() => real,
        Ok(_) => {
            return vec![
                Check::fail(subject, "is not a directory")
                    .mend("name the directory to serve", "only you know which one it is"),
            ];
        }
        Err(error) => {
            return vec![
                Check::fail(&subject, format!("cannot be reached: {error}"))
                    .mend(format!("mkdir -p {subject}"), "its file system may only be unmounted"),
            ];
        }
    };
    let Some(mount) = Mount::of(&real) else {
        return vec![Check::warn(
            subject,
            "its mount is not listed in /proc/self/mountinfo, so it cannot be judged",
        )];
    };
    let mut checks = vec![file_system(&subject, &mount)];
    checks.extend(options(&subject, &mount));
    if mount.fs_type == "xfs" {
        let geometry = xfs_geometry(&real);
        checks.extend(geometry.and_then(|geometry| xfs_log(&subject, geometry.log)));
        checks.extend(geometry.and_then(|geometry| repair(&subject, &real, geometry.blocks)));
        let device = is_device_path(&mount.source).then(|| device::sysfs_of(&mount.source)).flatten();
        let array = device
            .filter(|device| device::is_rotational(device))
            .and_then(|device| Stripe::of_array(&device));
        checks.extend(geometry.zip(array).map(|(geometry, array)| stripe(&subject, geometry.stripe, array)));
    }
    if is_device_path(&mount.source) {
        checks.extend(device::check(&mount.source));
    }
    checks
}

/// Checks that the file system of a directory gives durability, stable file handles, and owners of files.
fn file_system(subject: &str, mount: &Mount) -> Check {
    let subject = format!("{subject}: file system");
    let kind = mount.fs_type.as_str();
    match kind {
        "xfs" | "ext4" | "ext3" | "btrfs" | "zfs" | "f2fs" | "bcachefs" => {
            Check::ok(subject, format!("{kind} on {}: durable, stable file handles", mount.source.display()))
        }
        "tmpfs" | "ramfs" => {
            Check::warn(subject, format!("{kind} lives in memory: everything is lost when the host stops"))
                .mend("serve a directory on XFS or ext4", DATA)
        }
        "vfat" | "exfat" | "ntfs" | "ntfs3" | "iso9660" => Check::fail(
            subject,
            format!("{kind} keeps no owners, permissions or hard links as NFS clients expect them"),
        )
        .mend("serve a directory on XFS or ext4", DATA),
        _ => Check::warn(
            subject,
            format!(
                "Forebay was not tested on {kind}: durability and file handles depend on that file system"
            ),
        )
        .mend("prefer XFS or ext4 directly on a block device", DATA),
    }
}

/// The stripe of an array, in bytes: the part on one disk, and the part on all disks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stripe {
    unit: u64,
    width: u64,
}

impl Stripe {
    /// Returns the stripe that a device reports in sysfs; `None` if it reports none.
    fn of_array(device: &Path) -> Option<Self> {
        let size = |name| device::queue(device, name)?.parse::<u64>().ok();
        let (unit, width) = (size("minimum_io_size")?, size("optimal_io_size")?);
        (unit > 0 && width > unit && width.is_multiple_of(unit)).then_some(Stripe { unit, width })
    }
}

/// Sizes of an XFS file system, in bytes.
#[derive(Debug, Clone, Copy)]
struct Geometry {
    log: u64,
    stripe: Stripe,
    /// The number of blocks for data.
    blocks: u64,
}

/// Returns the sizes of a file system; `None` if the kernel does not tell.
fn xfs_geometry(path: &Path) -> Option<Geometry> {
    let directory = std::fs::File::open(path).ok()?;
    let mut geometry = [0u32; 28];
    // SAFETY: the array is live, aligned, and has the 112 bytes that the request's number says the kernel fills.
    let result = unsafe { libc::ioctl(directory.as_raw_fd(), XFS_FSGEOMETRY, geometry.as_mut_ptr()) };
    let bytes = |word: usize| u64::from(geometry[0]) * u64::from(geometry[word]);
    let stripe = Stripe { unit: bytes(20), width: bytes(21) };
    let blocks = u64::from(geometry[8]) | u64::from(geometry[9]) << 32;
    (result == 0).then(|| Geometry { log: bytes(4), stripe, blocks })
}

/// Compares the stripe of a file system with that of its array.
fn stripe(subject: &str, own: Stripe, array: Stripe) -> Check {
    let subject = format!("{subject}: stripe");
    let shown = |stripe: Stripe| format!("{} of {}", format_size(stripe.unit), format_size(stripe.width));
    if own == array {
        return Check::ok(subject, format!("{}, as the array has it", shown(own)));
    }
    let finding = format!(
        "XFS has {}, the array has {}: writes cover parts of stripes, which costs reads of parity",
        if own.width == 0 { "none".to_owned() } else { shown(own) },
        shown(array)
    );
    let (unit, width) = (array.unit / 512, array.width / 512);
    let fix =
        format!("mount it with -o sunit={unit},swidth={width} once: XFS keeps the stripe for new files");
    Check::warn(subject, finding).mend(fix, "the stripe changes at a mount only, which needs an outage")
}

/// Checks that the host has the memory that xfs_repair needs for a file system of this number of blocks. Returns `None`
/// if the kernel does not tell.
fn repair(subject: &str, path: &Path, blocks: u64) -> Option<Check> {
    let stat = rustix::fs::statvfs(path).ok()?;
    let inodes = stat.f_files.saturating_sub(stat.f_ffree);
    judge_repair(subject, (blocks, inodes), host::meminfo("MemTotal")?, host::meminfo("SwapTotal")?)
}

/// Returns a warning if xfs_repair lacks memory. It needs 4 bytes for an inode and a byte for two blocks. It takes
/// three quarters of the memory (`repair/xfs_repair.c`).
fn judge_repair(subject: &str, (blocks, inodes): (u64, u64), memory: u64, swap: u64) -> Option<Check> {
    let needed = 4 * inodes + blocks / 2 + (50 << 20);
    let usable = memory / 4 * 3 + swap;
    if needed <= usable {
        return None;
    }
    let finding = format!(
        "xfs_repair needs {}, and finds {} of memory and {} of swap: it ends without a repair",
        format_size(needed),
        format_size(memory / 4 * 3),
        format_size(swap)
    );
    let more = (needed - usable).div_ceil(1 << 30);
    let fix = format!("add {more} GiB of swap on a local disk before you need it: fallocate, mkswap, swapon");
    let by_hand = "only you know which local disk has room that nothing else needs";
    Some(Check::warn(format!("{subject}: repair"), finding).mend(fix, by_hand))
}

/// Returns a warning if the log of an XFS is smaller than `XFS_LOG` bytes. Its size can only be chosen when the file
/// system is made.
fn xfs_log(subject: &str, size: u64) -> Option<Check> {
    let finding = format!(
        "XFS's log has {}: on slow disks, creates, renames and removes stop for seconds while it is full",
        format_size(size)
    );
    let fix = "mkfs.xfs -l size=1g when the file system is made anew; nothing to do on fast disks";
    let by_hand = "a log of another size needs a new file system";
    (size < XFS_LOG).then(|| Check::warn(format!("{subject}: log"), finding).mend(fix, by_hand))
}

/// Checks the mount options of a directory: a failure for those that lose data, a warning for those that slow the
/// server.
fn options(subject: &str, mount: &Mount) -> Vec<Check> {
    let subject = format!("{subject}: mount options");
    let point = mount.point.display();
    let mut checks = Vec::new();
    if mount.has("nobarrier") || mount.has("barrier=0") {
        checks.push(
            Check::fail(
                &subject,
                "write barriers are off: a power cut loses writes that clients were told are stable",
            )
            .mend(format!("take nobarrier or barrier=0 out of /etc/fstab, then remount {point}"), FSTAB),
        );
    }
    if mount.has("data=writeback") {
        let finding = "data=writeback: after a crash files may show old contents of other files";
        checks.push(Check::warn(&subject, finding).mend("use data=ordered, the default", FSTAB));
    }
    if mount.has("ro") {
        let finding = "mounted read-only: every change of a client fails";
        checks.push(
            Check::warn(&subject, finding)
                .mend(format!("mount -o remount,rw {point}, or serve with --read-only"), READ_ONLY),
        );
    }
    if mount.has("sync") {
        let finding =
            "mounted with sync: every write waits for the disk on its own, group commit cannot help";
        checks.push(Check::warn(&subject, finding).mend(format!("mount -o remount,async {point}"), FSTAB));
    }
    if !mount.has("noatime") && !mount.has("relatime") && !mount.has("ro") && mount.fs_type != "tmpfs" {
        let finding = "every read updates an access time, which costs writes";
        checks.push(
            Check::warn(&subject, finding)
                .mend(format!("mount -o remount,noatime {point}, and in /etc/fstab"), FSTAB),
        );
    }
    if checks.is_empty() {
        let atime =
            if mount.has("noatime") { "noatime" } else { "relatime (noatime would save a few writes)" };
        checks.push(Check::ok(subject, format!("no option that endangers or slows it; {atime}")));
    }
    checks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stripe_of_xfs_is_compared_with_that_of_the_array() {
        let array = Stripe { unit: 64 << 10, width: 384 << 10 };
        assert_eq!(stripe("/a", array, array).finding, "64 KiB of 384 KiB, as the array has it");
        let check = stripe("/a", Stripe { unit: 0, width: 0 }, array);
        assert!(check.finding.starts_with("XFS has none, the array has 64 KiB of 384 KiB"), "{check:?}");
        assert!(check.fix.unwrap().command.contains("sunit=128,swidth=768"));
    }

    #[test]
    fn a_repair_of_a_large_xfs_needs_memory_or_swap() {
        let judged = |tib: u64, millions: u64, memory: u64, swap: u64| {
            judge_repair("/srv/a", (tib << 28, millions * 1_000_000), memory << 30, swap << 30)
        };
        assert!(judged(10, 100, 8, 0).is_none(), "1.7 GiB");
        let check = judged(100, 500, 8, 4).unwrap();
        assert!(check.finding.starts_with("xfs_repair needs 14 GiB, and finds 6 GiB"), "{check:?}");
        assert!(check.fix.unwrap().command.starts_with("add 5 GiB of swap"));
        assert!(judged(100, 500, 8, 9).is_none());
    }

    #[test]
    fn a_small_log_of_xfs_is_a_warning() {
        let small = xfs_log("/srv/a", 64 << 20).unwrap();
        assert!(small.finding.contains("64 MiB") && small.subject == "/srv/a: log", "{small:?}");
        assert!(xfs_log("/srv/a", 512 << 20).is_none());
    }
}
