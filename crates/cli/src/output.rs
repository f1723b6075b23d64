//! The form of results and messages: aligned tables, few colours, units.

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::time::Duration;

use anstyle::{AnsiColor, Style};
use jiff::Timestamp;
use jiff::tz::TimeZone;
use serde::Serialize;

use crate::logging;

pub(crate) const GOOD: Style = AnsiColor::Green.on_default();
pub(crate) const WARN: Style = AnsiColor::Yellow.on_default();
pub(crate) const BAD: Style = AnsiColor::Red.on_default().bold();
pub(crate) const HEAD: Style = Style::new().bold();

/// Returns text in a style. Colours are removed later if the output is not a terminal or NO_COLOR is set.
pub(crate) fn paint(style: Style, text: &str) -> String {
    if text.is_empty() {
        return String::new();
    }
    format!("{style}{text}{style:#}")
}

/// Returns the text of an error and of its causes, except for causes that the text names already.
pub(crate) fn sentence(error: &anyhow::Error) -> String {
    error.chain().map(ToString::to_string).fold(String::new(), |told, cause| match told.as_str() {
        "" => cause,
        told if told.contains(&cause) => told.to_owned(),
        told => format!("{told}: {cause}"),
    })
}

/// Prints an error on stderr.
pub(crate) fn error(message: &str) {
    say(&format!("{} {message}\n", paint(BAD, "error:")));
}

/// Prints a message for people on stderr.
pub(crate) fn note(message: &str) {
    say(&format!("{message}\n"));
}

/// Writes a text for people. Once logging has started, the text goes through the log's queue, in order and without
/// waiting.
fn say(text: &str) {
    if !logging::write(text) {
        let _ = anstream::stderr().write_all(text.as_bytes());
    }
}

/// Writes a result to stdout.
pub(crate) fn result(text: &str) -> io::Result<()> {
    let mut stdout = anstream::stdout().lock();
    stdout.write_all(text.as_bytes())?;
    stdout.flush()
}

/// Writes a result to stdout as indented JSON.
pub(crate) fn json(value: &impl Serialize) -> anyhow::Result<()> {
    Ok(result(&(serde_json::to_string_pretty(value)? + "\n"))?)
}

/// Writes a result to stdout as one line of JSON.
pub(crate) fn json_line(value: &impl Serialize) -> anyhow::Result<()> {
    Ok(result(&(serde_json::to_string(value)? + "\n"))?)
}

/// Returns true if the error is that the reader of stdout has closed the pipe.
pub(crate) fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|cause| cause.kind() == io::ErrorKind::BrokenPipe)
}

/// The alignment of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Align {
    Left,
    Right,
}

/// A table whose columns are as wide as their widest cell.
pub(crate) struct Table {
    columns: Vec<(&'static str, Align)>,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new(columns: &[(&'static str, Align)]) -> Self {
        Self { columns: columns.to_vec(), rows: Vec::new() }
    }

    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Returns the table as text, with `indent` spaces before each line.
    pub(crate) fn render(&self, indent: usize) -> String {
        let width = |(index, (head, _)): (usize, &(&str, Align))| {
            let cells = self.rows.iter().filter_map(|row| row.get(index)).map(|cell| visible_width(cell));
            cells.max().unwrap_or(0).max(head.len())
        };
        let widths: Vec<usize> = self.columns.iter().enumerate().map(width).collect();
        let heads = self.columns.iter().map(|(head, _)| paint(HEAD, head)).collect();
        let mut text = String::new();
        for row in std::iter::once(&heads).chain(&self.rows) {
            let mut line = " ".repeat(indent);
            for ((cell, width), (_, align)) in row.iter().zip(&widths).zip(&self.columns) {
                let pad = " ".repeat(width.saturating_sub(visible_width(cell)));
                let _ = match align {
                    Align::Left => write!(line, "{cell}{pad}  "),
                    Align::Right => write!(line, "{pad}{cell}  "),
                };
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }
}

/// Returns the number of characters of a text on a terminal, without colours.
fn visible_width(text: &str) -> usize {
    anstream::adapter::strip_str(text).to_string().chars().count()
}

/// Makes text from outside safe to show: control characters, which could control the terminal, become `?`.
pub(crate) fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// Formats a latency in nanoseconds with about three digits: `870ns`, `12.3us`, `4.56ms`, `1.20s`. 0 means no latency
/// and becomes `-`.
pub(crate) fn latency(nanos: u64) -> String {
    let (value, unit) = match nanos {
        0 => return "-".to_owned(),
        1..1_000 => return format!("{nanos}ns"),
        1_000..1_000_000 => (nanos as f64 / 1e3, "us"),
        1_000_000..1_000_000_000 => (nanos as f64 / 1e6, "ms"),
        _ => (nanos as f64 / 1e9, "s"),
    };
    let digits = if value < 10.0 { 2 } else { usize::from(value < 100.0) };
    format!("{value:.digits$}{unit}")
}

/// Formats a count with separated thousands: `1,234,567`.
pub(crate) fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Formats a span of time for people: `3 d 4 h`, `12 min 5 s`, `7 s`.
pub(crate) fn span(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
        _ => format!("{} d {} h", seconds / 86_400, seconds % 86_400 / 3600),
    }
}

/// Formats a moment, in nanoseconds since 1970, as local date and time.
pub(crate) fn date_time(nanos: u64) -> String {
    local(nanos, "%Y-%m-%d %H:%M:%S")
}

/// Formats a moment, in nanoseconds since 1970, as local time of day.
pub(crate) fn time_of_day(nanos: u64) -> String {
    local(nanos, "%H:%M:%S")
}

/// Formats a moment, in nanoseconds since 1970, in the host's time zone. A moment beyond the calendar becomes `?`.
fn local(nanos: u64, format: &str) -> String {
    match Timestamp::from_nanosecond(i128::from(nanos)) {
        Ok(moment) => moment.to_zoned(TimeZone::system()).strftime(format).to_string(),
        Err(_) => "?".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_aligned_whatever_their_colours() {
        let mut table = Table::new(&[("NAME", Align::Left), ("SIZE", Align::Right), ("", Align::Left)]);
        table.row(["a".into(), "1".into(), paint(GOOD, "ok")]);
        table.row(["longer".into(), "12345".into(), "x".into()]);
        let plain = anstream::adapter::strip_str(&table.render(1)).to_string();
        assert_eq!(plain, " NAME     SIZE\n a           1  ok\n longer  12345  x\n");
    }

    #[test]
    fn an_error_names_each_cause_once() {
        let cause = || std::io::Error::from_raw_os_error(rustix::io::Errno::ISDIR.raw_os_error());
        let named = forebay_server::Error::StateDir { path: "/state".into(), source: cause() };
        assert_eq!(
            sentence(&named.into()),
            "cannot use the state directory /state: Is a directory (os error 21); name another with --state-dir"
        );
        let context = anyhow::Error::from(cause()).context("cannot read it").context("no report");
        assert_eq!(sentence(&context), "no report: cannot read it: Is a directory (os error 21)");
    }

    #[test]
    fn figures_are_short_and_have_units() {
        let latencies = [
            (0, "-"),
            (999, "999ns"),
            (1_234, "1.23us"),
            (45_600, "45.6us"),
            (789_000, "789us"),
            (1_000_000, "1.00ms"),
            (2_500_000_000, "2.50s"),
        ];
        latencies.iter().for_each(|(nanos, text)| assert_eq!(latency(*nanos), *text));
        let counts = [(0, "0"), (999, "999"), (1000, "1,000"), (1_234_567, "1,234,567")];
        counts.iter().for_each(|(number, text)| assert_eq!(count(*number), *text));
        let spans = [(5, "5 s"), (65, "1 min 5 s"), (3_700, "1 h 1 min"), (90_000, "1 d 1 h")];
        spans.iter().for_each(|(seconds, text)| assert_eq!(span(Duration::from_secs(*seconds)), *text));
    }

    #[test]
    fn text_from_outside_cannot_drive_the_terminal() {
        assert_eq!(printable("/srv/\x1b[2Jdata\n"), "/srv/?[2Jdata?");
    }
}
