//! The process around the server.

use forebay_config::{LogLevel, Settings};

use crate::serve::Ready;

/// What the server asks of the process it runs in, and tells it. Called from any thread; nothing may wait for long.
pub trait Host: Send + Sync + 'static {
    /// The process has the privileges that it keeps: threads started from now on have no others.
    fn privileges_dropped(&self);

    /// A start or a stop is under way and has come so far. Repeated every few seconds until it is over.
    fn under_way(&self, progress: &str);

    /// Clients are accepted.
    fn ready(&self, ready: &Ready);

    /// A stop has begun.
    fn stopping(&self);

    /// The settings as flags and configuration file say now.
    ///
    /// # Errors
    /// Every mistake in them, a sentence each.
    fn settings(&self) -> Result<Settings, Vec<String>>;

    /// Logs what is as severe as this, or more.
    fn set_log_level(&self, level: LogLevel);

    /// Lines of the log that were lost since the start.
    fn log_lines_lost(&self) -> u64;
}
