//! Finds how much of a directory is in use: the sizes of files by the time of their last read or write.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use anyhow::{Context, Result};
use rustix::fs::StatVfsMountFlags;
use serde::Serialize;

const HOUR: u64 = 3600;
const DAY: u64 = 24 * HOUR;
/// Ages by which files are grouped, in seconds.
const AGES: [(&str, u64); 5] =
    [("an hour", HOUR), ("a day", DAY), ("a week", 7 * DAY), ("30 days", 30 * DAY), ("90 days", 90 * DAY)];

/// The contents of a directory, by age.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Census {
    /// Number of files.
    pub(crate) files: u64,
    /// Bytes that the files take on storage.
    pub(crate) bytes: u64,
    /// Bytes of files that were used within a time, shortest time first.
    pub(crate) used: Vec<Used>,
    /// True if only writes count as use, because the file system does not record reads (noatime).
    pub(crate) writes_only: bool,
    /// Files and directories that could not be examined.
    pub(crate) unseen: u64,
}

/// The bytes of files that were used within a time.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Used {
    /// The time in words.
    pub(crate) within: &'static str,
    /// The time in seconds.
    pub(crate) seconds: u64,
    /// Bytes that these files take on storage.
    pub(crate) bytes: u64,
}

/// Examines every file below `dir` on its file system. `now` is in seconds since 1970.
///
/// # Errors
/// The directory itself cannot be read.
pub(super) fn scan(dir: &Path, now: u64) -> Result<Census> {
    let what = || format!("the directory {} cannot be read", dir.display());
    let device = fs::metadata(dir).with_context(what)?.dev();
    let flags = rustix::fs::statvfs(dir).map_err(std::io::Error::from).with_context(what)?.f_flag;
    let writes_only = flags.contains(StatVfsMountFlags::NOATIME);
    let used = AGES.iter().map(|(within, seconds)| Used { within, seconds: *seconds, bytes: 0 });
    let mut census = Census { files: 0, bytes: 0, used: used.collect(), writes_only, unseen: 0 };
    fs::read_dir(dir).with_context(what)?;
    let mut open = vec![dir.to_owned()];
    while let Some(dir) = open.pop() {
        let Ok(entries) = fs::read_dir(&dir) else {
            census.unseen += 1;
            continue;
        };
        for entry in entries {
            let Some(found) = entry.ok().and_then(|entry| Some((entry.metadata().ok()?, entry.path())))
            else {
                census.unseen += 1;
                continue;
            };
            let (about, path) = found;
            if about.is_dir() && about.dev() == device {
                open.push(path);
            } else if about.is_file() {
                let last = if writes_only { about.mtime() } else { about.mtime().max(about.atime()) };
                census.add(about.blocks() * 512, now.saturating_sub(u64::try_from(last).unwrap_or(0)));
            }
        }
    }
    Ok(census)
}

impl Census {
    /// Counts a file of `bytes` bytes whose last use was `age` seconds ago.
    fn add(&mut self, bytes: u64, age: u64) {
        self.files += 1;
        self.bytes += bytes;
        self.used.iter_mut().filter(|used| age <= used.seconds).for_each(|used| used.bytes += bytes);
    }

    /// Returns the estimated working set: the files used within a week, or a tenth of all bytes if none was.
    pub(super) fn working_set(&self) -> u64 {
        let week = self.used.iter().find(|used| used.seconds == 7 * DAY).map_or(0, |used| used.bytes);
        if week > 0 { week } else { self.bytes / 10 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_counted_by_their_age() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("sub")).unwrap();
        for name in ["new", "sub/old"] {
            fs::write(folder.path().join(name), vec![1; 100_000]).unwrap();
        }
        let old = fs::File::options().write(true).open(folder.path().join("sub/old")).unwrap();
        let long_ago = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1000);
        old.set_times(fs::FileTimes::new().set_accessed(long_ago).set_modified(long_ago)).unwrap();
        old.sync_all().unwrap();
        fs::File::open(folder.path().join("new")).unwrap().sync_all().unwrap();
        let now = fs::metadata(folder.path().join("new")).unwrap().mtime() as u64;
        let census = scan(folder.path(), now + 2 * DAY).unwrap();
        assert_eq!((census.files, census.unseen), (2, 0));
        let used: Vec<bool> = census.used.iter().map(|used| used.bytes >= 100_000).collect();
        assert_eq!(used, [false, false, true, true, true]);
        assert!(census.bytes >= 200_000 && census.working_set() < census.bytes);
    }
}
