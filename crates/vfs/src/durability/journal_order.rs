//! Finds out if one journal orders all changes of a file system (see [`crate::durability::journal`]), as far as the
//! kernel tells.

use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags};

use crate::durability::journal::Order;
use crate::identity::fs_type::{EXT4, XFS};

/// Returns the order of metadata changes in the file system on `device` (see [`crate::durability::journal`]).
pub(crate) fn order_of(root: &OwnedFd, device: u64, magic: i64) -> Order {
    let number = format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
    // Options that cannot be read may be any.
    let Some(options) = mount_options(&number) else { return Order::PerObject };
    let has =
        |name: &str| options.iter().any(|option| option == name || option.starts_with(&format!("{name}=")));
    // lazytime is left out: SETATTR and size changes are logged at once under it too, but write times are not.
    let unordered = ["logdev", "rtdev", "journal_dev", "journal_path", "nobarrier", "lazytime"];
    if unordered.iter().any(|name| has(name)) || has("barrier") && !options.iter().any(|o| o == "barrier=1") {
        return Order::PerObject;
    }
    match magic {
        XFS => Order::Journal,
        EXT4 if !options.iter().any(|o| o == "data=journal") && ext4_has_one_journal(root, &number) => {
            Order::Journal
        }
        _ => Order::PerObject,
    }
}

/// Returns the mount and super block options of the file system on `number` ("major:minor"); proc(5). `None` if the
/// mount is not found or the list of mounts cannot be read.
fn mount_options(number: &str) -> Option<Vec<String>> {
    options_in(&std::fs::read_to_string("/proc/self/mountinfo").ok()?, number)
}

/// Returns the options of the mount of a device, as proc_pid_mountinfo(5) lists them.
fn options_in(mounts: &str, number: &str) -> Option<Vec<String>> {
    let line = mounts.lines().find(|line| line.split(' ').nth(2) == Some(number))?;
    let mount = line.split(' ').nth(5)?;
    let super_block = line.rsplit(' ').next()?;
    Some(mount.split(',').chain(super_block.split(',')).map(String::from).collect())
}

/// Returns true if ext4 has one journal. ext4 can be made without a journal, whose thread shows in /proc/fs/jbd2 as
/// "DEVICE-INODE". It can also be made with fast commits, which persist some inodes ahead of older changes of other
/// inodes.
fn ext4_has_one_journal(root: &OwnedFd, number: &str) -> bool {
    let Ok(device) = std::fs::read_link(format!("/sys/dev/block/{number}")) else { return false };
    let Some(name) = device.file_name().and_then(|name| name.to_str()) else { return false };
    let Ok(journals) = std::fs::read_dir("/proc/fs/jbd2") else { return false };
    let prefix = format!("{name}-");
    journals.flatten().any(|entry| entry.file_name().to_string_lossy().starts_with(&prefix))
        && !ext4_commits_fast(root, name)
}

/// Returns true if ext4 makes fast commits where it can. No kernel shows the feature, but the kernel counts fast
/// commits. So this function makes a few.
fn ext4_commits_fast(root: &OwnedFd, name: &str) -> bool {
    let counted = || match std::fs::read_to_string(format!("/proc/fs/ext4/{name}/fc_info")) {
        Ok(text) => counts_fast_commits(&text),
        // Linux before 5.10 has none. A file that cannot be read counts as the worse case.
        Err(error) => error.kind() != std::io::ErrorKind::NotFound,
    };
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let Ok(probe) = rustix::fs::openat(root, c".", flags, Mode::RUSR) else { return counted() };
    // A commit of the journal that comes in between leaves the sync nothing to do: hence several.
    [Mode::RUSR | Mode::WUSR, Mode::RUSR].iter().cycle().take(4).any(|mode| {
        let synced = rustix::fs::fchmod(&probe, *mode).and_then(|()| rustix::fs::fsync(&probe));
        synced.is_err() || counted()
    })
}

/// Returns true if fc_info, which begins "fc stats:\n1 commits\n2 ineligible\n", counts a commit that was fast or tried
/// to be.
fn counts_fast_commits(text: &str) -> bool {
    let count = |what| text.lines().find_map(|line| line.strip_suffix(what)?.trim().parse::<u64>().ok());
    count(" commits").is_none_or(|count| count > 0) || count(" ineligible").is_none_or(|count| count > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_a_mount_that_is_not_found_are_not_none() {
        let mounts = "29 1 8:1 / / rw,relatime shared:1 - xfs /dev/sda1 rw,logdev=/dev/sdb1\n";
        assert!(options_in(mounts, "8:1").unwrap().contains(&"logdev=/dev/sdb1".to_owned()));
        assert_eq!((options_in(mounts, "8:2"), options_in("", "8:1")), (None, None));
    }

    #[test]
    fn fast_commits_are_counted_and_what_is_not_understood_is_one() {
        let stats = |commits, ineligible| {
            format!("fc stats:\n{commits} commits\n{ineligible} ineligible\n7 numblks\n3us avg_commit_time\n")
        };
        assert!(!counts_fast_commits(&stats(0, 0)));
        assert!(counts_fast_commits(&stats(1, 0)) && counts_fast_commits(&stats(0, 1)));
        assert!(counts_fast_commits("") && counts_fast_commits("0 commits\n"));
    }
}
