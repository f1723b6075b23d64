//! A loop device for one test.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

pub(crate) struct LoopDevice(PathBuf);

impl LoopDevice {
    /// Creates a device over a new file of `size` bytes at `image`. If that is not permitted, prints a line on standard
    /// error and returns `None`.
    pub(crate) fn new(image: &Path, size: u64) -> Option<Self> {
        File::create(image).unwrap().set_len(size).unwrap();
        // One at a time: a search for a free device may briefly claim a device that another process has just taken.
        let search = File::open("/dev/loop-control").ok();
        search.iter().for_each(|search| search.lock().unwrap());
        let made = Command::new("losetup").args(["--find", "--show"]).arg(image).output();
        match made {
            Ok(output) if output.status.success() => {
                Some(LoopDevice(String::from_utf8(output.stdout).unwrap().trim().into()))
            }
            Ok(output) => {
                eprintln!("skipped, no loop device: {}", String::from_utf8_lossy(&output.stderr).trim());
                None
            }
            Err(error) => {
                eprintln!("skipped, no losetup: {error}");
                None
            }
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// Has the device become as large as its image is now.
    pub(crate) fn take_over_size(&self) {
        assert!(Command::new("losetup").arg("--set-capacity").arg(&self.0).status().unwrap().success());
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("--detach").arg(&self.0).status();
    }
}
