//! How a job is run: on what, how often, and what is kept.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::url::Target;

/// How to run a job.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Settings {
    /// What to measure.
    pub target: Target,
    /// How often each step is repeated.
    pub repeat: u32,
    /// Threads that the clients are spread over.
    pub threads: usize,
    /// Check the content of every read.
    pub verify: bool,
    /// Where to keep what was written, for a later check; implies `verify`.
    pub state: Option<PathBuf>,
    /// Leave the files there.
    pub keep: bool,
    /// Drop the caches of this machine before each measured phase.
    pub drop_caches: bool,
    /// The server's process, where it cannot be found by its port.
    pub server_pid: Option<u32>,
    /// User id that prepares and cleans up.
    pub uid: u32,
    /// What reports call this measurement, where that is not the target.
    pub label: Option<String>,
    /// The command line, for the report.
    pub command: Vec<String>,
}

impl Settings {
    /// One run by one thread, as root, that checks nothing and leaves nothing.
    pub(crate) fn of(target: Target) -> Self {
        Self {
            target,
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
