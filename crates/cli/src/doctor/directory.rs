//! Checks of a served directory: its file system, its mount options and its device.

use std::path::Path;

use super::mounts::{Mount, is_device_path};
use super::{Check, device};

/// Checks one directory.
pub(crate) fn check(path: &Path) -> Vec<Check> {
    let subject = path.display().to_string();
    let real = match path.canonicalize() {
        Ok(real) if real.is_dir() => real,
        Ok(_) => return vec![Check::fail(subject, "is not a directory").mend("name the directory to serve")],
        Err(error) => {
            return vec![
                Check::fail(&subject, format!("cannot be reached: {error}"))
                    .mend(format!("mkdir -p {subject}")),
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
    if is_device_path(&mount.source) {
        checks.extend(device::check(&mount.source));
    }
    checks
}

fn file_system(subject: &str, mount: &Mount) -> Check {
    let subject = format!("{subject}: file system");
    let kind = mount.fs_type.as_str();
    match kind {
        "xfs" | "ext4" | "ext3" | "btrfs" | "zfs" | "f2fs" | "bcachefs" => {
            Check::ok(subject, format!("{kind} on {}: durable, stable file handles", mount.source.display()))
        }
        "tmpfs" | "ramfs" => {
            Check::warn(subject, format!("{kind} lives in memory: everything is lost when the host stops"))
                .mend("serve a directory on XFS or ext4")
        }
        "vfat" | "exfat" | "ntfs" | "ntfs3" | "iso9660" => Check::fail(
            subject,
            format!("{kind} keeps no owners, permissions or hard links as NFS clients expect them"),
        )
        .mend("serve a directory on XFS or ext4"),
        _ => Check::warn(
            subject,
            format!(
                "Forebay was not tested on {kind}: durability and file handles depend on that file system"
            ),
        )
        .mend("prefer XFS or ext4 directly on a block device"),
    }
}

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
            .mend(format!("take nobarrier or barrier=0 out of /etc/fstab, then remount {point}")),
        );
    }
    if mount.has("data=writeback") {
        let finding = "data=writeback: after a crash files may show old contents of other files";
        checks.push(Check::warn(&subject, finding).mend("use data=ordered, the default"));
    }
    if mount.has("ro") {
        let finding = "mounted read-only: every change of a client fails";
        checks.push(
            Check::warn(&subject, finding)
                .mend(format!("mount -o remount,rw {point}, or serve with --read-only")),
        );
    }
    if mount.has("sync") {
        let finding =
            "mounted with sync: every write waits for the disk on its own, group commit cannot help";
        checks.push(Check::warn(&subject, finding).mend(format!("mount -o remount,async {point}")));
    }
    if !mount.has("noatime") && !mount.has("relatime") && !mount.has("ro") && mount.fs_type != "tmpfs" {
        let finding = "every read updates an access time, which costs writes";
        checks.push(
            Check::warn(&subject, finding)
                .mend(format!("mount -o remount,noatime {point}, and in /etc/fstab")),
        );
    }
    if checks.is_empty() {
        let atime =
            if mount.has("noatime") { "noatime" } else { "relatime (noatime would save a few writes)" };
        checks.push(Check::ok(subject, format!("no option that endangers or slows it; {atime}")));
    }
    checks
}
