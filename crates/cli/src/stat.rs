//! `forebay stat`: columns over time, as iostat and vmstat do.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use forebay_config::format_size;

use crate::args::StatArgs;
use crate::output::{self, HEAD};
use crate::rates::{CacheRates, Rates};
use crate::{Exit, control};

/// Lines between two headers where the height of the terminal is unknown.
const LINES_PER_HEADER: u64 = 20;

/// A column: head, width, and what it shows.
type Column = (&'static str, usize, fn(&Rates) -> String);

/// The same for what the cache did.
type CacheColumn = (&'static str, usize, fn(&CacheRates) -> String);

const COLUMNS: &[Column] = &[
    ("READ/s", 8, |r| rate(r.read.operations)),
    ("MiB/s", 7, |r| mebibytes(r.read.bytes)),
    ("ms", 7, |r| milliseconds(r.read.mean_ns)),
    ("WRITE/s", 8, |r| rate(r.write.operations)),
    ("MiB/s", 7, |r| mebibytes(r.write.bytes)),
    ("ms", 7, |r| milliseconds(r.write.mean_ns)),
    ("LOOK/s", 8, |r| rate(r.lookup.operations)),
    ("ms", 7, |r| milliseconds(r.lookup.mean_ns)),
    ("CHANGE/s", 8, |r| rate(r.change.operations)),
    ("ms", 7, |r| milliseconds(r.change.mean_ns)),
    ("SYNC/s", 7, |r| rate(r.syncs)),
    ("OPS/SYNC", 8, |r| format!("{:.1}", r.operations_per_sync)),
    ("FLIGHT", 6, |r| r.inflight.to_string()),
    ("WAIT", 5, |r| r.workers_queued.to_string()),
    ("CONN", 5, |r| r.connections.to_string()),
    ("ERR/s", 6, |r| rate(r.errors())),
    ("CPU%", 5, |r| format!("{:.0}", r.cpu_percent)),
];

/// What a server with a cache has besides.
const CACHE_COLUMNS: &[CacheColumn] =
    &[
        ("RAM%", 5, |c| format!("{:.1}", c.ram_percent)),
        ("SSD%", 5, |c| format!("{:.1}", c.ssd_percent)),
        ("DIRTY", 8, |c| format_size(c.dirty_bytes).replace(' ', "")),
        ("DSTG", 7, |c| mebibytes(c.destaged)),
        ("SPARED", 7, |c| {
            if c.spared < 0.0 { format!("-{}", mebibytes(-c.spared)) } else { mebibytes(c.spared) }
        }),
        ("AMPL", 5, |c| format!("{:.2}", c.write_amplification)),
    ];

/// Shows lines until there are enough.
pub(crate) fn stat(args: &StatArgs) -> anyhow::Result<Exit> {
    let client = control::find(&args.target)?;
    // As with iostat: without an interval one line, with an interval and no count lines without end.
    let count = args.count.unwrap_or(if args.interval.is_some() { u64::MAX } else { 1 });
    let interval = Duration::from_secs_f64(args.interval.unwrap_or(0.0));
    let per_header = lines_per_header();
    let started = Instant::now();
    let mut earlier = None;
    for line in 0..count {
        let due = interval.checked_mul(u32::try_from(line).unwrap_or(u32::MAX)).unwrap_or(Duration::MAX);
        // Waiting for a moment, not for a time, so that delays do not add up.
        std::thread::sleep(due.saturating_sub(started.elapsed()));
        let sample = client.sample()?;
        let rates = Rates::between(earlier.as_ref(), &sample);
        if args.json {
            output::json_line(&rates)?;
        } else {
            let header = if line % per_header == 0 { header(&rates) } else { String::new() };
            output::result(&(header + &row(&rates)))?;
        }
        earlier = Some(sample);
    }
    Ok(Exit::Done)
}

/// How many lines come before the header is repeated: a screenful.
fn lines_per_header() -> u64 {
    if !std::io::stdout().is_terminal() {
        return LINES_PER_HEADER;
    }
    let height = crossterm::terminal::size().map_or(0, |(_, height)| u64::from(height));
    if height > 4 { height - 2 } else { LINES_PER_HEADER }
}

fn header(rates: &Rates) -> String {
    let mut heads: Vec<String> = COLUMNS.iter().map(|(head, width, _)| format!("{head:>width$}")).collect();
    if rates.cache.is_some() {
        heads.extend(CACHE_COLUMNS.iter().map(|(head, width, _)| format!("{head:>width$}")));
    }
    output::paint(HEAD, &format!("{:<8} {}", "TIME", heads.join(" "))) + "\n"
}

fn row(rates: &Rates) -> String {
    let mut cells: Vec<String> =
        COLUMNS.iter().map(|(_, width, show)| format!("{:>width$}", show(rates))).collect();
    if let Some(cache) = &rates.cache {
        cells.extend(CACHE_COLUMNS.iter().map(|(_, width, show)| format!("{:>width$}", show(cache))));
    }
    format!("{:<8} {}\n", output::time_of_day(rates.time_ns), cells.join(" "))
}

/// A rate: decimals only where they say something.
pub(crate) fn rate(per_second: f64) -> String {
    if per_second > 0.0 && per_second < 99.95 {
        format!("{per_second:.1}")
    } else {
        format!("{per_second:.0}")
    }
}

/// Bytes per second as MiB per second.
pub(crate) fn mebibytes(bytes: f64) -> String {
    rate(bytes / f64::from(1 << 20))
}

fn milliseconds(nanos: u64) -> String {
    let value = nanos as f64 / 1e6;
    let digits = if value < 9.9995 { 3 } else { usize::from(value < 999.95) };
    format!("{value:.digits$}")
}

#[cfg(test)]
mod tests {
    use forebay_control::{CacheCounters, StatSample};

    use super::*;

    #[test]
    fn header_and_rows_are_aligned() {
        let plain = |text: &str| anstream::adapter::strip_str(text).to_string();
        let sample = StatSample { cache: Some(CacheCounters::default()), ..StatSample::default() };
        let idle = row(&Rates::between(None, &sample));
        let mut busy = Rates::between(None, &sample);
        busy.read.operations = 709_123.4;
        busy.read.bytes = 5.7e9;
        busy.read.mean_ns = 123_456_789;
        let ends = |line: &str| {
            let ends = line
                .char_indices()
                .filter(|&(at, c)| c != ' ' && line[at..].chars().nth(1).is_none_or(|c| c.is_whitespace()));
            // The first column, the time, is aligned to the left.
            ends.map(|(at, _)| at).skip(1).collect::<Vec<_>>()
        };
        assert_eq!(ends(&plain(&header(&busy))), ends(&idle));
        assert_eq!(ends(&plain(&header(&busy))), ends(&row(&busy)));
    }
}
