//! The location of the state directory when none is given.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::hash::{fnv1a, fold32};

/// The directory that holds the state directories of root's servers.
pub const STATE_BASE_OF_ROOT: &str = "/var/lib/forebay";

/// Returns the directory that holds the state directories of this user's servers: `/var/lib/forebay` for root,
/// otherwise `$XDG_STATE_HOME/forebay` or `~/.local/state/forebay`. `None` if neither variable holds an absolute
/// path.
pub fn state_base() -> Option<PathBuf> {
    if rustix::process::geteuid().is_root() {
        return Some(PathBuf::from(STATE_BASE_OF_ROOT));
    }
    let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let state = absolute("XDG_STATE_HOME").or_else(|| Some(absolute("HOME")?.join(".local/state")))?;
    Some(state.join("forebay"))
}

/// Returns the name of the state directory of a server with these exported directories. For people, it starts with
/// the last component of the first path. A hash of all paths follows; their order does not change the hash. So equal
/// sets of directories have equal hashes.
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

/// Returns the path with the symbolic links of its existing part resolved. Components that do not exist are kept.
pub(crate) fn resolved(path: &Path) -> PathBuf {
    for ancestor in path.ancestors() {
        if let (Ok(real), Ok(rest)) = (ancestor.canonicalize(), path.strip_prefix(ancestor)) {
            // To join nothing would add a slash, and the path would not be shown as it was before.
            return if rest.as_os_str().is_empty() { real } else { real.join(rest) };
        }
    }
    path.to_owned()
}
