//! Unix sockets in a directory. A server that stops removes its own socket, and never one that another server has bound
//! there since.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The name of a Unix socket that this process has bound.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    /// The numbers of the file system and of the inode.
    identity: (u64, u64),
}

impl SocketFile {
    /// Returns the name of the socket that the caller has just bound at `path`.
    ///
    /// # Errors
    /// The system's error.
    pub fn bound(path: &Path) -> io::Result<Self> {
        Ok(SocketFile { path: path.to_owned(), identity: identity(path)? })
    }

    /// Removes the name, unless it leads to another file now. The socket must still be open: an inode that no process
    /// uses may become that of another file.
    pub fn remove(&self) {
        if identity(&self.path).is_ok_and(|found| found == self.identity) {
            // Nothing is left to do if another process has removed the name.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let metadata = std::fs::symlink_metadata(path)?;
    Ok((metadata.dev(), metadata.ino()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn only_the_own_socket_is_removed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let own = UnixListener::bind(&path).unwrap();
        let file = SocketFile::bound(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        file.remove();
        let other = UnixListener::bind(&path).unwrap();
        file.remove();
        assert!(path.exists());
        SocketFile::bound(&path).unwrap().remove();
        assert!(!path.exists());
        drop((own, other));
    }
}
