//! The address of a control socket.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Name of the control socket in the state directory.
pub const SOCKET_NAME: &str = "control.sock";

/// Longest path that fits `sockaddr_un` with its terminator (unix(7)).
const LONGEST: usize = 107;

/// The control socket of a state directory.
pub fn socket_path(state_dir: &Path) -> PathBuf {
    state_dir.join(SOCKET_NAME)
}

/// A path to the socket that is short enough for `sockaddr_un`, and the open directory it leads through if any,
/// which has to live until the path was used.
pub(crate) fn short_path(state_dir: &Path) -> std::io::Result<(PathBuf, Option<File>)> {
    let path = socket_path(state_dir);
    if path.as_os_str().as_bytes().len() <= LONGEST {
        return Ok((path, None));
    }
    let directory = File::open(state_dir)?;
    let short = PathBuf::from(format!("/proc/self/fd/{}/{SOCKET_NAME}", directory.as_raw_fd()));
    Ok((short, Some(directory)))
}
