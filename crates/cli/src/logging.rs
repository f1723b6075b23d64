//! Where the log goes: stderr, as text for people or as JSON.

use std::io::IsTerminal;

use forebay_config::{Log, LogFormat, LogLevel};
use tracing::level_filters::LevelFilter;

/// Starts logging for the rest of the process. Called once.
pub(crate) fn start(log: &Log) {
    let level = match log.level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    };
    let builder = tracing_subscriber::fmt().with_max_level(level).with_writer(std::io::stderr);
    match log.format {
        LogFormat::Text => {
            let colours = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
            builder.with_ansi(colours).with_target(false).init();
        }
        LogFormat::Json => builder.json().init(),
    }
}
