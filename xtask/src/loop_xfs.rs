//! An XFS on a loop device, for a server whose file system shares blocks.

use std::{
    fs::File,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result};

use crate::process::run;

/// A mounted XFS. It is unmounted when this value is dropped.
pub(crate) struct LoopXfs {
    at: PathBuf,
    /// The image. Its lock tells `leftovers.rs` that this program lives.
    _image: File,
}

impl LoopXfs {
    /// Makes a file system of `size` bytes in the sparse file `image`, and mounts it at the directory `at`.
    ///
    /// # Errors
    /// The caller is not root, or the kernel lacks loop devices or XFS.
    pub(crate) fn mount(image: &Path, size: u64, at: &Path) -> Result<Self> {
        let file = File::create(image)?;
        file.try_lock().with_context(|| format!("cannot lock {}", image.display()))?;
        file.set_len(size)?;
        run(Command::new("mkfs.xfs").args(["-q", "-m", "reflink=1"]).arg(image))?;
        std::fs::create_dir_all(at)?;
        // A search may briefly claim a device that a test has just attached. The tests take this lock as well.
        let search = File::open("/dev/loop-control").context("the kernel has no loop devices")?;
        search.lock().context("cannot lock /dev/loop-control")?;
        let mut mount = Command::new("mount");
        // With `discard` the image gives back the space of removed files.
        let mount = mount.args(["-o", "loop,nouuid,discard"]).args([image, at]);
        run(mount).context("cannot mount an XFS (as root?)")?;
        Ok(Self { at: at.to_owned(), _image: file })
    }
}

impl Drop for LoopXfs {
    fn drop(&mut self) {
        // A failure leaves a mounted directory, which is seen.
        let _ = run(Command::new("umount").arg("--lazy").arg(&self.at));
    }
}
