//! The host's side of an array: the loop device, the file system, the mount, and the removal of all three.

use crate::daemon::FILE_NAME;
use crate::error::{ArrayError, Doing};
use crate::model::{CacheKind, Model};
use crate::state::FileSystem;
use rustix::fs::FlockOperation;
use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Device that names free loop devices. It also carries the lock of [`lock_search`].
const LOOP_CONTROL: &str = "/dev/loop-control";

/// Size of the largest request to the block device, in KiB. The kernel splits larger requests.
const MAX_REQUEST_KIB: &str = "1024";

/// Longest time that a loop device takes to go away.
const GOING: Duration = Duration::from_secs(5);

/// Runs a program to its end and returns its standard output.
pub(crate) fn program(name: &str, arguments: &[&str]) -> Result<String, ArrayError> {
    let command = || format!("{name} {}", arguments.join(" "));
    let output = match Command::new(name).args(arguments).output() {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Err(missing(name)),
        other => other.doing(|| format!("run {}", command()))?,
    };
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr).trim().replace('\n', "; ");
        let text = if text.is_empty() { output.status.to_string() } else { text };
        return Err(ArrayError::Program { command: command(), output: text });
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Returns the error for a program that the host lacks, with the Debian package that has it.
fn missing(program: &str) -> ArrayError {
    let remedy = match program {
        "mkfs.xfs" => "install the package xfsprogs",
        "mkfs.ext4" => "install the package e2fsprogs",
        "fio" => "install the package fio",
        _ => "install the package util-linux",
    };
    ArrayError::Missing { what: format!("the program {program}"), remedy }
}

/// Checks that this machine can emulate arrays.
pub(crate) fn check(verb: &'static str) -> Result<(), ArrayError> {
    if !rustix::process::geteuid().is_root() {
        return Err(ArrayError::NotRoot(verb));
    }
    for device in ["/dev/fuse", LOOP_CONTROL] {
        if !Path::new(device).exists() {
            let remedy = "this kernel or container cannot emulate an array; load the modules fuse and loop";
            return Err(ArrayError::Missing { what: format!("the device {device}"), remedy });
        }
    }
    Ok(())
}

/// Waits until no other holder of this lock searches for a free loop device. Returns the lock, which is released when
/// the value is dropped. A search may try a device that another process has just attached, and briefly claims it. That
/// process then fails to make or mount a file system with `EBUSY`.
fn lock_search() -> Result<File, ArrayError> {
    let lock = File::open(LOOP_CONTROL).doing(|| format!("open {LOOP_CONTROL}"))?;
    rustix::io::retry_on_intr(|| rustix::fs::flock(&lock, FlockOperation::LockExclusive))
        .doing(|| format!("lock {LOOP_CONTROL}"))?;
    Ok(lock)
}

/// Attaches a loop device to the daemon's file and configures its queue.
pub(crate) fn attach(fuse: &Path, model: &Model) -> Result<String, ArrayError> {
    let file = fuse.join(FILE_NAME);
    let file = file.to_string_lossy();
    let arguments = ["--find", "--show", "--direct-io=on", "--sector-size", "4096", &file];
    let device = {
        let _lock = lock_search()?;
        program("losetup", &arguments)?.trim().to_owned()
    };
    let queue = queue_of(&device);
    let set = |name: &str, value: &str| {
        let path = queue.join(name);
        fs::write(&path, value).doing(|| format!("write {value} to {}", path.display()))
    };
    set("max_sectors_kb", MAX_REQUEST_KIB)?;
    set("read_ahead_kb", &model.host.read_ahead_kib.to_string())?;
    set("rotational", "1")?;
    // Without a volatile cache the kernel need not send flushes. The value is written in both cases, because a loop
    // device keeps the setting of its previous user.
    set("write_cache", if model.cache.kind == CacheKind::Volatile { "write back" } else { "write through" })?;
    Ok(device)
}

fn queue_of(device: &str) -> PathBuf {
    Path::new("/sys/block").join(device.trim_start_matches("/dev/")).join("queue")
}

/// Makes the file system, aligned to the stripes of the array.
pub(crate) fn make_file_system(fs: FileSystem, device: &str, model: &Model) -> Result<(), ArrayError> {
    let data = (model.raid.disks_per_span - 2) * model.raid.spans;
    match fs {
        FileSystem::Xfs => {
            let layout = format!("su={}k,sw={data}", model.raid.chunk_kib);
            program("mkfs.xfs", &["-q", "-f", "-K", "-s", "size=4096", "-d", &layout, device])?;
        }
        FileSystem::Ext4 => {
            let chunk = model.raid.chunk_kib / 4;
            let layout = format!("nodiscard,lazy_itable_init=0,stride={chunk},stripe_width={}", chunk * data);
            program("mkfs.ext4", &["-q", "-F", "-b", "4096", "-E", &layout, device])?;
        }
        FileSystem::None => {}
    }
    Ok(())
}

/// Mounts the file system with the options of a careful administrator. With `discard`, deleted files free the image's
/// memory.
pub(crate) fn mount(fs: FileSystem, device: &str, at: &Path) -> Result<(), ArrayError> {
    let at = at.to_string_lossy();
    let (kind, options) = match fs {
        // After a power cut the old instance lives until its last open file is closed. `nouuid` permits a second
        // instance.
        FileSystem::Xfs => ("xfs", "noatime,inode64,logbsize=256k,nouuid,discard"),
        FileSystem::Ext4 => ("ext4", "noatime,discard"),
        FileSystem::None => return Ok(()),
    };
    program("mount", &["-t", kind, "-o", options, device, &at]).map(drop)
}

/// Unmounts every mount at `at`. With `lazily`, busy mounts as well. Succeeds if nothing is mounted there.
pub(crate) fn unmount(at: &Path, lazily: bool) -> Result<(), ArrayError> {
    let flags = if lazily { UnmountFlags::DETACH } else { UnmountFlags::empty() };
    loop {
        match rustix::mount::unmount(at, flags | UnmountFlags::NOFOLLOW) {
            Ok(()) => {}
            // The path is not a mount point, or does not exist.
            Err(Errno::INVAL | Errno::NOENT) => return Ok(()),
            Err(Errno::BUSY) => return Err(ArrayError::Busy(at.to_owned())),
            Err(e) => return Err(e).doing(|| format!("unmount {}", at.display())),
        }
    }
}

/// Waits up to 5 seconds until a thing is gone. Returns true if it is.
fn goes(is_there: impl Fn() -> bool) -> bool {
    let begun = Instant::now();
    while is_there() {
        if begun.elapsed() > GOING {
            return false;
        }
        std::thread::sleep(GOING / 500);
    }
    true
}

/// Detaches every loop device on the daemon's file. The `recorded` device is detached even if its file has lost its
/// path.
pub(crate) fn detach(fuse: &Path, recorded: Option<&str>) -> Result<(), ArrayError> {
    let file = fuse.join(FILE_NAME);
    let (whole, bare) = (file.to_string_lossy(), format!("/{FILE_NAME}"));
    for entry in fs::read_dir("/sys/block").doing(|| "list /sys/block".to_owned())?.flatten() {
        let attached = || fs::read_to_string(entry.path().join("loop/backing_file"));
        let Ok(file) = attached() else { continue };
        let device = format!("/dev/{}", entry.file_name().to_string_lossy());
        let backing = file.trim().trim_end_matches(" (deleted)");
        // After a lazy unmount of FUSE the kernel shows only the path within that mount.
        if backing == whole || (backing == bare && recorded == Some(&device)) {
            let result = program("losetup", &["--detach", &device]);
            // A detach that failed may still be in progress: an earlier call marked the device, and its last user has
            // just closed it.
            if result.is_err() && !goes(|| attached().is_ok_and(|now| now == file)) {
                result?;
            }
        }
    }
    Ok(())
}
