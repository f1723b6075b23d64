//! The settings of a run: server, repeats, and the files that are kept.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::protocol::Version;
use crate::url::Target;

/// The settings of a run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Settings {
    /// Server and export to measure.
    pub target: Target,
    /// Version of NFS that the clients speak.
    #[serde(default)]
    pub nfs: Version,
    /// Number of repeats of each step.
    pub repeat: u32,
    /// Threads that the clients are spread over.
    pub threads: usize,
    /// True to check the content of every read.
    pub verify: bool,
    /// File that records the writes, for a later check; implies `verify`.
    pub state: Option<PathBuf>,
    /// True to leave the files on the server.
    pub keep: bool,
    /// True to drop the caches of this machine before each measured phase.
    pub drop_caches: bool,
    /// Process id of the server, if it cannot be found by its port.
    pub server_pid: Option<u32>,
    /// User id for preparing and removing files.
    pub uid: u32,
    /// Name of this measurement in reports, if not the target.
    pub label: Option<String>,
    /// The command line, for the report.
    pub command: Vec<String>,
}

impl Settings {
    /// Returns settings for one run by one thread as root, which checks no content and leaves no files.
    pub(crate) fn of(target: Target) -> Self {
        Self {
            target,
            nfs: Version::default(),
            repeat: 1,
            threads: 1,
            verify: false,
            state: None,
            keep: false,
            drop_caches: false,
            server_pid: None,
            uid: 0,
            label: None,
            command: Vec::new(),
        }
    }
}
