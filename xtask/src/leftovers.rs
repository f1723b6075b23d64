//! Emulated disks and mounted images that a killed run left behind.
//!
//! An emulated disk's process is dead, so nothing can look at its files any more. mkfs.btrfs looks at the file of every
//! loop device and refuses to work beside one that it cannot look at, so tests of this and of other copies of the tree
//! fail.
//!
//! An image of `loop_xfs.rs` takes up to 24 GiB of the disk until it is unmounted and removed.

use std::{
    fs::{self, File, TryLockError},
    path::Path,
};

use anyhow::{Context, Result};
use rustix::io::Errno;

use crate::process::{command, output, rigs_dir};

const MOUNTS: &str = "/proc/self/mountinfo";

/// A line of proc_pid_mountinfo(5).
struct Mount {
    at: String,
    kind: String,
    source: String,
}

/// Unmounts what killed runs have left mounted: emulated disks, and the images of this copy of the tree.
pub(crate) fn remove() -> Result<()> {
    remove_disks()?;
    remove_images(&rigs_dir()?)
}

/// Unmounts the images below the directory of the rigs whose program is dead, and removes the directories of their
/// servers.
fn remove_images(rigs: &Path) -> Result<()> {
    let mounts = mounts(&fs::read_to_string(MOUNTS).with_context(|| format!("cannot read {MOUNTS}"))?);
    for mount in mounts.iter().filter(|mount| mount.kind == "xfs") {
        let Some(image) = mount.source.strip_prefix("/dev/").and_then(backing_file) else { continue };
        let Ok(below) = Path::new(&image).strip_prefix(rigs) else { continue };
        if is_in_use(Path::new(&image)) {
            continue;
        }
        eprintln!("removing the image of a killed run at {}", mount.at);
        // The device is detached with its last mount.
        output(&mut command("umount", ["--lazy", &mount.at]))?;
        let server = below.components().next().map(|name| rigs.join(name));
        if let Some(server) = server.filter(|server| server.is_dir()) {
            fs::remove_dir_all(&server).with_context(|| format!("cannot remove {}", server.display()))?;
        }
    }
    Ok(())
}

/// Returns true if a program holds the lock that an image has as long as it is mounted for a run.
fn is_in_use(image: &Path) -> bool {
    File::open(image).is_ok_and(|file| matches!(file.try_lock(), Err(TryLockError::WouldBlock)))
}

/// Returns the path of the file behind a loop device. The kernel adds a word to it if the file is removed.
fn backing_file(device: &str) -> Option<String> {
    let file = fs::read_to_string(Path::new("/sys/block").join(device).join("loop/backing_file")).ok()?;
    Some(file.trim().to_owned())
}

/// Unmounts the file systems of emulated disks whose process is dead, and detaches their devices.
fn remove_disks() -> Result<()> {
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
        let name = entry.file_name().to_string_lossy().into_owned();
        let file = backing_file(&name).unwrap_or_default();
        if Path::new(&file).parent() == Some(Path::new(array)) {
            devices.push(format!("/dev/{name}"));
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

    #[test]
    fn an_image_is_in_use_while_it_is_locked() {
        let home = tempfile::tempdir().unwrap();
        let image = home.path().join("image");
        assert!(!is_in_use(&image), "a removed image");
        let file = File::create(&image).unwrap();
        assert!(!is_in_use(&image));
        file.try_lock().unwrap();
        assert!(is_in_use(&image));
        drop(file);
        assert!(!is_in_use(&image));
    }
}
