//! A file system on a loop device, for one test.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{FlockOperation, flock};

use super::Serve;

/// A mounted file system whose device is the file `image`. It is unmounted when this value is dropped.
pub(crate) struct LoopDisk {
    /// Mount point of the file system.
    pub(crate) at: PathBuf,
    /// File with the contents of the device.
    pub(crate) image: PathBuf,
    kind: String,
}

/// Most attempts to mount, because another process may take the free loop device first.
const TRIES: usize = 20;

fn run(program: &str, args: &[&OsStr]) -> bool {
    Command::new(program).args(args).output().is_ok_and(|output| output.status.success())
}

/// Runs a command that must succeed.
#[track_caller]
fn must_run(program: &str, args: &[&OsStr]) {
    let output = Command::new(program).args(args).output().unwrap();
    assert!(output.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Returns the reason why this machine cannot have a file system of `kind` on a loop device; `None` if it can.
fn lacking(kind: &str) -> Option<String> {
    let mkfs = format!("mkfs.{kind}");
    if !rustix::process::geteuid().is_root() {
        return Some("root".to_owned());
    }
    if !Path::new("/dev/loop-control").exists() {
        return Some("/dev/loop-control".to_owned());
    }
    if Command::new(&mkfs).arg("-V").output().is_err() {
        return Some(mkfs);
    }
    let known =
        || std::fs::read_to_string("/proc/filesystems").unwrap().split_whitespace().any(|it| it == kind);
    // The kernel may have the file system as a module.
    let there = known() || (run("modprobe", &[kind.as_ref()]) && known());
    (!there).then(|| format!("a kernel with {kind}"))
}

/// Mounts an image; a failure fails the test. A lock on `/dev/loop-control` is held meanwhile, as by everything of this
/// project that searches for a free loop device. A search may briefly claim a device that another process has just
/// attached, and the mount of that process would fail.
#[track_caller]
fn mount_image(image: &Path, at: &Path, kind: &str) {
    let lock = std::fs::File::open("/dev/loop-control").unwrap();
    flock(&lock, FlockOperation::LockExclusive).unwrap();
    // With `nouuid`, a copy of an XFS may be mounted beside the original.
    let options = if kind == "xfs" { "loop,nouuid" } else { "loop" };
    let words =
        ["-t".as_ref(), kind.as_ref(), "-o".as_ref(), options.as_ref(), image.as_os_str(), at.as_os_str()];
    for _ in 1..TRIES {
        let output = Command::new("mount").args(words).output().unwrap();
        if output.status.success() {
            return;
        }
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains("loop device"), "cannot mount {}: {said}", image.display());
    }
    must_run("mount", &words);
}

impl LoopDisk {
    /// Makes a file system of `kind` (ext2, ext4, xfs, btrfs) and `size` bytes below `home`. If the machine lacks
    /// root, loop devices or the file system, prints that and returns `None`; under CI the test fails.
    pub(crate) fn new(home: &Path, kind: &str, size: u64) -> Option<Self> {
        Self::with(home, kind, size, &[])
    }

    /// Makes a file system with further `flags` for mkfs; otherwise as [`LoopDisk::new`].
    pub(crate) fn with(home: &Path, kind: &str, size: u64, flags: &[&str]) -> Option<Self> {
        if let Some(lacking) = lacking(kind) {
            assert!(std::env::var_os("CI").is_none(), "CI has to have {lacking}");
            eprintln!("not run: needs {lacking}");
            return None;
        }
        let image = home.join("image");
        std::fs::File::create(&image).unwrap().set_len(size).unwrap();
        let flags: Vec<_> = ["-q"].iter().chain(flags).map(OsStr::new).collect();
        must_run(&format!("mkfs.{kind}"), &[&flags[..], &[image.as_os_str()]].concat());
        Some(Self::mount(image, home.join("mnt"), kind))
    }

    /// Mounts an image.
    pub(crate) fn mount(image: PathBuf, at: PathBuf, kind: &str) -> Self {
        std::fs::create_dir(&at).unwrap();
        mount_image(&image, &at, kind);
        LoopDisk { at, image, kind: kind.into() }
    }

    /// Copies the present contents of the device.
    pub(crate) fn copy_to(&self, copy: &Path) {
        assert!(run("sync", &[]));
        assert!(run("cp", &["--sparse=always".as_ref(), self.image.as_os_str(), copy.as_os_str()]));
    }

    /// Unmounts the file system lazily. A server that has it open continues.
    pub(crate) fn unmount(&self) {
        assert!(run("umount", &["-l".as_ref(), self.at.as_os_str()]));
    }

    /// Mounts an image at this file system's mount point.
    pub(crate) fn mount_here(&self, image: &Path) {
        mount_image(image, &self.at, &self.kind);
    }

    /// Mounts the present contents of the device, as after a power cut: data that is only in memory is lost.
    pub(crate) fn after_power_cut(&self, home: &Path) -> Self {
        let copy = home.join("image-after-power-cut");
        assert!(run("cp", &["--sparse=always".as_ref(), self.image.as_os_str(), copy.as_os_str()]));
        Self::mount(copy, home.join("mnt-after-power-cut"), &self.kind)
    }

    /// Returns a server of the file system.
    pub(crate) fn serve(&self) -> Serve {
        serve_at(&self.at)
    }

    /// Mounts the file system at a second mount point.
    pub(crate) fn bind(&self, at: &Path) {
        assert!(run("mount", &["--bind".as_ref(), self.at.as_os_str(), at.as_os_str()]));
    }

    /// Removes a mount that [`LoopDisk::bind`] made.
    pub(crate) fn unbind(&self, at: &Path) {
        assert!(run("umount", &[at.as_os_str()]));
    }
}

/// Returns a server of another directory, for this host and without squashing.
pub(crate) fn serve_at(path: &Path) -> Serve {
    let shown = path.display();
    let toml = format!(
        "[[export]]\npath='{shown}'\nname='/'\n[[export.client]]\nnetworks=['127.0.0.1']\nsquash='none'\n"
    );
    Serve::new().exports(&toml).data_at(path)
}

impl Drop for LoopDisk {
    fn drop(&mut self) {
        // A server may still have the file system open. It is then unmounted when the server ends.
        run("umount", &["-l".as_ref(), self.at.as_os_str()]);
    }
}
