//! The process around the server.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use forebay_config::{LogLevel, Settings};

use crate::serve::Ready;

/// The interface of the server to the process that it runs in. Called from any thread; no method may block for long.
pub trait Host: Send + Sync + 'static {
    /// Returns the listening sockets that the process was given, with their addresses: at the first call only. All of
    /// them are addresses of the settings.
    fn inherited(&self) -> Vec<(SocketAddr, OwnedFd)>;

    /// Tells that the process has dropped all privileges except those that it keeps. Threads started from now on have
    /// no other privileges.
    fn privileges_dropped(&self);

    /// Tells how far a start or a stop in progress has come. Repeated every few seconds until the start or stop is
    /// over.
    fn under_way(&self, progress: &str);

    /// Tells that clients are accepted.
    fn ready(&self, ready: &Ready);

    /// Tells that a stop has begun.
    fn stopping(&self);

    /// Returns the current settings from flags and configuration file.
    ///
    /// # Errors
    /// Every mistake in the settings, one sentence each.
    fn settings(&self) -> Result<Settings, Vec<String>>;

    /// Sets the lowest severity that is logged.
    fn set_log_level(&self, level: LogLevel);

    /// Returns the number of log lines lost since the start.
    fn log_lines_lost(&self) -> u64;
}
