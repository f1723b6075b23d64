//! The picture of the live view.

use std::time::Duration;

use forebay_config::format_size;
use forebay_control::{Health, Status};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Clear, Paragraph, RenderDirection, Row, Sparkline, Table};

use super::app::{App, Shown, Tab};
use super::list::{List, Sort, shortened};
use super::moments::{CURVES, Curve, Moment};
use crate::output::{self, Align, latency, printable};
use crate::rates::{CacheRates, Rates};
use crate::stat::{mebibytes, percent, rate, spared};

/// The width of the names and figures beside a curve, in characters.
const BESIDE: u16 = 25;
/// The lines of the overview below the curves.
const BELOW: u16 = 11;
/// The largest height of a curve, in lines.
const HIGHEST: u16 = 4;

/// The styles of the view.
pub(super) struct Theme {
    good: Style,
    warn: Style,
    bad: Style,
    curve: Style,
    head: Style,
    chosen: Style,
}

impl Theme {
    /// Returns the colours, or none if NO_COLOR is set (<https://no-color.org>).
    pub(super) fn of_environment() -> Self {
        match std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty()) {
            true => Self::plain(),
            false => Self::coloured(),
        }
    }

    /// Returns the styles without colours, for terminals that have none.
    pub(super) fn plain() -> Self {
        let (plain, bold) = (Style::new(), Style::new().add_modifier(Modifier::BOLD));
        let chosen = Style::new().add_modifier(Modifier::REVERSED);
        Theme { good: plain, warn: bold, bad: bold, curve: plain, head: bold, chosen }
    }

    /// Returns the styles with colours.
    pub(super) fn coloured() -> Self {
        let plain = Self::plain();
        Theme {
            good: Style::new().fg(Color::Green),
            warn: Style::new().fg(Color::Yellow),
            bad: plain.bad.fg(Color::Red),
            curve: Style::new().fg(Color::Cyan),
            ..plain
        }
    }
}

/// Draws the view.
pub(super) fn draw(app: &App, frame: &mut Frame<'_>, theme: &Theme) {
    let areas = [Constraint::Length(1), Constraint::Length(1), Constraint::Min(0), Constraint::Length(1)];
    let [tabs, head, body, foot] = Layout::vertical(areas).areas(frame.area());
    frame.render_widget(tab_line(app, theme), tabs);
    let Some(shown) = &app.shown else { return };
    frame.render_widget(head_line(app, &shown.status, theme), head);
    match app.list() {
        None => overview(app, shown, frame, body, theme),
        Some((list, sort)) => table(app, list, sort, frame, body, theme),
    }
    frame.render_widget(foot_line(app, theme), foot);
    if app.has_help {
        help(frame);
    }
}

/// Returns the line with the tabs, of which the present one is marked.
fn tab_line(app: &App, theme: &Theme) -> Line<'static> {
    let mut spans = Vec::new();
    for (number, tab) in Tab::ALL.iter().enumerate() {
        let style = if *tab == app.tab { theme.chosen } else { Style::new() };
        spans.push(Span::styled(format!(" {} {} ", number + 1, tab.name()), style));
    }
    if app.is_paused {
        spans.push(Span::styled("  PAUSED", theme.warn));
    }
    Line::from(spans)
}

/// Returns the line with the version, the health, the mode and the time since the start, or with what is wrong.
fn head_line(app: &App, status: &Status, theme: &Theme) -> Line<'static> {
    if let Some(error) = &app.silent {
        return Line::styled(format!("NO ANSWER, last figures: {}", printable(error)), theme.bad);
    }
    let (health, style, reason) = match &status.health {
        _ if status.starting.is_some() => {
            ("STARTING", theme.warn, status.starting.as_ref().map(ToString::to_string))
        }
        Health::Ok => ("OK", theme.good, None),
        Health::Degraded { reasons } => {
            let more = if reasons.len() > 1 { format!(" (1 of {})", reasons.len()) } else { String::new() };
            ("DEGRADED", theme.bad, reasons.first().map(|reason| format!("{reason}{more}")))
        }
    };
    let up = output::span(Duration::from_nanos(status.uptime_ns));
    let rest = reason.unwrap_or_else(|| format!("mode {}  up {up}", status.effective_mode));
    Line::from(vec![
        Span::styled(format!("forebay {}  ", printable(&status.version)), theme.head),
        Span::styled(health, style),
        Span::raw(format!("  {}", printable(&rest))),
    ])
}

/// Returns the last line: the keys, the filter that is typed, or the number of rows that pass the filter.
fn foot_line(app: &App, theme: &Theme) -> Line<'static> {
    if app.is_typing {
        return Line::styled(format!("filter: {}_  Enter keeps it, Esc removes it", app.filter), theme.head);
    }
    if let (Some((list, sort)), false) = (app.list(), app.filter.is_empty()) {
        let (some, all) = (list.chosen(&app.filter, sort).len(), list.rows.len());
        return Line::raw(format!(
            "filter: {}  {some} of {all} rows  / changes it  ? help  q quits",
            app.filter
        ));
    }
    Line::raw("Tab tabs  s sorts  r reverses  / filters  p pauses  ? help  q quits")
}

/// Draws the first tab: curves of the last minutes, and the figures of the last interval. Curves of the cache are
/// left out without a cache.
fn overview(app: &App, shown: &Shown, frame: &mut Frame<'_>, body: Rect, theme: &Theme) {
    let has_cache = shown.rates.cache.is_some();
    let curves: Vec<&Curve> = CURVES.iter().filter(|curve| has_cache || !curve.is_of_cache).collect();
    let count = curves.len() as u16;
    let height = (body.height.saturating_sub(BELOW) / count).clamp(1, HIGHEST);
    let [above, below] =
        Layout::vertical([Constraint::Length(height * count), Constraint::Min(0)]).areas(body);
    let latest = Moment::from(&shown.rates);
    for (curve, area) in curves.iter().zip(above.rows_of(height)) {
        let [beside, graph] =
            Layout::horizontal([Constraint::Length(BESIDE), Constraint::Min(0)]).areas(area);
        let figure = (curve.show)((curve.of)(&latest));
        frame.render_widget(Line::raw(format!("{:<13} {figure:>10} ", curve.name)), beside);
        let points = app.moments.iter().rev().take(usize::from(graph.width)).map(curve.of);
        let data = scaled(&points.collect::<Vec<_>>());
        let sparkline =
            Sparkline::default().data(data).direction(RenderDirection::RightToLeft).style(theme.curve);
        frame.render_widget(sparkline, graph);
    }
    let mut lines = vec![Line::raw("")];
    lines.extend(operations(&shown.rates, theme));
    lines.push(Line::raw(""));
    lines.push(Line::raw(activity(shown)));
    lines.extend(shown.rates.cache.iter().flat_map(cache_lines).map(Line::raw));
    frame.render_widget(Paragraph::new(lines), below);
}

/// Cuts an area into areas of a height.
trait RowsOf {
    fn rows_of(self, height: u16) -> impl Iterator<Item = Rect>;
}

impl RowsOf for Rect {
    fn rows_of(self, height: u16) -> impl Iterator<Item = Rect> {
        (0..self.height / height).map(move |row| Rect { y: self.y + row * height, height, ..self })
    }
}

/// Returns figures as whole numbers up to 1000, the largest figure.
fn scaled(points: &[f64]) -> Vec<u64> {
    let highest = points.iter().copied().fold(0.0, f64::max);
    points.iter().map(|point| if highest > 0.0 { (point / highest * 1000.0) as u64 } else { 0 }).collect()
}

/// Returns the lines with rates and latencies of each kind of operation.
fn operations(rates: &Rates, theme: &Theme) -> Vec<Line<'static>> {
    let line = |cells: [String; 8]| {
        let [kind, figures @ ..] = cells;
        let figures: String = figures.iter().map(|figure| format!("{figure:>9}")).collect();
        format!("{kind:<8}{figures}")
    };
    let head = ["KIND", "OPS/s", "MiB/s", "ERR/s", "MEAN", "P50", "P99", "MAX"].map(str::to_owned);
    let mut lines = vec![Line::styled(line(head), theme.head)];
    for (kind, of) in rates.kinds() {
        let [mean, p50, p99, max] = [of.mean_ns, of.p50_ns, of.p99_ns, of.max_ns].map(latency);
        let cells =
            [kind.to_owned(), rate(of.operations), mebibytes(of.bytes), rate(of.errors), mean, p50, p99, max];
        lines.push(Line::raw(line(cells)));
    }
    lines
}

/// Returns the line with the requests in progress, workers, connections and CPU use.
fn activity(shown: &Shown) -> String {
    let Shown { rates, status, .. } = shown;
    format!(
        "in flight {}  waiting {}  workers {}/{}  connections {}  ops/sync {:.1}  CPU {:.0} %",
        rates.inflight,
        rates.workers_queued,
        rates.workers_busy,
        status.workers.threads,
        rates.connections,
        rates.operations_per_sync,
        rates.cpu_percent,
    )
}

/// Returns the two lines about the cache: the origin of read blocks, and the load that the backing store is spared.
fn cache_lines(cache: &CacheRates) -> [String; 2] {
    let reads = format!(
        "reads from memory {} %, from SSDs {} %  dirty {}",
        percent(cache, cache.ram_percent),
        percent(cache, cache.ssd_percent),
        format_size(cache.dirty_bytes),
    );
    let spared = format!(
        "the backing store is spared {} MiB/s  {:.2} bytes go to the SSDs for each",
        spared(cache),
        cache.write_amplification
    );
    [reads, spared]
}

/// Draws a list from its scroll position on, or its sentence for an empty list. The first column gets the width that
/// the others leave.
fn table(app: &App, list: &List, sort: Sort, frame: &mut Frame<'_>, body: Rect, theme: &Theme) {
    if list.rows.is_empty() {
        frame.render_widget(Paragraph::new(list.empty), body);
        return;
    }
    let rows = list.chosen(&app.filter, sort);
    let others = list.widths();
    let name = body.width.saturating_sub(others.iter().map(|width| width + 1).sum());
    let head = list.columns.iter().enumerate().map(|(column, (head, align))| {
        let mark = if sort.is_reversed { '▲' } else { '▼' };
        let text = if column == sort.column { format!("{head}{mark}") } else { (*head).to_owned() };
        aligned(text, *align)
    });
    let head = Row::new(head.collect::<Vec<_>>()).style(theme.head);
    let shown = rows.iter().skip(app.scroll).map(|row| {
        let widths = std::iter::once(&name).chain(&others);
        let cells = row.iter().zip(&list.columns).zip(widths);
        let cells = cells
            .map(|((cell, (_, align)), width)| aligned(shortened(&cell.text, usize::from(*width)), *align));
        Row::new(cells.collect::<Vec<_>>())
    });
    let widths =
        std::iter::once(Constraint::Min(name.min(12))).chain(others.iter().copied().map(Constraint::Length));
    frame.render_widget(Table::new(shown.collect::<Vec<_>>(), widths).header(head), body);
}

/// Returns a cell with its alignment.
fn aligned(text: String, align: Align) -> Line<'static> {
    match align {
        Align::Left => Line::raw(text),
        Align::Right => Line::raw(text).right_aligned(),
    }
}

const HELP: &str = " 1 to 5, Tab, arrows   choose a tab
 s, S                  sort by the next column, or by the one before
 r                     reverse the order
 /                     filter rows; Enter keeps it, Esc removes it
 arrows, PgUp, PgDn    move through a list
 p, space              pause and continue
 ?                     show and hide this help
 q, Esc, Ctrl-C        quit

 Curves show the last minutes, newest on the right. Latencies are
 medians. The first figures are means since the server started.";

/// Draws the list of keys over the middle of the screen.
fn help(frame: &mut Frame<'_>) {
    let area = frame.area();
    let (width, height) = (72.min(area.width), 14.min(area.height));
    let (x, y) = ((area.width - width) / 2, (area.height - height) / 2);
    let area = Rect { x, y, width, height };
    frame.render_widget(Clear, area);
    frame.render_widget(Paragraph::new(HELP).block(Block::bordered().title(" Help ")), area);
}
