//! The free space that a whole run needs.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::process::target_dir;

const GIB: u64 = 1 << 30;

/// The size of the build of all steps with their images, in bytes.
const BUILD: u64 = 10 * GIB;

/// The largest space that tests use at a time, in bytes.
const TESTS: u64 = 4 * GIB;

/// The part of a file system that has to stay free, in percent. Below 1 % a server reports trouble, so that all tests
/// fail that expect a healthy one.
const MARGIN: u64 = 2;

/// Fails if the build or the tests would fill a file system.
pub(crate) fn check() -> Result<()> {
    let (build, tests) = (target_dir(), std::env::temp_dir());
    let parent = build.ancestors().find(|path| path.is_dir()).unwrap_or(Path::new("/")).to_owned();
    let left = BUILD.saturating_sub(size(build));
    if rustix::fs::stat(&parent)?.st_dev == rustix::fs::stat(&tests)?.st_dev {
        return has(&tests, left + TESTS);
    }
    has(&parent, left)?;
    has(&tests, TESTS)
}

/// Fails unless the file system of `path` has `needed` bytes free, and a reserve beside them. A full disk would fail
/// a step in an obscure way.
fn has(path: &Path, needed: u64) -> Result<()> {
    let stat = rustix::fs::statvfs(path)
        .with_context(|| format!("cannot ask for the space of {}", path.display()))?;
    let (free, total) = (stat.f_bavail * stat.f_frsize, stat.f_blocks * stat.f_frsize);
    let needed = needed + total / 100 * MARGIN;
    ensure!(
        free >= needed,
        "the file system of {} has {} GiB free, and this run needs {} GiB: remove other builds (`target` folders) or old files",
        path.display(),
        free / GIB,
        needed.div_ceil(GIB)
    );
    Ok(())
}

/// Returns the sum of the sizes of all files below a directory, in bytes. Unreadable files do not count.
fn size(directory: PathBuf) -> u64 {
    let (mut sum, mut left) = (0, vec![directory]);
    while let Some(directory) = left.pop() {
        for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
            match entry.metadata() {
                Ok(of) if of.is_dir() => left.push(entry.path()),
                Ok(of) => sum += of.len(),
                Err(_) => {}
            }
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_system_without_the_room_is_named() {
        let here = tempfile::tempdir().unwrap();
        has(here.path(), 0).unwrap();
        let said = has(here.path(), 1 << 62).unwrap_err().to_string();
        assert!(said.contains(here.path().to_str().unwrap()) && said.contains("needs"), "{said}");
    }

    #[test]
    fn files_of_all_folders_count() {
        let here = tempfile::tempdir().unwrap();
        std::fs::create_dir(here.path().join("a")).unwrap();
        std::fs::write(here.path().join("a/b"), [0; 700]).unwrap();
        std::fs::write(here.path().join("c"), [0; 70]).unwrap();
        assert_eq!(size(here.path().to_owned()), 770);
    }
}
