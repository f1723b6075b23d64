//! A loop device for one test.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

pub(crate) struct LoopDevice(PathBuf);

impl LoopDevice {
    /// Over a new file of `size` bytes at `image`; `None`, with a line on standard error, where that is not permitted.
    pub(crate) fn new(image: &Path, size: u64) -> Option<Self> {
        File::create(image).unwrap().set_len(size).unwrap();
        // One at a time: whoever looks for a free device may claim one for a moment that somebody else has just taken.
        static ONE: Mutex<()> = Mutex::new(());
        let _one = ONE.lock();
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
