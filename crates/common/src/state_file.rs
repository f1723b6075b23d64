//! Small files of the state directory: read as a whole, replaced as a whole, removed, each durably. A power cut leaves
//! the old contents or the new ones. Files that are written in place (logs, slots) have code of their own.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Returns the text of a file, or `None` if there is no such file.
///
/// # Errors
/// The file cannot be read; [`damaged`]: it is not text.
pub fn read(path: &Path) -> io::Result<Option<String>> {
    existing(std::fs::read_to_string(path)).map_err(|error| match error.kind() {
        io::ErrorKind::InvalidData => damaged(
            path,
            "restore it, or remove it if you can do without it: \"State directory\" in docs/operations.md says what its loss means",
        ),
        _ => error,
    })
}

/// Returns the error for a file of the state directory with contents that the server has not written: a sentence with
/// what to do. Its kind is `InvalidData`.
pub fn damaged(path: &Path, remedy: &str) -> io::Error {
    let message = format!("{} is damaged; {remedy}", path.display());
    io::Error::new(io::ErrorKind::InvalidData, message)
}

/// Returns the result of an access to a file, or `None` if there is no such file.
pub fn existing<T>(found: io::Result<T>) -> io::Result<Option<T>> {
    match found {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        found => found.map(Some),
    }
}

/// Writes a file beside `path`, makes it durable, renames it over `path` and makes the name durable. Only the server's
/// user may read it.
pub fn replace(path: &Path, contents: impl AsRef<[u8]>) -> io::Result<()> {
    let temporary = path.with_extension("new");
    write(&temporary, contents.as_ref()).and_then(|()| std::fs::rename(&temporary, path)).inspect_err(
        |_| {
            // A full file system needs the room.
            let _ = std::fs::remove_file(&temporary);
        },
    )?;
    sync_name(path)
}

/// Writes a new file durably, in place of one that a crash left.
fn write(path: &Path, contents: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
    file.write_all(contents)?;
    file.sync_all()
}

/// Removes a file, which may be gone already, and makes that durable.
pub fn remove(path: &Path) -> io::Result<()> {
    existing(std::fs::remove_file(path))?;
    sync_name(path)
}

/// Makes the names durable in the directory that `path` is in.
pub fn sync_name(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), |parent| File::open(parent)?.sync_all())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_file_is_replaced_and_removed_as_a_whole() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("name");
        assert_eq!(read(&path).unwrap(), None);
        remove(&path).unwrap();
        for text in ["a long text", "short", ""] {
            replace(&path, text).unwrap();
            assert_eq!(read(&path).unwrap().as_deref(), Some(text));
        }
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(std::fs::read_dir(home.path()).unwrap().count(), 1, "no temporary file is left");
        remove(&path).unwrap();
        assert_eq!(read(&path).unwrap(), None);
        assert!(replace(&home.path().join("none/name"), "text").is_err());
        std::fs::create_dir(&path).unwrap();
        assert!(replace(&path, "text").is_err());
        assert_eq!(std::fs::read_dir(home.path()).unwrap().count(), 1, "a failure leaves no temporary file");
        std::fs::remove_dir(&path).unwrap();
        assert!(read(home.path()).is_err(), "an error is not a missing file");
        std::fs::write(&path, [0xff]).unwrap();
        let error = read(&path).unwrap_err().to_string();
        assert!(error.contains(&format!("{} is damaged", path.display())), "{error}");
    }
}
