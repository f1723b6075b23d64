//! Mount points of file systems.

use std::os::fd::{AsFd, AsRawFd};

/// A mount.
#[derive(Default)]
pub(crate) struct Mounted {
    /// The mounted device, such as "/dev/sdb1".
    pub(crate) source: String,
    /// The mount point.
    pub(crate) at: String,
}

/// Returns the mount that an open inode is on, or `None` if /proc does not tell.
pub(crate) fn of(fd: impl AsFd) -> Option<Mounted> {
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", fd.as_fd().as_raw_fd())).ok()?;
    let id = info.lines().find_map(|line| line.strip_prefix("mnt_id:"))?.trim().to_owned();
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
    mounts.lines().find(|line| line.split(' ').next() == Some(&id)).and_then(parse)
}

/// Parses a line of proc_pid_mountinfo(5).
fn parse(line: &str) -> Option<Mounted> {
    let (before, after) = line.split_once(" - ")?;
    Some(Mounted { source: unescaped(after.split(' ').nth(1)?), at: unescaped(before.split(' ').nth(4)?) })
}

/// Spaces, tabs, line feeds and backslashes are written as three octal digits.
fn unescaped(text: &str) -> String {
    let escapes = [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")];
    escapes.iter().fold(text.to_owned(), |text, (from, to)| text.replace(from, to))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_mountinfo_tells_what_is_mounted_where() {
        let line = "36 35 98:0 / /mnt\\040two rw,noatime master:1 - ext3 /dev/root rw,errors=continue";
        let Mounted { source, at } = parse(line).unwrap();
        assert_eq!((&*source, &*at), ("/dev/root", "/mnt two"));
        assert!(parse("36 35 98:0 / /mnt").is_none());
    }
}
