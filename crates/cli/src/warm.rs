//! `forebay warm`: files are brought into the cache before clients ask for them.

use std::io::{IsTerminal, Write as _};
use std::time::{Duration, Instant};

use anyhow::bail;
use forebay_config::format_size;
use forebay_control::WarmReport;

use crate::data_args::{WarmArgs, absolute};
use crate::{Exit, control, output};

/// Runs `forebay warm`.
pub(crate) fn warm(args: &WarmArgs) -> anyhow::Result<Exit> {
    let path = args.path.as_deref().map(absolute).transpose()?;
    let client = control::find(&args.target)?;
    let (terminal, begun) = (std::io::stderr().is_terminal(), Instant::now());
    let warmed = client.warm(path.as_deref(), |report| {
        if terminal {
            let _ = write!(std::io::stderr(), "\r\x1b[K{}", progress(&report, begun.elapsed()));
        }
    });
    if terminal {
        let _ = write!(std::io::stderr(), "\r\x1b[K");
    }
    let report = warmed?;
    match args.json {
        true => output::json(&report)?,
        false => output::note(&describe(&report)),
    }
    if report.failed_files > 0 {
        bail!("{} files could not be read", output::count(report.failed_files));
    }
    Ok(Exit::Done)
}

/// Returns the progress of warming as one line, with the rate since its start and the time that is left.
fn progress(report: &WarmReport, elapsed: Duration) -> String {
    let WarmReport { total_files, total_bytes, files, bytes, .. } = *report;
    let rate = bytes as f64 / elapsed.as_secs_f64().max(1e-3);
    let done = match total_bytes {
        0 => format!("{} of {} files", output::count(files), output::count(total_files)),
        _ => format!("{} of {}", format_size(bytes), format_size(total_bytes)),
    };
    let left = match total_bytes.saturating_sub(bytes) {
        0 => String::new(),
        _ if bytes == 0 => ", estimating".to_owned(),
        rest => format!(", {} left", output::span(Duration::from_secs_f64((rest as f64 / rate).min(1e9)))),
    };
    format!("warm: {done}, {}/s{left}; Ctrl-C ends it", format_size(rate as u64))
}

/// Returns the result of warming in a sentence or two.
fn describe(report: &WarmReport) -> String {
    let WarmReport { files, brought_bytes, had_bytes, left_bytes, .. } = *report;
    let left = match left_bytes {
        0 => String::new(),
        bytes => format!(
            " {} did not fit: the cache has no unused space for it, or its policy is `never`.",
            format_size(bytes)
        ),
    };
    format!(
        "{} files: {} brought into the cache, {} was there.{left}",
        output::count(files),
        format_size(brought_bytes),
        format_size(had_bytes)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_estimate_follows_from_the_rate_so_far() {
        let report = WarmReport {
            total_files: 2,
            total_bytes: 100 << 20,
            files: 1,
            bytes: 25 << 20,
            ..WarmReport::default()
        };
        let shown = progress(&report, Duration::from_secs(10));
        assert_eq!(shown, "warm: 25 MiB of 100 MiB, 2.5 MiB/s, 30 s left; Ctrl-C ends it");
        let none = progress(&WarmReport { total_files: 3, ..WarmReport::default() }, Duration::from_secs(1));
        assert_eq!(none, "warm: 0 of 3 files, 0 B/s; Ctrl-C ends it");
    }

    #[test]
    fn what_did_not_fit_is_said() {
        let report = WarmReport { files: 1, brought_bytes: 4096, left_bytes: 8192, ..WarmReport::default() };
        assert!(describe(&report).contains("8 KiB did not fit"), "{}", describe(&report));
        assert!(!describe(&WarmReport::default()).contains("fit"));
    }
}
