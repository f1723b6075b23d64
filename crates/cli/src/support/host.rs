//! The pieces of the archive about the host: versions, mounts, disks, kernel messages, the service manager.

use std::path::Path;

use forebay_control::Status;

use super::collect::served;
use super::{Piece, run};

/// Words in kernel messages that concern every server.
const WORDS: &[&str] = &[
    "nfs",
    "sunrpc",
    "i/o error",
    "blk_update_request",
    "nvme",
    "xfs",
    "ext4",
    "btrfs",
    "out of memory",
    "oom-kill",
    "forebay",
    "hung task",
    "blocked for more than",
    "segfault",
    "medium error",
    "remounting",
    "link is down",
];

/// Returns the versions of the parts.
pub(super) fn versions() -> String {
    let name = rustix::system::uname();
    let part = |text: &std::ffi::CStr| text.to_string_lossy().into_owned();
    let release = std::fs::read_to_string("/etc/os-release").unwrap_or_default();
    format!(
        "forebay {}\nkernel {} {} {}\n\n{release}",
        env!("CARGO_PKG_VERSION"),
        part(name.sysname()),
        part(name.release()),
        part(name.machine())
    )
}

/// Adds the pieces about the host.
pub(super) fn collect(status: Option<&Status>, pieces: &mut Vec<Piece>, step: &mut dyn FnMut(&str)) {
    let mut add = |name, about, text| pieces.push(Piece::new(name, about, text));
    step("mounts and disks");
    add("mounts.txt", "mounts of this host, as /proc/self/mountinfo", read("/proc/self/mountinfo"));
    let columns = "NAME,TYPE,SIZE,ROTA,RO,MODEL,FSTYPE,MOUNTPOINTS,SCHED,LOG-SEC,PHY-SEC,MIN-IO,OPT-IO";
    let disks = run::output("lsblk", &["--output", columns]).or_else(|_| read("/proc/partitions"));
    add("disks.txt", "block devices of this host", disks);
    let limits = status.ok_or("no server answers".to_owned());
    let process = limits.and_then(|status| process(status.pid));
    add("process.txt", "limits and memory of the server's process", process);
    add("memory.txt", "memory of this host, as /proc/meminfo", read("/proc/meminfo"));
    step("messages of the kernel");
    add("kernel.txt", "messages of the kernel about NFS, disks and file systems", kernel(status));
    step("the service manager");
    let systemd = Path::new("/run/systemd/system").is_dir();
    let asked = |program: &str, args: &[&str]| match systemd {
        true => run::output(program, args),
        false => Err("systemd does not run here".to_owned()),
    };
    let units = ["show", "forebay.service", "forebay@*.service", "forebay.socket", "forebay-privileged*"];
    add("unit.txt", "state of the units, as systemctl show", asked("systemctl", &units));
    let log = ["--unit", "forebay*", "--lines", "5000", "--no-pager", "--output", "short-iso-precise"];
    add("journal.txt", "the last messages of the units", asked("journalctl", &log));
}

/// Returns the text of a file, or the reason why it cannot be read. Bytes that are no text are replaced.
fn read(path: &str) -> Result<String, String> {
    let bytes = std::fs::read(path).map_err(|error| format!("{path} cannot be read: {error}"))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn process(pid: u32) -> Result<String, String> {
    Ok(format!("{}\n{}", read(&format!("/proc/{pid}/limits"))?, read(&format!("/proc/{pid}/status"))?))
}

/// Returns the kernel's messages that concern the server: those about NFS and disks, and those that name a device of
/// the cache or of an export.
fn kernel(status: Option<&Status>) -> Result<String, String> {
    let text = run::output("dmesg", &["--time-format", "iso"])?;
    if !text.lines().any(|line| line.contains('T')) {
        return Err(text.trim().to_owned());
    }
    let devices = status.iter().flat_map(|status| &status.pool).flat_map(|pool| &pool.devices);
    let mut names: Vec<String> = devices
        .filter_map(|device| Some(device.path.file_name()?.to_string_lossy().to_lowercase()))
        .collect();
    for directory in served(status) {
        let source = source_of(&directory).unwrap_or_default().to_lowercase();
        names.extend(source.rsplit('/').next().filter(|name| name.len() > 2).map(str::to_owned));
    }
    let concerns = |line: &&str| {
        let line = line.to_lowercase();
        WORDS.iter().any(|word| line.contains(word)) || names.iter().any(|name| line.contains(name.as_str()))
    };
    let lines: Vec<&str> = text.lines().filter(concerns).collect();
    Ok(lines.join("\n") + "\n")
}

/// Returns the device of the file system that contains a directory.
fn source_of(directory: &Path) -> Option<String> {
    let mount = crate::doctor::mounts::Mount::of(directory)?;
    Some(mount.source.to_string_lossy().into_owned())
}
