//! Small files of the state directory, replaced atomically and durably.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Writes a file beside `path`, makes it durable, renames it over `path` and makes the name durable.
pub(crate) fn replace(path: &Path, fill: impl FnOnce(&mut File) -> io::Result<()>) -> io::Result<()> {
    let temporary = path.with_extension("new");
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
    fill(&mut file)?;
    file.sync_all()?;
    std::fs::rename(&temporary, path)?;
    match path.parent() {
        Some(parent) => File::open(parent)?.sync_all(),
        None => Ok(()),
    }
}

/// The secret of this state directory for file handles; made at the first start.
pub fn handle_secret(state_dir: &Path) -> io::Result<[u8; 16]> {
    let path = state_dir.join("handle.key");
    let mut secret = [0; 16];
    match File::open(&path) {
        Ok(mut file) => file.read_exact(&mut secret)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            rustix::rand::getrandom(&mut secret, rustix::rand::GetRandomFlags::empty())?;
            replace(&path, |file| file.write_all(&secret))?;
        }
        Err(error) => return Err(error),
    }
    Ok(secret)
}

/// The numbers that tell file systems apart in the keys of the cache, for groups of exports (by their ids) that share one.
/// A group keeps the number that any of its exports had before, so that exports may come and go.
pub(crate) fn filesystem_numbers(state_dir: &Path, groups: &[Vec<u32>]) -> io::Result<Vec<u32>> {
    let path = state_dir.join("filesystems");
    let text = match std::fs::read_to_string(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        text => text?,
    };
    let parse = |line: &str| {
        let (id, number) = line.split_once(' ')?;
        Some((id.parse().ok()?, number.parse().ok()?))
    };
    let mut known: BTreeMap<u32, u32> = text.lines().filter_map(parse).collect();
    let mut numbers = Vec::new();
    for ids in groups {
        let before = ids.iter().find_map(|id| known.get(id)).copied();
        // An id is nobody else's, and neither is a number that was made of one.
        let number = before.or_else(|| ids.iter().min().copied()).unwrap_or(0);
        known.extend(ids.iter().map(|id| (*id, number)));
        numbers.push(number);
    }
    replace(&path, |file| known.iter().try_for_each(|(id, number)| writeln!(file, "{id} {number}")))?;
    Ok(numbers)
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_file_system_keeps_its_number_while_exports_come_and_go() {
        let dir = tempfile::tempdir().unwrap();
        let numbers = |groups: &[Vec<u32>]| super::filesystem_numbers(dir.path(), groups).unwrap();
        assert_eq!(numbers(&[vec![7, 9], vec![3]]), [7, 3]);
        assert_eq!(numbers(&[vec![3], vec![1, 9]]), [3, 7]);
        assert_eq!(numbers(&[vec![1]]), [7]);
    }

    #[test]
    fn the_secret_is_made_once_and_is_private() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let first = super::handle_secret(dir.path()).unwrap();
        assert_eq!(super::handle_secret(dir.path()).unwrap(), first);
        let mode = std::fs::metadata(dir.path().join("handle.key")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }
}
