//! Small files of the state directory, replaced atomically and durably.

pub(crate) mod disowned;
pub(crate) mod lost;

use std::collections::{BTreeMap, HashSet};
use std::io;
use std::path::Path;

use forebay_common::state_file;

/// Name of the file with the secret for file handles.
pub const HANDLE_KEY: &str = "handle.key";

/// Returns the secret for file handles that this state directory has.
pub fn handle_secret(state_dir: &Path) -> io::Result<Option<[u8; 16]>> {
    let path = state_dir.join(HANDLE_KEY);
    let Some(bytes) = state_file::existing(std::fs::read(&path))? else { return Ok(None) };
    let remedy = "restore it, or remove it if there is a cache, which has a copy; without a copy all clients must mount again";
    bytes.try_into().map(Some).map_err(|_| state_file::damaged(&path, remedy))
}

/// Writes the secret for file handles into the state directory, durably.
pub fn keep_handle_secret(state_dir: &Path, secret: [u8; 16]) -> io::Result<()> {
    state_file::replace(&state_dir.join(HANDLE_KEY), secret)
}

/// Facts about the numbers of file systems besides the state directory.
pub(crate) struct Before<'a> {
    /// The numbers that the pool has, by the ids of exports: for a state directory that was lost.
    pub(crate) recorded: &'a [(u32, u32)],
    /// Exports that are other directories than before.
    pub(crate) adopted: &'a [u32],
}

/// Returns the numbers that identify file systems in the keys of the cache, for groups of exports (by their ids) that
/// share one. Also returns the numbers that were given up, now or before. A group keeps the number that any of its
/// exports had before, so that exports may come and go. No two groups have one number, and none has a number that was
/// given up.
pub(crate) fn filesystem_numbers(
    state_dir: &Path,
    groups: &[Vec<u32>],
    before: &Before<'_>,
) -> io::Result<(Vec<u32>, HashSet<u32>)> {
    let path = state_dir.join("filesystems");
    // Version 0.1.0 kept the numbers that were given up in a file of their own.
    let old_path = state_dir.join("given-up");
    let text =
        state_file::read(&path)?.unwrap_or_default() + &state_file::read(&old_path)?.unwrap_or_default();
    if !text.is_empty() && !text.ends_with('\n') {
        // A number that lacks digits is another number.
        return Err(state_file::damaged(
            &path,
            "restore it, or remove it if there is a cache, which has a copy",
        ));
    }
    let mut known: BTreeMap<u32, u32> = before.recorded.iter().copied().collect();
    known.extend(text.lines().filter_map(number_of_export));
    let was: HashSet<u32> = before.adopted.iter().filter_map(|id| known.remove(id)).collect();
    let mut given_up: HashSet<u32> = text.lines().filter_map(|line| line.parse().ok()).collect();
    let mut numbers = Vec::new();
    for ids in groups {
        let is_free = |number: &u32| !numbers.contains(number) && !given_up.contains(number);
        let before = ids.iter().find_map(|id| known.get(id)).copied().filter(is_free);
        let used: HashSet<u32> = known.values().chain(known.keys()).chain(&was).copied().collect();
        // An id belongs to one export, and so does a number made of an id.
        let first = ids.iter().min().copied().unwrap_or(0);
        let is_nobodys = !was.contains(&first) && known.values().all(|number| *number != first);
        let own = Some(first).filter(|first| is_nobodys && is_free(first));
        let unused = || (first..=u32::MAX).chain(1..first).find(|it| is_free(it) && !used.contains(it));
        let number = before.or(own).or_else(unused).unwrap_or(0);
        known.extend(ids.iter().map(|id| (*id, number)));
        numbers.push(number);
    }
    given_up.extend(was.into_iter().filter(|number| !known.values().any(|it| it == number)));
    let known = known.iter().map(|(id, number)| format!("{id} {number}\n"));
    let lines: String = known.chain(given_up.iter().map(|number| format!("{number}\n"))).collect();
    state_file::replace(&path, lines)?;
    state_file::remove(&old_path)?;
    Ok((numbers, given_up))
}

/// Returns an export's id and the number of its file system. A line with one number is a number that was given up.
fn number_of_export(line: &str) -> Option<(u32, u32)> {
    let (id, number) = line.split_once(' ')?;
    Some((id.parse().ok()?, number.parse().ok()?))
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_file_system_keeps_its_number_while_exports_come_and_go() {
        let dir = tempfile::tempdir().unwrap();
        let numbers = |groups: &[Vec<u32>]| {
            let before = super::Before { recorded: &[], adopted: &[] };
            super::filesystem_numbers(dir.path(), groups, &before).unwrap().0
        };
        assert_eq!(numbers(&[vec![7, 9], vec![3]]), [7, 3]);
        assert_eq!(numbers(&[vec![3], vec![1, 9]]), [3, 7]);
        assert_eq!(numbers(&[vec![1]]), [7]);
        // Two file systems now stand where one was.
        let [first, second] = numbers(&[vec![7], vec![9]])[..] else { panic!() };
        assert!(first == 7 && second != 7 && second != 3, "{second}");
        assert_eq!(numbers(&[vec![7], vec![9]]), [first, second]);
    }

    #[test]
    fn a_number_that_was_given_up_is_nobody_s_any_more() {
        let dir = tempfile::tempdir().unwrap();
        let numbers = |groups: &[Vec<u32>], adopted: &[u32]| {
            let before = super::Before { recorded: &[(7, 70)], adopted };
            super::filesystem_numbers(dir.path(), groups, &before).unwrap()
        };
        assert_eq!(numbers(&[vec![7]], &[]).0, [70], "as the pool has it");
        let (new, given_up) = numbers(&[vec![7]], &[7]);
        assert!(new != [70] && given_up.contains(&70));
        assert_eq!(numbers(&[vec![7]], &[]), (new, given_up));
        // One of two exports of a file system goes elsewhere: the other one keeps it.
        let other = tempfile::tempdir().unwrap();
        let numbers = |groups: &[Vec<u32>], adopted: &[u32]| {
            let before = super::Before { recorded: &[], adopted };
            super::filesystem_numbers(other.path(), groups, &before).unwrap()
        };
        assert_eq!(numbers(&[vec![3, 4]], &[]).0, [3]);
        let (split, given_up) = numbers(&[vec![3], vec![4]], &[4]);
        assert!(split[0] == 3 && split[1] != 3 && given_up.is_empty(), "{split:?} {given_up:?}");
    }

    #[test]
    fn numbers_that_version_0_1_0_gave_up_stay_so() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("filesystems"), "7 70\n").unwrap();
        std::fs::write(dir.path().join("given-up"), "9\n11\n").unwrap();
        for _ in 0..2 {
            let before = super::Before { recorded: &[], adopted: &[] };
            let (numbers, given_up) =
                super::filesystem_numbers(dir.path(), &[vec![7], vec![9]], &before).unwrap();
            assert!(numbers[0] == 70 && numbers[1] != 9 && numbers[1] != 70, "{numbers:?}");
            assert_eq!(given_up, [9, 11].into());
            assert!(!dir.path().join("given-up").exists());
        }
    }

    #[test]
    fn the_secret_is_private() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(super::handle_secret(dir.path()).unwrap(), None);
        super::keep_handle_secret(dir.path(), [7; 16]).unwrap();
        assert_eq!(super::handle_secret(dir.path()).unwrap(), Some([7; 16]));
        let mode = std::fs::metadata(dir.path().join("handle.key")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }
}
