//! Emulated disks that a killed run left behind.
//!
//! Their process is dead, so nothing can look at their files any more. mkfs.btrfs looks at the file of every loop
//! device and refuses to work beside one that it cannot look at, so tests of this and of other copies of the tree fail.

use std::{fs, path::Path};

use anyhow::{Context, Result};
use rustix::io::Errno;

use crate::process::{command, output};

const MOUNTS: &str = "/proc/self/mountinfo";

/// A line of proc_pid_mountinfo(5).
struct Mount {
    at: String,
    kind: String,
    source: String,
}

/// Unmounts the file systems of emulated disks whose process is dead, and detaches their devices.
pub(crate) fn remove() -> Result<()> {
    let mounts = mounts(&fs::read_to_string(MOUNTS).with_context(|| format!("cannot read {MOUNTS}"))?);
    let dead = mounts.iter().filter(|mount| mount.kind == "fuse.forebay-array" && is_dead(&mount.at));
    for array in dead {
        eprintln!("removing an emulated disk of a killed run at {}", array.at);
        for device in devices(&array.at)? {
            for mount in mounts.iter().filter(|mount| mount.source == device) {
                output(&mut command("umount", ["--lazy", &mount.at]))?;
            }
            // The last unmount may have detached it.
            let _ = output(&mut command("losetup", ["--detach", &device]));
        }
        output(&mut command("umount", ["--lazy", &array.at]))?;
    }
    Ok(())
}

/// Returns true if the process behind the FUSE mount is dead.
fn is_dead(at: &str) -> bool {
    // The kernel may still know the attributes, but not the names.
    fs::read_dir(at).is_err_and(|error| error.raw_os_error() == Some(Errno::NOTCONN.raw_os_error()))
}

/// Returns the loop devices over the file of the array that is mounted here.
fn devices(array: &str) -> Result<Vec<String>> {
    let mut devices = Vec::new();
    for entry in fs::read_dir("/sys/block").context("cannot list /sys/block")?.flatten() {
        let file = fs::read_to_string(entry.path().join("loop/backing_file")).unwrap_or_default();
        if Path::new(file.trim()).parent() == Some(Path::new(array)) {
            devices.push(format!("/dev/{}", entry.file_name().to_string_lossy()));
        }
    }
    Ok(devices)
}

/// Returns the mounts in the text. Mount points with blanks are left out: no array is at one.
fn mounts(text: &str) -> Vec<Mount> {
    let parse = |line: &str| {
        let (left, right) = line.split_once(" - ")?;
        let at = left.split(' ').nth(4)?;
        let mut right = right.split(' ');
        let (kind, source) = (right.next()?.to_owned(), right.next()?.to_owned());
        (!at.contains('\\')).then(|| Mount { at: at.to_owned(), kind, source })
    };
    text.lines().filter_map(parse).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_are_found_by_kind_and_source() {
        let text = "40 1 0:39 / /rig/fuse rw,nosuid - fuse.forebay-array forebay-array rw\n\
            41 1 7:0 / /rig/ssd rw,noatime shared:3 - ext4 /dev/loop0 rw,discard\n\
            42 1 0:44 / /a\\040b rw - tmpfs none rw\n";
        let found = mounts(text);
        let [array, disk] = &found[..] else { panic!("{} mounts", found.len()) };
        assert_eq!((&*array.at, &*array.kind), ("/rig/fuse", "fuse.forebay-array"));
        assert_eq!((&*disk.at, &*disk.source), ("/rig/ssd", "/dev/loop0"));
    }
}
