//! The report on any results: a section for each phase, then method, machine and versions.

use jiff::Timestamp;

use super::charts::{self, latency};
use super::document::{Document, Part, Section, Span, Table, text};
use super::doubts;
use super::topic::{Labelled, Series, Topic, Unit, topics};
use crate::paper::verdict::{EVEN, shown};
use crate::result::{Latency, Machine, Report, Run};

/// Returns the whole report.
pub(crate) fn document(reports: &[Labelled]) -> Document {
    let topics = topics(reports);
    let lead = text![
        format!("Phases: {}; results: {}. ", topics.len(), reports.len()),
        "Points are medians of the repeats, bars their range. A plot has one colour and one mark for each thing that was measured.",
    ];
    let mut sections: Vec<Section> = topics
        .iter()
        .map(|topic| {
            let parts = vec![Part::Plots(charts::plots(topic)), Part::Table(numbers(topic))];
            Section::new(&topic.name, parts)
        })
        .collect();
    sections.push(method(reports));
    let warnings = doubts::loaded(reports.iter().map(|one| &one.report)).into_iter().collect();
    Document {
        title: "Benchmark of NFS storage".to_owned(),
        lead: vec![lead],
        warnings,
        listed: true,
        sections,
    }
}

/// Returns the table of all numbers of a topic.
pub(crate) fn numbers(topic: &Topic<'_>) -> Table {
    let unit = topic.unit();
    let compared = topic.series.len() > 1;
    let against = topic.series.first().map(|first| format!("against {}", first.label)).unwrap_or_default();
    let head = [
        "",
        "clients",
        "depth",
        unit.name(),
        &against,
        "lowest",
        "highest",
        "p50",
        "p90",
        "p99",
        "p99.9",
        "p99.99",
        "max",
        "CPU clients",
        "CPU server",
        "CPU others",
    ];
    let rows = topic.cells().map(|(series, cell)| {
        let (middle, low, high) = cell.spread(|run| unit.rate(run));
        let at = |value: fn(&Latency) -> f64| {
            let (middle, ..) = cell.spread(|run| value(&run.latency));
            Span::from(latency(middle))
        };
        let cpu = |used: fn(&Run) -> Option<f64>| {
            let known = cell.phase.runs.iter().all(|run| used(run).is_some());
            let (share, ..) = cell.spread(|run| used(run).unwrap_or_default() / run.seconds);
            Span::from(if known { format!("{share:.2}") } else { "-".to_owned() })
        };
        vec![
            Span::from(series.label),
            Span::from(cell.clients.to_string()),
            Span::from(cell.depth().to_string()),
            Span::Strong(grouped(middle)),
            if compared { beside(topic, series, cell.clients, middle) } else { Span::from("-") },
            Span::from(grouped(low)),
            Span::from(grouped(high)),
            at(|latency| latency.p50),
            at(|latency| latency.p90),
            at(|latency| latency.p99),
            at(|latency| latency.p999),
            at(|latency| latency.p9999),
            at(|latency| latency.max),
            cpu(|run| run.client_cpu),
            cpu(|run| run.server_cpu),
            cpu(|run| run.other_cpu),
        ]
    });
    Table::new(&head, rows.collect())
}

/// Returns a rate relative to that of the first series with an equal number of clients. A lower rate is red and
/// marked "behind".
fn beside(topic: &Topic<'_>, series: &Series<'_>, clients: u32, rate: f64) -> Span {
    let unit = topic.unit();
    let first = topic.series.first().filter(|first| first.label != series.label);
    let cell = first.and_then(|first| first.cells.iter().find(|cell| cell.clients == clients));
    let of_first = cell.map(|cell| cell.spread(|run| unit.rate(run)).0).filter(|rate| *rate > 0.0);
    let Some(of_first) = of_first else { return Span::from("-") };
    let repeated = topic.cells().all(|(_, cell)| cell.phase.runs.len() > 1);
    let (ratio, even) = (rate / of_first, if repeated { EVEN.0 } else { EVEN.1 });
    let shown = shown(ratio);
    match ratio {
        ahead if ahead > 1.0 + even => Span::Win(format!("ahead {shown}")),
        behind if behind < 1.0 - even => Span::Lose(format!("behind {shown}")),
        _ => Span::Even(format!("even {shown}")),
    }
}

/// Formats a rate with its unit, for a table with several units.
pub(crate) fn amount(rate: f64, unit: Unit) -> String {
    match unit {
        Unit::Operations => format!("{}/s", grouped(rate)),
        _ => format!("{}\u{a0}{}", grouped(rate), unit.name()),
    }
}

/// Formats a number with separators between thousands.
pub(crate) fn grouped(value: f64) -> String {
    let digits = if value < 10.0 { format!("{value:.1}") } else { format!("{value:.0}") };
    let (whole, rest) = digits.split_once('.').unwrap_or((&digits, ""));
    let mut out = String::new();
    for (number, digit) in whole.chars().enumerate() {
        if number > 0 && (whole.len() - number).is_multiple_of(3) {
            out.push('\u{202f}');
        }
        out.push(digit);
    }
    if rest.is_empty() || rest == "0" { out } else { format!("{out}.{rest}") }
}

/// Returns the section with the origin of each result: server, versions, time, settings, command and machine.
fn method(reports: &[Labelled]) -> Section {
    let head = [
        "",
        "measured",
        "version",
        "when",
        "tool",
        "agents",
        "threads",
        "caches dropped",
        "content checked",
        "command",
    ];
    let yes = |value: bool| if value { "yes" } else { "no" };
    let rows = reports.iter().map(|Labelled { label, report }| {
        vec![
            Span::from(label.as_str()),
            Span::from(report.target.as_str()),
            Span::from(report.nfs.to_string()),
            Span::from(time(report.started)),
            Span::from(report.version.as_str()),
            Span::from(report.agents.len().to_string()),
            Span::from(report.threads.to_string()),
            Span::from(yes(report.caches_dropped)),
            Span::from(yes(report.verified)),
            Span::Code(report.command.join(" ")),
        ]
    });
    let said = text![
        "The load generator speaks NFS over TCP from user space, without a mount. A client is a connection with an \
         identity of its own that keeps the given number of requests in flight (depth). A sequential write ends with \
         COMMIT, which is timed. Latencies are from the first request of an operation to its last reply, in an HDR \
         histogram of three digits. CPU is in processors: 1.00 is one of them fully used; \
         others are all processes of the machine but clients and server, where clients are on one machine and the server's process is known."
    ];
    let parts = vec![
        Part::Text(said),
        Part::Table(Table::new(&head, rows.collect())),
        Part::Table(machines(reports.iter().map(|one| &one.report))),
    ];
    Section::new("Method, machine, versions", parts)
}

/// Returns the table of every machine that clients ran on, each once.
pub(crate) fn machines<'a>(reports: impl Iterator<Item = &'a Report>) -> Table {
    let mut machines: Vec<&Machine> = Vec::new();
    for report in reports {
        let agents = report.agents.iter().map(|agent| &agent.machine);
        let here = report.agents.is_empty().then_some(&report.machine);
        for machine in agents.chain(here) {
            if !machines.contains(&machine) {
                machines.push(machine);
            }
        }
    }
    let rows = machines.iter().map(|machine| {
        vec![
            Span::from(machine.hostname.as_str()),
            Span::from(machine.cpu.as_str()),
            Span::from(machine.cpus.to_string()),
            Span::from(format!("{:.1} GiB", machine.memory as f64 / f64::from(1 << 30))),
            Span::from(format!("Linux {}", machine.kernel)),
        ]
    });
    Table::new(&["machine", "processor", "of them", "memory", "kernel"], rows.collect())
}

/// Formats seconds since 1970 as date and time of the day in UTC.
pub(crate) fn time(seconds: u64) -> String {
    let known = i64::try_from(seconds).ok().and_then(|seconds| Timestamp::from_second(seconds).ok());
    known.map_or_else(String::new, |time| time.strftime("%Y-%m-%d %H:%M UTC").to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped() {
        let shown = [0.0, 7.25, 42.0, 1234.6, 1_234_567.0].map(grouped);
        assert_eq!(shown, ["0", "7.2", "42", "1\u{202f}235", "1\u{202f}234\u{202f}567"]);
        assert_eq!(time(0), "1970-01-01 00:00 UTC");
    }
}
