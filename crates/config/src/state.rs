//! The state directory: where it is when nobody says so.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::hash::{fnv1a, fold32};

/// The directory that holds the state directories of all instances of root.
pub const STATE_BASE_OF_ROOT: &str = "/var/lib/forebay";

/// The directory that holds the state directories of all instances of this user: `/var/lib/forebay` for root,
/// otherwise `$XDG_STATE_HOME/forebay` or `~/.local/state/forebay`. `None` when neither variable is an absolute path.
pub fn state_base() -> Option<PathBuf> {
    if rustix::process::geteuid().is_root() {
        return Some(PathBuf::from(STATE_BASE_OF_ROOT));
    }
    let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let state = absolute("XDG_STATE_HOME").or_else(|| Some(absolute("HOME")?.join(".local/state")))?;
    Some(state.join("forebay"))
}

/// Name of the state directory of an instance that serves these directories: the last component of the first one, for
/// people, and a hash of all of them in any order, so that the same directories always have the same state.
pub fn instance_name(paths: &[&Path]) -> String {
    let mut sorted: Vec<&[u8]> = paths.iter().map(|path| path.as_os_str().as_bytes()).collect();
    sorted.sort_unstable();
    let last = paths.first().and_then(|path| path.file_name()).map(|name| name.to_string_lossy());
    let word: String = last
        .unwrap_or("root".into())
        .chars()
        .filter(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
        .take(32)
        .collect();
    let word = match word.trim_start_matches('.') {
        "" => "export",
        word => word,
    };
    format!("{word}-{:08x}", fold32(fnv1a(&sorted)))
}

/// The path with the symlinks of its existing part resolved; what does not exist yet is kept as it is.
pub(crate) fn resolved(path: &Path) -> PathBuf {
    for ancestor in path.ancestors() {
        if let (Ok(real), Ok(rest)) = (ancestor.canonicalize(), path.strip_prefix(ancestor)) {
            return real.join(rest);
        }
    }
    path.to_owned()
}
