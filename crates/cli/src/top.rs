//! `forebay top`: rates, latencies and clients, updated live.

use std::collections::{HashMap, VecDeque};
use std::io::{IsTerminal, Write, stdout};
use std::net::IpAddr;
use std::time::Duration;

use anyhow::bail;
use crossterm::event::{Event, KeyCode, KeyEvent, KeyModifiers};
use crossterm::{cursor, event, execute, terminal};
use forebay_config::format_size;
use forebay_control::{Client, StatSample, Status};

use crate::monitor_args::TopArgs;
use crate::output::{self, Align, Table, latency};
use crate::rates::{CacheRates, Rates};
use crate::stat::{mebibytes, percent, rate, spared};
use crate::{Exit, control, status};

/// Number of intervals kept for the curves.
const HISTORY: usize = 240;

/// Shows the live view until `q`, Escape or Ctrl-C.
pub(crate) fn top(args: &TopArgs) -> anyhow::Result<Exit> {
    if !stdout().is_terminal() {
        bail!("`top` needs a terminal; use `forebay stat 1` for a file or a pipe");
    }
    let client = control::find(&args.target)?;
    let mut view = View::default();
    view.update(&client)?;
    let screen = Screen::enter()?;
    let outcome = show(&client, &mut view, Duration::from_secs_f64(args.interval));
    drop(screen);
    outcome.map(|()| Exit::Done)
}

fn show(client: &Client, view: &mut View, interval: Duration) -> anyhow::Result<()> {
    let mut due = std::time::Instant::now() + interval;
    loop {
        view.draw()?;
        if event::poll(due.saturating_duration_since(std::time::Instant::now()))? {
            match event::read()? {
                Event::Key(key) if is_quit(key) => return Ok(()),
                _ => continue,
            }
        }
        due += interval;
        // If the server does not answer, it may be restarting, so the next update tries again.
        view.silent = view.update(client).err().map(|error| error.to_string());
    }
}

fn is_quit(key: KeyEvent) -> bool {
    let control_c = key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
    control_c || matches!(key.code, KeyCode::Char('q' | 'Q') | KeyCode::Esc)
}

/// The terminal in raw mode with its alternate screen. Dropping this value restores the terminal.
struct Screen;

impl Screen {
    fn enter() -> anyhow::Result<Self> {
        terminal::enable_raw_mode()?;
        let screen = Self;
        execute!(stdout(), terminal::EnterAlternateScreen, cursor::Hide)?;
        Ok(screen)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = execute!(stdout(), terminal::LeaveAlternateScreen, cursor::Show);
        let _ = terminal::disable_raw_mode();
    }
}

/// The data of the live view.
#[derive(Default)]
struct View {
    sample: Option<StatSample>,
    status: Option<Status>,
    rates: VecDeque<Rates>,
    /// True if the only rates are those since the start of the server.
    holds_life: bool,
    client_rates: Vec<ClientRates>,
    /// The error of the last request; `None` if the server answered.
    silent: Option<String>,
}

struct ClientRates {
    address: IpAddr,
    operations: f64,
    read: f64,
    written: f64,
}

impl View {
    fn update(&mut self, client: &Client) -> anyhow::Result<()> {
        let sample = client.sample()?;
        let rates = Rates::between(self.sample.as_ref(), &sample);
        let status = client.status()?;
        self.client_rates = client_rates(self.status.as_ref(), &status);
        // The first rates cover the time since the server's start. They are shown until the next interval, but are
        // not part of the curves.
        let first = std::mem::replace(&mut self.holds_life, self.sample.is_none());
        if first || self.rates.len() >= HISTORY {
            self.rates.pop_front();
        }
        self.rates.push_back(rates);
        self.sample = Some(sample);
        self.status = Some(status);
        Ok(())
    }

    fn draw(&self) -> anyhow::Result<()> {
        let (width, height) = match terminal::size()? {
            // The terminal does not know its size, for example on a serial line.
            (0, _) | (_, 0) => (80, 24),
            size => size,
        };
        let text = self.render(usize::from(width));
        let mut frame = Vec::new();
        crossterm::queue!(frame, cursor::MoveTo(0, 0))?;
        for line in text.lines().take(usize::from(height).saturating_sub(1)) {
            frame.extend_from_slice(shortened(line, usize::from(width)).as_bytes());
            crossterm::queue!(frame, terminal::Clear(terminal::ClearType::UntilNewLine))?;
            frame.extend_from_slice(b"\r\n");
        }
        crossterm::queue!(frame, terminal::Clear(terminal::ClearType::FromCursorDown))?;
        let mut out = anstream::stdout().lock();
        out.write_all(&frame)?;
        Ok(out.flush()?)
    }

    fn render(&self, width: usize) -> String {
        let (Some(status), Some(now)) = (&self.status, self.rates.back()) else { return String::new() };
        let mut text = status::head(status);
        if let Some(error) = &self.silent {
            let told =
                output::printable(&format!("{error}. Waiting for the server; these are its last figures."));
            text.push_str(&format!("{}\n", output::paint(output::BAD, &told)));
        }
        text.push('\n');
        let curve = |name: &str, value: String, of: fn(&Rates) -> f64| {
            let points: Vec<f64> = self.rates.iter().map(of).collect();
            format!("{name:<10} {value:>9}  {}\n", sparkline(&points, width.saturating_sub(24)))
        };
        text.push_str(&curve("ops/s", rate(now.operations()), Rates::operations));
        text.push_str(&curve("read MiB/s", mebibytes(now.read.bytes), |r| r.read.bytes));
        text.push_str(&curve("wrt MiB/s", mebibytes(now.write.bytes), |r| r.write.bytes));
        text.push_str(&curve("syncs/s", rate(now.syncs), |r| r.syncs));
        if let Some(cache) = &now.cache {
            let dirty = |r: &Rates| r.cache.map_or(0.0, |cache| cache.dirty_bytes as f64);
            text.push_str(&curve("dirty", format_size(cache.dirty_bytes).replace(' ', ""), dirty));
            let destaged = |r: &Rates| r.cache.map_or(0.0, |cache| cache.destaged);
            text.push_str(&curve("dstg MiB/s", mebibytes(cache.destaged), destaged));
        }
        text.push('\n');
        text.push_str(&operations(now).render(0));
        text.push_str(&format!(
            "\nin flight {}  waiting {}  workers {}/{}  connections {}  ops/sync {:.1}  CPU {:.0} %  buffers {}\n",
            now.inflight,
            now.workers_queued,
            now.workers_busy,
            status.workers.threads,
            now.connections,
            now.operations_per_sync,
            now.cpu_percent,
            format_size(status.memory.used_bytes)
        ));
        if let Some(cache) = &now.cache {
            text.push_str(&cache_lines(cache));
        }
        let clients = self.clients();
        if !clients.is_empty() {
            text.push('\n');
            text.push_str(&clients.render(0));
        }
        text.push_str("\nq quits\n");
        text
    }

    fn clients(&self) -> Table {
        let right = |head| (head, Align::Right);
        let mut table =
            Table::new(&[("CLIENT", Align::Left), right("OPS/s"), right("READ MiB/s"), right("WRITE MiB/s")]);
        for client in self.client_rates.iter().take(50) {
            table.row([
                client.address.to_string(),
                rate(client.operations),
                mebibytes(client.read),
                mebibytes(client.written),
            ]);
        }
        table
    }
}

/// Returns one line about the activity of the cache.
fn cache_lines(cache: &CacheRates) -> String {
    format!(
        "cache: memory {} %  SSD {} % of reads  dirty {}  destaged {} MiB/s  spared {} MiB/s  {:.2} bytes to the SSDs for each\n",
        percent(cache, cache.ram_percent),
        percent(cache, cache.ssd_percent),
        format_size(cache.dirty_bytes),
        mebibytes(cache.destaged),
        spared(cache),
        cache.write_amplification
    )
}

fn operations(now: &Rates) -> Table {
    let right = |head| (head, Align::Right);
    let columns = [
        ("KIND", Align::Left),
        right("OPS/s"),
        right("MiB/s"),
        right("ERR/s"),
        right("MEAN"),
        right("P50"),
        right("P99"),
        right("MAX"),
    ];
    let mut table = Table::new(&columns);
    for (kind, rates) in now.kinds() {
        let figures = [rates.mean_ns, rates.p50_ns, rates.p99_ns, rates.max_ns].map(latency);
        let cells = [kind.to_owned(), rate(rates.operations), mebibytes(rates.bytes), rate(rates.errors)];
        table.row(cells.into_iter().chain(figures));
    }
    table
}

/// Returns the rates of each client between two moments, busiest first. Without an earlier moment, returns the rates
/// since the start.
fn client_rates(earlier: Option<&Status>, now: &Status) -> Vec<ClientRates> {
    let earlier = earlier.filter(|earlier| earlier.started_ns == now.started_ns);
    let before: HashMap<IpAddr, _> =
        earlier.iter().flat_map(|status| &status.clients).map(|client| (client.address, client)).collect();
    let span = now.uptime_ns.saturating_sub(earlier.map_or(0, |status| status.uptime_ns));
    let seconds = (span as f64 / 1e9).max(1e-6);
    let mut rates: Vec<ClientRates> = now
        .clients
        .iter()
        .map(|client| {
            let old = before.get(&client.address);
            let per_second =
                |now: u64, old: Option<u64>| now.saturating_sub(old.unwrap_or(0)) as f64 / seconds;
            ClientRates {
                address: client.address,
                operations: per_second(client.operations, old.map(|old| old.operations)),
                read: per_second(client.bytes_read, old.map(|old| old.bytes_read)),
                written: per_second(client.bytes_written, old.map(|old| old.bytes_written)),
            }
        })
        .collect();
    rates.sort_by(|a, b| b.operations.total_cmp(&a.operations));
    rates
}

/// Returns the last points as a curve of block characters with eight heights. The highest point is a full block.
fn sparkline(points: &[f64], width: usize) -> String {
    const BLOCKS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let shown = &points[points.len().saturating_sub(width)..];
    let highest = shown.iter().copied().fold(0.0, f64::max);
    let block = |value: f64| match highest > 0.0 {
        true => BLOCKS[((value / highest * 7.0).round() as usize).min(7)],
        false => BLOCKS[0],
    };
    shown.iter().map(|value| block(*value)).collect()
}

/// Cuts a line to the width of the terminal without cutting colour sequences.
fn shortened(line: &str, width: usize) -> String {
    let mut text = String::new();
    let mut shown = 0;
    let mut escape = false;
    for c in line.chars() {
        escape |= c == '\x1b';
        if escape {
            escape = !c.is_ascii_alphabetic();
            text.push(c);
        } else if shown < width {
            shown += 1;
            text.push(c);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn curves_show_the_newest_points_relative_to_the_highest() {
        assert_eq!(sparkline(&[9.0, 0.0, 3.5, 7.0], 3), "▁▅█");
        assert_eq!(sparkline(&[0.0, 0.0], 10), "▁▁");
        assert_eq!(sparkline(&[1.0], 0), "");
    }

    #[test]
    fn lines_are_cut_without_cutting_colours() {
        assert_eq!(shortened("\x1b[1mabcdef\x1b[0m", 3), "\x1b[1mabc\x1b[0m");
        assert_eq!(shortened("ab", 3), "ab");
    }
}
