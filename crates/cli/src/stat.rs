//! `forebay stat`: rates in columns over time, as iostat and vmstat show them.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use forebay_config::format_size;
use forebay_control::ClientError;

use crate::monitor_args::StatArgs;
use crate::output::{self, HEAD};
use crate::rates::{CacheRates, Rates};
use crate::stat_by::stat_by;
use crate::{Exit, control};

/// Number of lines between two headers if the height of the terminal is unknown.
const LINES_PER_HEADER: u64 = 20;

/// Characters in a line if stdout is not a terminal.
const WIDTH: usize = 100;
/// Width of the first column in characters.
const TIME: usize = 8;

/// A column of figures.
struct Column {
    head: &'static str,
    /// Width in characters.
    width: usize,
    /// Priority. If the line is too short, columns with low ranks are shown first.
    rank: u8,
    show: Show,
}

/// The figures of one column.
enum Show {
    Always(fn(&Rates) -> String),
    /// A figure that exists only with a cache.
    Cache(fn(&CacheRates) -> String),
}

const fn column(head: &'static str, width: usize, rank: u8, show: fn(&Rates) -> String) -> Column {
    Column { head, width, rank, show: Show::Always(show) }
}

const fn of_cache(head: &'static str, width: usize, rank: u8, show: fn(&CacheRates) -> String) -> Column {
    Column { head, width, rank, show: Show::Cache(show) }
}

const COLUMNS: &[Column] = &[
    column("READ/s", 8, 1, |r| rate(r.read.operations)),
    column("MiB/s", 7, 1, |r| mebibytes(r.read.bytes)),
    column("ms", 7, 3, |r| milliseconds(r.read.mean_ns)),
    column("WRITE/s", 8, 1, |r| rate(r.write.operations)),
    column("MiB/s", 7, 1, |r| mebibytes(r.write.bytes)),
    column("ms", 7, 3, |r| milliseconds(r.write.mean_ns)),
    column("LOOK/s", 8, 4, |r| rate(r.lookup.operations)),
    column("ms", 7, 7, |r| milliseconds(r.lookup.mean_ns)),
    column("CHANGE/s", 8, 4, |r| rate(r.change.operations)),
    column("ms", 7, 7, |r| milliseconds(r.change.mean_ns)),
    column("SYNC/s", 7, 6, |r| rate(r.syncs)),
    column("OPS/SYNC", 8, 9, |r| format!("{:.1}", r.operations_per_sync)),
    column("FLIGHT", 6, 8, |r| r.inflight.to_string()),
    column("WAIT", 5, 9, |r| r.workers_queued.to_string()),
    column("CONN", 5, 9, |r| r.connections.to_string()),
    column("ERR/s", 6, 8, |r| rate(r.errors())),
    column("CPU%", 5, 6, |r| format!("{:.0}", r.cpu_percent)),
    of_cache("RAM%", 5, 5, |c| percent(c, c.ram_percent)),
    of_cache("SSD%", 5, 5, |c| percent(c, c.ssd_percent)),
    of_cache("DIRTY", 8, 2, |c| format_size(c.dirty_bytes).replace(' ', "")),
    of_cache("DSTG", 7, 5, |c| mebibytes(c.destaged)),
    of_cache("SPARED", 7, 8, spared),
    of_cache("AMPL", 5, 9, |c| format!("{:.2}", c.write_amplification)),
];

/// Formats a percentage of reads; `-` if there were no reads.
pub(crate) fn percent(cache: &CacheRates, percent: f64) -> String {
    if cache.reads > 0.0 { format!("{percent:.1}") } else { "-".to_owned() }
}

/// Returns the traffic that the cache keeps from the backing store, in MiB per second.
pub(crate) fn spared(cache: &CacheRates) -> String {
    if cache.spared < 0.0 { format!("-{}", mebibytes(-cache.spared)) } else { mebibytes(cache.spared) }
}

/// Prints lines until the requested number is reached.
pub(crate) fn stat(args: &StatArgs) -> anyhow::Result<Exit> {
    if let Some(by) = args.by {
        return stat_by(args, by);
    }
    let client = control::find(&args.target)?;
    let (width, per_header) = (width(args.wide), lines_per_header());
    repeat(
        args,
        || client.sample(),
        |line, earlier, sample| {
            let rates = Rates::between(earlier, sample);
            if args.json {
                return output::json_line(&rates);
            }
            let columns = chosen(&rates, width);
            let header = if line % per_header == 0 { header(&columns) } else { String::new() };
            Ok(output::result(&(header + &row(&columns, &rates)))?)
        },
    )
}

/// Asks the server once in each interval, and shows each answer with the number of its line and the answer before.
pub(crate) fn repeat<T>(
    args: &StatArgs,
    ask: impl Fn() -> Result<T, ClientError>,
    mut show: impl FnMut(u64, Option<&T>, &T) -> anyhow::Result<()>,
) -> anyhow::Result<Exit> {
    // As with iostat, the default is one line without an interval, and an unlimited number of lines with one.
    let count = args.count.unwrap_or(if args.interval.is_some() { u64::MAX } else { 1 });
    let interval = Duration::from_secs_f64(args.interval.unwrap_or(0.0));
    let started = Instant::now();
    let mut earlier = None;
    let mut is_silent = false;
    for line in 0..count {
        let due = interval.checked_mul(u32::try_from(line).unwrap_or(u32::MAX)).unwrap_or(Duration::MAX);
        // Each line has a fixed due time, so that delays do not add up.
        std::thread::sleep(due.saturating_sub(started.elapsed()));
        let answer = match ask() {
            Ok(answer) => answer,
            // After the first sample a server that does not answer may be restarting, so the next sample is tried.
            Err(error) if earlier.is_some() => {
                if !std::mem::replace(&mut is_silent, true) {
                    output::note(&format!("{error}. Waiting for the server."));
                }
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        is_silent = false;
        show(line, earlier.as_ref(), &answer)?;
        earlier = Some(answer);
    }
    // The last lines are missing.
    if is_silent {
        Err(anyhow::anyhow!("the server did not answer until the end; see its log"))
    } else {
        Ok(Exit::Done)
    }
}

/// Returns the number of characters that a line may have.
fn width(wide: bool) -> usize {
    if wide {
        return usize::MAX;
    }
    if !std::io::stdout().is_terminal() {
        return WIDTH;
    }
    match crossterm::terminal::size() {
        Ok((width @ 1.., _)) => usize::from(width),
        // The terminal does not know its size, for example on a serial line.
        _ => 80,
    }
}

/// Returns the columns for which there is room, in their usual order. Columns of low rank are taken first.
fn chosen(rates: &Rates, width: usize) -> Vec<&'static Column> {
    let there = |column: &&Column| matches!(column.show, Show::Always(_)) || rates.cache.is_some();
    let mut ranked: Vec<(usize, &Column)> =
        COLUMNS.iter().enumerate().filter(|(_, column)| there(column)).collect();
    ranked.sort_by_key(|(place, column)| (column.rank, *place));
    let mut used = TIME;
    ranked.retain(|(_, column)| {
        let fits = used + 1 + column.width <= width;
        used += if fits { 1 + column.width } else { 0 };
        fits
    });
    ranked.sort_by_key(|(place, _)| *place);
    ranked.into_iter().map(|(_, column)| column).collect()
}

/// Returns the number of lines after which the header is repeated: about a screenful.
fn lines_per_header() -> u64 {
    if !std::io::stdout().is_terminal() {
        return LINES_PER_HEADER;
    }
    let height = crossterm::terminal::size().map_or(0, |(_, height)| u64::from(height));
    if height > 4 { height - 2 } else { LINES_PER_HEADER }
}

/// Returns the line with the names of the columns.
fn header(columns: &[&Column]) -> String {
    let heads = columns.iter().map(|Column { head, width, .. }| format!(" {head:>width$}"));
    output::paint(HEAD, &format!("{:<TIME$}{}", "TIME", heads.collect::<String>())) + "\n"
}

/// Returns the line of an interval. Columns about the cache are empty without a cache.
fn row(columns: &[&Column], rates: &Rates) -> String {
    let cells = columns.iter().map(|column| {
        let shown = match (&column.show, &rates.cache) {
            (Show::Always(show), _) => show(rates),
            (Show::Cache(show), Some(cache)) => show(cache),
            (Show::Cache(_), None) => String::new(),
        };
        format!(" {shown:>width$}", width = column.width)
    });
    format!("{:<TIME$}{}\n", output::time_of_day(rates.time_ns), cells.collect::<String>())
}

/// Formats a rate, with one decimal for small values.
pub(crate) fn rate(per_second: f64) -> String {
    if per_second > 0.0 && per_second < 99.95 {
        format!("{per_second:.1}")
    } else {
        format!("{per_second:.0}")
    }
}

/// Formats bytes per second as MiB per second.
pub(crate) fn mebibytes(bytes: f64) -> String {
    rate(bytes / f64::from(1 << 20))
}

/// Returns nanoseconds as milliseconds, with as many digits as fit a column of five characters.
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
        let columns = chosen(&Rates::between(None, &sample), usize::MAX);
        assert_eq!(columns.len(), COLUMNS.len());
        let idle = row(&columns, &Rates::between(None, &sample));
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
        assert_eq!(ends(&plain(&header(&columns))), ends(&idle));
        assert_eq!(ends(&plain(&header(&columns))), ends(&row(&columns, &busy)));
    }

    #[test]
    fn lines_fit_the_terminal_and_keep_what_matters() {
        let sample = StatSample { cache: Some(CacheCounters::default()), ..StatSample::default() };
        let with_cache = Rates::between(None, &sample);
        let without = Rates::between(None, &StatSample::default());
        for rates in [&with_cache, &without] {
            for width in [80, 100, 132] {
                let columns = chosen(rates, width);
                let line = row(&columns, rates);
                assert!(line.trim_end().len() <= width, "{width}: {line}");
                let heads: Vec<_> = columns.iter().map(|column| column.head).collect();
                assert!(heads.contains(&"READ/s") && heads.contains(&"WRITE/s"), "{heads:?}");
            }
        }
        let heads: Vec<_> = chosen(&with_cache, 80).iter().map(|column| column.head).collect();
        assert!(heads.contains(&"DIRTY"), "{heads:?}");
        assert!(row(&chosen(&with_cache, usize::MAX), &with_cache).contains(" - "), "nothing was read");
    }
}
