//! The address of the control socket.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Name of the control socket in the state directory.
pub const SOCKET_NAME: &str = "control.sock";

/// Longest path that fits `sockaddr_un` with its terminator (unix(7)).
const LONGEST: usize = 107;

/// Returns the path of the control socket of a state directory.
pub fn socket_path(state_dir: &Path) -> PathBuf {
    state_dir.join(SOCKET_NAME)
}

/// Returns a path to the socket that fits `sockaddr_un`. A long path leads through an open directory, which is
/// returned as well. The caller keeps the directory open until the path has been used.
pub(crate) fn short_path(state_dir: &Path) -> std::io::Result<(PathBuf, Option<File>)> {
    let path = socket_path(state_dir);
    if path.as_os_str().as_bytes().len() <= LONGEST {
        return Ok((path, None));
    }
    let directory = File::open(state_dir)?;
    let short = PathBuf::from(format!("/proc/self/fd/{}/{SOCKET_NAME}", directory.as_raw_fd()));
    Ok((short, Some(directory)))
}
