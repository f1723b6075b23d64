//! The tests `nfs` that set no mode of the cache. They run in a second mode, and the other tests do not run twice.

use std::{collections::BTreeSet, fs, io::ErrorKind, path::PathBuf};

use anyhow::{Context, Result};

use super::record::directory;

/// Returns the path for the record of a run. An older record is removed.
pub(super) fn new_record() -> Result<PathBuf> {
    let path = path()?;
    match fs::remove_file(&path) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", path.display()))
        }
        _ => Ok(path),
    }
}

/// Returns the record of the last run; empty if there is none.
pub(super) fn record() -> Result<String> {
    Ok(fs::read_to_string(path()?).unwrap_or_default())
}

fn path() -> Result<PathBuf> {
    Ok(directory()?.join("tests-without-mode"))
}

/// Returns the names in the record of a run. Returns `None`, for all tests, if there is no record, or if a thread
/// without the name of a test has written to it.
pub(super) fn tests_without_mode(record: &str) -> Option<BTreeSet<&str>> {
    let names: BTreeSet<_> = record.lines().collect();
    (!names.is_empty() && !names.contains("*")).then_some(names)
}

#[cfg(test)]
mod tests {
    use super::tests_without_mode;

    #[test]
    fn a_record_that_names_all_its_tests_chooses_them() {
        assert_eq!(
            tests_without_mode("a::b\nc::d\na::b\n").unwrap().into_iter().collect::<Vec<_>>(),
            ["a::b", "c::d"]
        );
        assert_eq!(tests_without_mode(""), None);
        assert_eq!(tests_without_mode("a::b\n*\n"), None);
    }
}
