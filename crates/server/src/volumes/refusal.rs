//! The devices that must not become the backing device of a volume: others use them, or they are a part of something
//! larger.

use std::fs::Metadata;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use forebay_common::nbd_url::NbdUrl;
use forebay_engine::pool::{Ends, Part, part};
use rustix::fs::Dev;

use super::identity::{sys_of, text};
use super::patience::{PATIENCE, in_time};
use super::unopened::unopened;

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

/// Returns why a device must not become a volume's, as a sentence; `None` if it may.
pub(crate) fn refusal(path: &Path, size: u64, ends: &Ends, taken: &Taken) -> Option<String> {
    use_of(path, taken).or_else(|| unusable(&path.display().to_string(), size, ends))
}

/// Returns the other use of a device, as a sentence; `None` if there is none. The contents of the device do not count.
pub(crate) fn use_of(path: &Path, taken: &Taken) -> Option<String> {
    let shown = path.display();
    let meta = match std::fs::metadata(path) {
        Ok(meta) => meta,
        Err(error) => return Some(unopened(path, &error)),
    };
    let is = |other: &Path| metadata_in_time(other).is_some_and(|other| same(&meta, &other));
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
    if is_swap(&meta) {
        return Some(format!("{shown} is swap space; end that with `swapoff {shown}`"));
    }
    if meta.file_type().is_block_device() { device_user(path, meta.rdev()) } else { loop_user(path, &meta) }
}

/// Returns what the system knows of a file or device; `None` if it does not answer within [`PATIENCE`]. A device of a
/// silent file system is no other use that could be overlooked: nobody can open it, or its lock keeps others off.
fn metadata_in_time(path: &Path) -> Option<Metadata> {
    let path = path.to_owned();
    in_time(PATIENCE, move || std::fs::metadata(path))?.ok()
}

/// Returns true if the kernel swaps to a device or file. It does not lock a file that it swaps to.
fn is_swap(meta: &Metadata) -> bool {
    let table = std::fs::read_to_string("/proc/swaps").unwrap_or_default();
    let mut places = table.lines().skip(1).filter_map(|line| line.split_whitespace().next());
    // The kernel writes a space in a name as its octal number.
    places.any(|place| std::fs::metadata(place.replace("\\040", " ")).is_ok_and(|other| same(meta, &other)))
}

/// Returns the other use of an NBD export, as a sentence; `None` if none is known.
pub(crate) fn use_of_export(url: &NbdUrl, taken: &Taken) -> Option<String> {
    let is = |other: &Path| NbdUrl::of(other).as_ref() == Some(url);
    if let Some((name, _)) = taken.volumes.iter().find(|(_, other)| is(other)) {
        return Some(format!("{url} is the backing device of volume {name} already"));
    }
    if taken.cache.iter().any(|other| is(other)) {
        return Some(format!("{url} is a cache device; name another device"));
    }
    None
}

/// Returns why the contents of a device must not become a volume's.
pub(crate) fn unusable(shown: &str, size: u64, ends: &Ends) -> Option<String> {
    match part(ends) {
        Some(Part::OfPool { is_whole: true }) => {
            return Some(format!("{shown} is a cache device; name another device"));
        }
        Some(Part::OfPool { is_whole: false }) => {
            return Some(format!(
                "{shown} ends with the superblock of a cache device; name another device, or zero its last 4 KiB if no \
                 pool has it any more"
            ));
        }
        Some(Part::Foreign(name)) => {
            return Some(format!(
                "{shown} is {name}; name the device that is made of it, or erase the signature with `wipefs` if it is out \
                 of date"
            ));
        }
        None => {}
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

#[cfg(test)]
mod tests {
    use forebay_engine::buffer::{BLOCK, Buffer};

    use super::*;

    /// Returns the ends of a device of `size` bytes with these bytes at their offsets.
    fn ends(size: u64, pokes: &[(usize, &[u8])]) -> Ends {
        let mut contents = vec![0; size as usize];
        pokes.iter().for_each(|(at, bytes)| contents[*at..at + bytes.len()].copy_from_slice(bytes));
        let part = |range: std::ops::Range<u64>| match range.is_empty() {
            true => Buffer::zeroed(0),
            false => Buffer::from_bytes(&contents[range.start as usize..range.end as usize]),
        };
        Ends::new(size, Ends::ranges(size).map(part))
    }

    #[test]
    fn a_device_that_another_use_needs_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        std::fs::write(&path, [0; 8192]).unwrap();
        let zeros = ends(8192, &[]);
        let refused = |taken: &Taken| refusal(&path, 8192, &zeros, taken).unwrap();
        let none = Taken::default();
        assert_eq!(refusal(&path, 8192, &zeros, &none), None);
        assert!(refusal(&path, 8191, &ends(8191, &[]), &none).unwrap().contains("multiple of 512"));
        let inside = Taken { directories: vec![dir.path().to_owned()], ..Taken::default() };
        assert!(refused(&inside).contains("inside of"));
        let cache = Taken { cache: vec![path.clone()], ..Taken::default() };
        assert!(refused(&cache).contains("cache device"));
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        let volumes = Taken { volumes: vec![("scratch".to_owned(), link)], ..Taken::default() };
        assert!(refused(&volumes).contains("volume scratch already"));
    }

    #[test]
    fn a_part_of_something_larger_is_refused_with_its_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        std::fs::write(&path, [0; BLOCK]).unwrap();
        let size = 4 << 20;
        let told = |pokes: &[(usize, &[u8])]| refusal(&path, size, &ends(size, pokes), &Taken::default());
        let refused = |pokes: &[(usize, &[u8])], says| {
            let told = told(pokes);
            assert!(told.as_ref().is_some_and(|told| told.contains(says)), "{says}: {told:?}");
        };
        let end = size as usize;
        refused(&[(0, b"FOREBAY\0")], "is a cache device");
        refused(&[(end - BLOCK, b"FOREBAY\0")], "ends with the superblock of a cache device");
        refused(&[(512, b"LABELONE"), (536, b"LVM2 001")], "LVM");
        refused(&[(end - 8192, &[0xfc, 0x4e, 0x2b, 0xa9])], "MD RAID");
        assert_eq!(told(&[(0x438, &[0x53, 0xef])]), None, "a file system is there to be used");
    }
}
