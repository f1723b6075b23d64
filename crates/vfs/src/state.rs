//! Small files of the state directory, replaced atomically and durably.

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

#[cfg(test)]
mod tests {
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
