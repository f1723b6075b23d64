//! The flush that durable writes to several files of one drive share: the drive has to get one each time.

#![allow(clippy::unwrap_used)]

// This test never changes the size of a device.
#[allow(dead_code)]
mod loop_device;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use forebay_disk::{FileDevice, MIN_SIZE};
use forebay_engine::buffer::{BLOCK, Buffer, Slice};
use forebay_engine::io::{Device, Durability};
use forebay_runtime::block_on;
use loop_device::LoopDevice;

/// An ext4 on a loop device.
struct Ext4 {
    disk: LoopDevice,
    at: PathBuf,
}

impl Ext4 {
    /// Returns `None` without loop devices.
    fn new(dir: &Path, flags: &[&str]) -> Option<Self> {
        let disk = LoopDevice::new(&dir.join("image"), 4 * MIN_SIZE)?;
        // A loop device keeps the setting of its last user.
        let name = disk.path().file_name().unwrap();
        fs::write(Path::new("/sys/block").join(name).join("queue/write_cache"), "write back").unwrap();
        assert!(Command::new("mkfs.ext4").arg("-q").args(flags).arg(disk.path()).status().unwrap().success());
        let at = dir.join("mounted");
        fs::create_dir(&at).unwrap();
        assert!(Command::new("mount").args([disk.path(), &at]).status().unwrap().success());
        Some(Ext4 { disk, at })
    }

    /// Returns the number of times that the drive emptied its write cache.
    fn flushes(&self) -> u64 {
        let stat = Path::new("/sys/block").join(self.disk.path().file_name().unwrap()).join("stat");
        fs::read_to_string(stat).unwrap().split_whitespace().nth(15).unwrap().parse().unwrap()
    }
}

impl Drop for Ext4 {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.at).status();
    }
}

/// Makes durable writes in quick succession, so that some come within one tick of the clock for file times, and
/// others beside a commit of the journal.
fn check(flags: &[&str]) {
    const ROUNDS: u64 = 1000;
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let Some(ext4) = Ext4::new(dir.path(), flags) else { return };
    let [a, b] = ["a", "b"].map(|name| FileDevice::open_or_create(&ext4.at.join(name), MIN_SIZE).unwrap());
    assert!(a.is_direct() && b.is_direct());
    let data = Slice::from(Buffer::from_bytes(&[7; BLOCK]));
    let start = ext4.flushes();
    for round in 0..ROUNDS {
        let before = ext4.flushes();
        let write = |device: &FileDevice| device.write(0, data.clone(), Durability::Now);
        block_on(async {
            let (first, second) = (write(&a), write(&b));
            assert_eq!((first.await, second.await), (Ok(()), Ok(())));
        });
        assert!(
            ext4.flushes() > before,
            "{flags:?}: the writes of round {round} are in the drive's cache only"
        );
    }
    assert!(ext4.flushes() - start < 2 * ROUNDS, "{flags:?}: no two writes shared a flush");
}

#[test]
fn durable_writes_to_two_files_empty_the_cache_of_their_drive() {
    check(&[]);
}

#[test]
fn durable_writes_to_two_files_of_an_ext4_without_a_journal_empty_the_cache_of_their_drive() {
    check(&["-O", "^has_journal"]);
}
