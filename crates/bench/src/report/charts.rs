//! The plots of a topic.

use super::plot::{Line, Plot, Point};
use super::scale::Scale;
use super::topic::{Cell, Series, Topic, Unit};
use crate::result::{Latency, Run, median};

type Quantile = fn(&Latency) -> f64;

/// Quantiles of a latency curve, by their usual names.
const QUANTILES: [(&str, Quantile); 6] = [
    ("p50", |latency| latency.p50),
    ("p90", |latency| latency.p90),
    ("p99", |latency| latency.p99),
    ("p99.9", |latency| latency.p999),
    ("p99.99", |latency| latency.p9999),
    ("max", |latency| latency.max),
];
/// Fewest seconds for which a trace is drawn.
const TRACE_SECONDS: usize = 3;

/// Formats a number with few digits and a suffix for thousands or millions, as on axes.
pub(crate) fn short(value: f64) -> String {
    let (value, suffix) = match value.abs() {
        least if least >= 1e6 => (value / 1e6, "M"),
        least if least >= 1e4 => (value / 1e3, "k"),
        _ => (value, ""),
    };
    let digits = if value.fract().abs() < 1e-9 || value.abs() >= 100.0 { 0 } else { 1 };
    if value != 0.0 && value.abs() < 1.0 {
        format!("{value}{suffix}")
    } else {
        format!("{value:.digits$}{suffix}")
    }
}

/// Formats a latency in microseconds, in the unit that suits its size.
pub(crate) fn latency(microseconds: f64) -> String {
    let (value, unit) = match microseconds {
        us if us < 1000.0 => (us, "us"),
        us if us < 1e6 => (us / 1e3, "ms"),
        us => (us / 1e6, "s"),
    };
    let digits = if value >= 100.0 || value.fract() < 1e-9 { 0 } else { 1 };
    format!("{value:.digits$} {unit}")
}

/// Returns the plots of one topic. If several numbers of clients were measured, rate and latency are drawn against
/// clients. The latency curve and the trace follow, for the largest number.
pub(crate) fn plots(topic: &Topic<'_>) -> Vec<Plot> {
    let mut plots = Vec::new();
    if topic.clients().len() > 1 {
        plots.push(rate(topic));
        plots.push(latency_by_clients(topic, "median latency", |latency| latency.p50));
        plots.push(latency_by_clients(topic, "99th percentile", |latency| latency.p99));
    }
    plots.push(curve(topic));
    plots.extend(trace(topic));
    plots
}

/// Returns a plot of the rate against the number of clients.
pub(crate) fn rate(topic: &Topic<'_>) -> Plot {
    let unit = topic.unit();
    let lines = against_clients(topic, |cell| cell.spread(|run| unit.rate(run)));
    let most = lines.iter().flat_map(|line| &line.points).map(|point| point.high).fold(0.0, f64::max);
    Plot {
        title: format!("{}: {} against clients", topic.name, unit.name()),
        x_label: "clients",
        y_label: unit.name().to_owned(),
        x: Scale::names(topic.clients().iter().map(ToString::to_string)),
        y: Scale::linear(most, short),
        lines,
    }
}

/// Returns the plot of a latency against the number of clients, with a line for each system.
fn latency_by_clients(topic: &Topic<'_>, what: &str, value: Quantile) -> Plot {
    let lines = against_clients(topic, |cell| cell.spread(|run| value(&run.latency)));
    Plot {
        title: format!("{}: {what} against clients", topic.name),
        x_label: "clients",
        y_label: "latency".to_owned(),
        x: Scale::names(topic.clients().iter().map(ToString::to_string)),
        y: around(&lines),
        lines,
    }
}

/// Returns a line for each system over the numbers of clients. `value` gives median, minimum and maximum of a cell.
fn against_clients(topic: &Topic<'_>, value: impl Fn(&Cell<'_>) -> (f64, f64, f64)) -> Vec<Line> {
    let clients = topic.clients();
    let lines = topic.series.iter().map(|series| {
        let points = series.cells.iter().map(|cell| {
            let x = clients.iter().position(|count| *count == cell.clients).unwrap_or_default() as f64;
            let (y, low, high) = value(cell);
            Point { x, y, low, high }
        });
        line(series, points.collect(), true)
    });
    lines.collect()
}

fn line(series: &Series<'_>, points: Vec<Point>, marks: bool) -> Line {
    Line { label: series.label.to_owned(), color: series.color, points, marks }
}

/// Returns a logarithmic scale of whole decades around all points above zero.
fn around(lines: &[Line]) -> Scale {
    let points = || lines.iter().flat_map(|line| &line.points).filter(|point| point.low > 0.0);
    let least = points().map(|point| point.low).fold(f64::MAX, f64::min);
    let most = points().map(|point| point.high).fold(0.0, f64::max);
    if most > 0.0 { Scale::logarithmic(least, most, latency) } else { Scale::logarithmic(1.0, 10.0, latency) }
}

/// Returns the number of clients that most series have, the largest among equals, with its cells.
fn busiest<'t, 'a>(topic: &'t Topic<'a>) -> (u32, Vec<(&'t Series<'a>, &'t Cell<'a>)>) {
    let clients = topic.clients();
    let at = |count: u32| -> Vec<(&Series<'a>, &Cell<'a>)> {
        let found = topic
            .series
            .iter()
            .filter_map(|series| Some((series, series.cells.iter().find(|cell| cell.clients == count)?)));
        found.collect()
    };
    let cells = clients.iter().map(|count| (*count, at(*count))).max_by_key(|(_, cells)| cells.len());
    cells.unwrap_or_default()
}

fn counted(clients: u32) -> String {
    if clients == 1 { "1 client".to_owned() } else { format!("{clients} clients") }
}

/// Returns a plot of the latency against quantiles.
fn curve(topic: &Topic<'_>) -> Plot {
    let (clients, cells) = busiest(topic);
    let lines: Vec<Line> = cells
        .iter()
        .map(|(series, cell)| {
            let points = QUANTILES.iter().enumerate().map(|(number, (_, value))| {
                let (y, low, high) = cell.spread(|run| value(&run.latency));
                Point { x: number as f64, y, low, high }
            });
            line(series, points.collect(), true)
        })
        .collect();
    Plot {
        title: format!("{}: latency curve, {}", topic.name, counted(clients)),
        x_label: "quantile",
        y_label: "latency".to_owned(),
        x: Scale::names(QUANTILES.iter().map(|(name, _)| (*name).to_owned())),
        y: around(&lines),
        lines,
    }
}

/// Returns a plot of each second's rate, from the repeat that is nearest to the median.
fn trace(topic: &Topic<'_>) -> Option<Plot> {
    let (clients, cells) = busiest(topic);
    let unit = topic.unit();
    let lines: Vec<Line> = cells
        .iter()
        .filter_map(|(series, cell)| {
            let run = typical(cell)?;
            // The last second is incomplete, so it is left out.
            let whole = run.series.get(..run.series.len().checked_sub(1)?)?;
            let points = whole.iter().enumerate().map(|(second, had)| {
                let y = match unit {
                    Unit::Mebibytes => had.bytes as f64 / f64::from(1 << 20),
                    _ => had.operations as f64,
                };
                Point::new(second as f64 + 0.5, y)
            });
            (whole.len() >= TRACE_SECONDS).then(|| line(series, points.collect(), false))
        })
        .collect();
    let points = || lines.iter().flat_map(|line| &line.points);
    let seconds = points().map(|point| point.x + 0.5).reduce(f64::max)?;
    let most = points().map(|point| point.y).fold(0.0, f64::max);
    let y_label = if unit == Unit::Mebibytes { "MiB/s" } else { "operations/s" };
    Some(Plot {
        title: format!("{}: second by second, {}", topic.name, counted(clients)),
        x_label: "seconds since the start",
        y_label: y_label.to_owned(),
        x: Scale::up_to(seconds, short),
        y: Scale::linear(most, short),
        lines,
    })
}

/// Returns the repeat whose rate is nearest to the median of all repeats.
fn typical<'a>(cell: &Cell<'a>) -> Option<&'a Run> {
    let rates: Vec<f64> = cell.phase.runs.iter().map(|run| run.operations_per_second).collect();
    let middle = median(&rates);
    let distance = |run: &&Run| (run.operations_per_second - middle).abs();
    cell.phase.runs.iter().min_by(|one, other| distance(one).total_cmp(&distance(other)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        let shown = [0.0, 0.5, 950.0, 12_000.0, 12_500.0, 2_000_000.0, 9_300.0].map(short);
        assert_eq!(shown, ["0", "0.5", "950", "12k", "12.5k", "2M", "9300"]);
        let shown = [10.0, 999.0, 1000.0, 12_340.0, 2_500_000.0].map(latency);
        assert_eq!(shown, ["10 us", "999 us", "1 ms", "12.3 ms", "2.5 s"]);
    }
}
