//! The state of a directory under which its names and entries are cached.

use crate::attr::Time;

/// The state of a directory under which names were cached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    /// The directory's ctime, which shows external changes.
    pub(crate) ctime: Time,
    /// The directory's own change count: shows changes made through the server.
    pub(crate) changes: u64,
}
