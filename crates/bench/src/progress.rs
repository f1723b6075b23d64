//! The progress bar. It is shown on a terminal only.

use std::io::IsTerminal as _;
use std::sync::atomic::Ordering;
use std::time::Instant;

use indicatif::{ProgressBar, ProgressStyle};

use crate::engine::Live;

/// Returns a bar for a phase of `limit` seconds, or a spinner without a limit. It is hidden unless standard error is
/// a terminal.
pub(crate) fn bar(name: &str, limit: Option<f64>) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = match limit {
        Some(seconds) => ProgressBar::new((seconds * 10.0) as u64),
        None => ProgressBar::new_spinner(),
    };
    let template =
        if limit.is_some() { "{prefix:>14} {wide_bar} {msg}" } else { "{prefix:>14} {spinner} {msg}" };
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar.with_prefix(name.to_owned())
}

/// Shows the mean rates since `start`.
pub(crate) fn redraw(bar: &ProgressBar, live: &Live, start: Instant) {
    let seconds = start.elapsed().as_secs_f64();
    let operations = live.operations.load(Ordering::Relaxed) as f64;
    let bytes = live.bytes.load(Ordering::Relaxed) as f64;
    bar.set_position((seconds * 10.0) as u64);
    bar.set_message(format!("{:>8.0}/s {:>7.1} MB/s", operations / seconds, bytes / seconds / 1e6));
}
