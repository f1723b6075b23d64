//! An array that belongs to one test, and block I/O that bypasses the page cache.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};
use tempfile::TempDir;

pub(crate) const BLOCK: usize = 4096;

/// An array that is taken down when this value is dropped, even after a failed test.
pub(crate) struct Rig {
    pub(crate) dir: TempDir,
    images: TempDir,
    name: String,
}

impl Rig {
    /// Returns a rig without an array. If this machine cannot make arrays, prints the reason and returns `None`.
    pub(crate) fn new() -> Option<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let root = rustix::process::geteuid().is_root();
        let missing =
            ["/dev/fuse", "/dev/loop-control", "/sbin/mkfs.xfs"].into_iter().find(|p| !Path::new(p).exists());
        if !root || missing.is_some() {
            eprintln!(
                "skipped: needs root, FUSE, loop devices and xfsprogs ({})",
                missing.unwrap_or("not root")
            );
            return None;
        }
        let name = format!("t{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let images = tempfile::tempdir_in("/dev/shm").unwrap();
        Some(Self { dir: tempfile::tempdir().unwrap(), images, name })
    }

    pub(crate) fn try_run(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_forebay-array"));
        command.arg("--state-dir").arg(self.dir.path()).args(arguments).args(["--name", &self.name]);
        command.output().unwrap()
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> String {
        let out = self.try_run(arguments);
        assert!(out.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8(out.stdout).unwrap()
    }

    /// Makes the array, or powers it on again, with further arguments `more`. Its size is 1 GiB, its default model
    /// has 8 disks.
    pub(crate) fn up(&self, more: &[&str]) -> serde_json::Value {
        let images = self.images.path().to_str().unwrap();
        let model = if more.contains(&"--model") { &[][..] } else { &["--model", "nl-sas-8"] };
        let fixed = ["up", "--json", "--size", "1G", "--image-dir", images];
        serde_json::from_str(&self.run(&[&fixed[..], model, more].concat())).unwrap()
    }

    pub(crate) fn status(&self) -> serde_json::Value {
        serde_json::from_str(&self.run(&["status", "--json"])).unwrap()
    }

    /// Returns the 8-disk model with a volatile write cache that destages nothing for 10 minutes.
    pub(crate) fn lazy_volatile(&self) -> PathBuf {
        let text = include_str!("../../models/nl-sas-8.toml")
            .replace("kind = \"none\"", "kind = \"volatile\"")
            .replace("destage_after_ms = 500", "destage_after_ms = 600000");
        let path = self.dir.path().join("lazy.toml");
        std::fs::write(&path, text).unwrap();
        path
    }

    /// Asserts that no part of the array is left on the machine.
    pub(crate) fn assert_gone(&self) {
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
        let dir = self.dir.path().to_str().unwrap();
        assert!(!mounts.contains(dir), "{mounts}");
        for entry in std::fs::read_dir("/sys/block").unwrap().flatten() {
            let backing = std::fs::read_to_string(entry.path().join("loop/backing_file")).unwrap_or_default();
            assert!(!backing.contains(dir), "{backing}");
        }
        assert_eq!(std::fs::read_dir(self.images.path()).unwrap().count(), 0);
        assert!(!self.dir.path().join(&self.name).exists());
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.try_run(&["down", "--force"]);
    }
}

/// A buffer that direct I/O accepts.
#[repr(C, align(4096))]
pub(crate) struct Aligned<const N: usize>(pub(crate) [u8; N]);

pub(crate) fn direct(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).custom_flags(libc::O_DIRECT).open(path).unwrap()
}

/// Returns the content of a block in a generation. No two contents are equal.
pub(crate) fn content(block: u64, generation: u64) -> Box<Aligned<BLOCK>> {
    let mut bytes = Box::new(Aligned([0; BLOCK]));
    for (i, word) in bytes.0.chunks_exact_mut(8).enumerate() {
        let x = block.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ generation << 56 ^ i as u64;
        word.copy_from_slice(&x.to_le_bytes());
    }
    bytes
}

pub(crate) fn write_block(file: &File, block: u64, generation: u64) {
    file.write_all_at(&content(block, generation).0, block * BLOCK as u64).unwrap();
}

pub(crate) fn read_block(file: &File, block: u64) -> io::Result<Box<Aligned<BLOCK>>> {
    let mut bytes = Box::new(Aligned([0; BLOCK]));
    file.read_exact_at(&mut bytes.0, block * BLOCK as u64)?;
    Ok(bytes)
}

/// Returns which of the `candidates` the generation of a block is.
pub(crate) fn generation(file: &File, block: u64, candidates: &[u64]) -> Option<u64> {
    let bytes = read_block(file, block).unwrap();
    candidates.iter().copied().find(|g| bytes.0 == content(block, *g).0)
}
