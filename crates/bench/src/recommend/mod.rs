//! `bench recommend`: predicts the effect of a cache from measurements of the disks and the SSDs.

mod advice;
mod probe;
mod scan;

use std::fmt::Write as _;
use std::fs;
use std::io::{self, IsTerminal as _, Write as _};
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::Args;
use serde::{Deserialize, Serialize};

use crate::options::Size;
use crate::runner::now;
use advice::Advice;
use probe::Figures;
use scan::Census;

/// Arguments of `bench recommend`.
#[derive(Debug, Args)]
pub struct RecommendArgs {
    /// Directory that is or will be served.
    #[arg(required_unless_present = "figures")]
    dir: Option<PathBuf>,
    /// Directory on an SSD for the cache; give one for each device.
    #[arg(long, value_name = "DIR", required_unless_present = "figures")]
    cache: Vec<PathBuf>,
    /// Amount of data in use at a time [default: the files in DIR that were used within a week].
    #[arg(long, value_name = "SIZE")]
    working_set: Option<Size>,
    /// Seconds of each of five measurements.
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// Bytes of the temporary file for measuring; larger files give more realistic seek times.
    #[arg(long, value_name = "SIZE", default_value = "1G")]
    file_size: Size,
    /// Read the figures from this file instead of measuring; a run with --save writes it.
    #[arg(long, value_name = "FILE", conflicts_with = "save")]
    figures: Option<PathBuf>,
    /// Write the figures to this file.
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// The measured figures of a host.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Host {
    array: Figures,
    caches: Vec<Figures>,
}

/// The whole output.
#[derive(Debug, Serialize)]
struct Recommendation {
    #[serde(flatten)]
    host: Host,
    files: Option<Census>,
    advice: Advice,
}

/// Measures, or reads earlier figures, and prints the recommendation.
///
/// # Errors
/// A directory cannot be measured, or the working set is unknown.
pub(crate) fn execute(args: &RecommendArgs) -> Result<()> {
    if !(args.seconds > 0.0 && args.seconds < 3600.0) {
        bail!("--seconds must be a positive number");
    }
    let host = match &args.figures {
        Some(path) => {
            let what = || format!("the figures {} cannot be read", path.display());
            serde_json::from_slice(&fs::read(path).with_context(what)?).with_context(what)?
        }
        None => measure(args)?,
    };
    if let Some(path) = &args.save {
        let text = serde_json::to_vec_pretty(&host)?;
        fs::write(path, text).with_context(|| format!("the figures {} cannot be written", path.display()))?;
    }
    let dir = args.dir.as_ref().unwrap_or(&host.array.path);
    let files = if args.working_set.is_none() { Some(scan::scan(dir, now())?) } else { None };
    let working_set = match (&args.working_set, &files) {
        (Some(size), _) => size.0,
        (None, Some(census)) if census.bytes > 0 => census.working_set(),
        _ => bail!("{} has no data from which to derive the working set; give --working-set", dir.display()),
    };
    let advice = advice::advise(&host.array, &host.caches, working_set);
    let said = Recommendation { host, files, advice };
    let text = if args.json {
        let mut text = serde_json::to_string_pretty(&said)?;
        text.push('\n');
        text
    } else {
        said.text()
    };
    io::stdout().write_all(text.as_bytes()).context("the recommendation cannot be printed")
}

/// Measures the disks and each cache directory, one after the other, with a file in each. Says on a terminal which
/// one is measured.
fn measure(args: &RecommendArgs) -> Result<Host> {
    let one = |dir: &PathBuf| {
        if io::stderr().is_terminal() {
            eprintln!("measuring {}", dir.display());
        }
        probe::measure(dir, args.file_size.0, args.seconds)
    };
    let array = one(args.dir.as_ref().context("a directory to measure is missing")?)?;
    let caches: Result<Vec<Figures>> = args.cache.iter().map(one).collect();
    Ok(Host { array, caches: caches? })
}

/// Formats bytes in the largest unit that gives at least 1.
fn bytes(bytes: u64) -> String {
    let units = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
    let unit = units.into_iter().find(|(_, shift)| bytes >= 1 << shift);
    unit.map_or(format!("{bytes} bytes"), |(name, shift)| {
        format!("{:.1} {name}", bytes as f64 / (1u64 << shift) as f64)
    })
}

/// Returns a duration for people, in seconds, minutes or hours.
fn duration(seconds: f64) -> String {
    match seconds {
        short if short < 120.0 => format!("{short:.0} seconds"),
        minutes if minutes < 7200.0 => format!("{:.0} minutes", minutes / 60.0),
        hours => format!("{:.0} hours", hours / 3600.0),
    }
}

impl Recommendation {
    /// Returns the recommendation as text for people: the measured figures, the expected rates, the size to buy, and
    /// remarks.
    fn text(&self) -> String {
        let mut out = String::new();
        let Self { host, files, advice } = self;
        let _ = writeln!(
            out,
            "{:32} {:>10} {:>10} {:>12} {:>10} {:>10}",
            "4 KiB, durable writes; MB/s", "reads/s", "writes/s", "one by one/s", "read", "written"
        );
        for figures in std::iter::once(&host.array).chain(&host.caches) {
            let _ = writeln!(
                out,
                "{:32} {:>10.0} {:>10.0} {:>12.0} {:>10.0} {:>10.0}",
                figures.path.display().to_string(),
                figures.random_reads,
                figures.random_writes,
                figures.single_writes,
                figures.sequential_read / 1e6,
                figures.sequential_write / 1e6
            );
        }
        if let Some(files) = files {
            let _ = writeln!(out, "\n{} files, {}", files.files, bytes(files.bytes));
            for used in &files.used {
                let what = if files.writes_only { "written" } else { "used" };
                let _ = writeln!(out, "  {what} within {:8} {}", used.within, bytes(used.bytes));
            }
        }
        let _ = writeln!(
            out,
            "\nWith a working set of {} in {} devices, expect",
            bytes(advice.working_set),
            advice.devices
        );
        for expected in &advice.reads {
            let times = expected.reads / host.array.random_reads;
            let _ = writeln!(
                out,
                "  {:>9.0} random reads/s where {:2.0} % hit ({times:.1} times the disks)",
                expected.reads,
                expected.hits * 100.0
            );
        }
        let _ = writeln!(
            out,
            "  {:>9.0} stable random writes/s with write-back ({:.1} times the disks), for {} at a stretch",
            advice.burst_writes,
            advice.gain.1,
            duration(advice.burst_seconds)
        );
        let _ = writeln!(
            out,
            "  {:>9.0} of them for ever, at least; sorted write-back usually gives more",
            advice.lasting_writes
        );
        let _ = writeln!(
            out,
            "\nBuy {} devices of {} ({} is enough); their index takes up to {} of memory.",
            advice.devices,
            advice.buy_gb.map_or("more than any on the market".to_owned(), |size| format!("{size} GB")),
            bytes(advice.device_bytes),
            bytes(advice.index_bytes)
        );
        advice.remarks.iter().for_each(|remark| out.push_str(&format!("{remark}\n")));
        if files.as_ref().is_some_and(|files| files.writes_only) {
            out.push_str("Mounted noatime: reads leave no trace, so the working set may be larger; --working-set tells better.\n");
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_readable() {
        assert_eq!([512, 2048, 3 << 29, 5 << 40].map(bytes), ["512 bytes", "2.0 KiB", "1.5 GiB", "5.0 TiB"]);
        assert_eq!([3.0, 600.0, 36_000.0].map(duration), ["3 seconds", "10 minutes", "10 hours"]);
    }
}
