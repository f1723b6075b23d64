//! The page: everything in one file, without a script and without anything to load.

use anyhow::Result;
use jiff::Timestamp;
use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::charts::{self, latency};
use super::plot::{self, Plot};
use super::topic::{Labelled, Topic, topics};
use crate::result::{Machine, Report};

const STYLE: &str = include_str!("page.css");

/// A whole document.
pub(crate) fn document(title: &str, lead: &Markup, body: &Markup) -> String {
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (title) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                header { h1 { (title) } (lead) }
                main { (body) }
                footer { "Made by forebay bench " (env!("CARGO_PKG_VERSION")) ", " (now()) }
            }
        }
    };
    page.into_string()
}

/// Plots beside each other.
pub(crate) fn figures(plots: &[Plot]) -> Result<Markup> {
    let drawn: Result<Vec<String>> =
        plots.iter().map(|plot| plot::draw(std::slice::from_ref(plot), 1)).collect();
    let drawn = drawn?;
    Ok(html! {
        div.plots {
            @for (plot, svg) in plots.iter().zip(&drawn) {
                figure role="img" aria-label=(plot.title) { (PreEscaped(fluid(svg))) }
            }
        }
    })
}

/// Lets a drawing shrink with its column.
fn fluid(svg: &str) -> String {
    let (width, height) = plot::SIZE;
    svg.replacen(
        &format!("width=\"{width}\" height=\"{height}\""),
        &format!("viewBox=\"0 0 {width} {height}\""),
        1,
    )
}

/// A table with a head.
pub(crate) fn table(head: &[&str], rows: &[Vec<Markup>]) -> Markup {
    html! {
        div.table {
            table {
                thead { tr { @for cell in head { th { (cell) } } } }
                tbody { @for row in rows { tr { @for cell in row { td { (cell) } } } } }
            }
        }
    }
}

/// The report on any results.
///
/// # Errors
/// Where a plot cannot be drawn.
pub(crate) fn report(reports: &[Labelled]) -> Result<String> {
    let topics = topics(reports);
    let sections: Result<Vec<Markup>> = topics.iter().map(section).collect();
    let sections = sections?;
    let lead = html! {
        p { (topics.len()) " phases, " (reports.len()) " results. Points are medians of the repeats, bars their range. "
            "A plot has one colour and one mark for each thing that was measured." }
        nav { @for topic in &topics { a href={ "#" (anchor(&topic.name)) } { (topic.name) } " " } }
    };
    let body = html! {
        @for part in &sections { (part) }
        section { h2 #method { "Method, machine, versions" } (method(reports)) }
    };
    Ok(document("Benchmark of NFS storage", &lead, &body))
}

fn anchor(name: &str) -> String {
    name.chars().map(|letter| if letter.is_ascii_alphanumeric() { letter } else { '-' }).collect()
}

fn section(topic: &Topic<'_>) -> Result<Markup> {
    let drawn = figures(&charts::plots(topic))?;
    Ok(html! {
        section {
            h2 id=(anchor(&topic.name)) { (topic.name) }
            (drawn)
            (numbers(topic))
        }
    })
}

/// All numbers of a topic.
pub(crate) fn numbers(topic: &Topic<'_>) -> Markup {
    let unit = topic.unit();
    let head = [
        "",
        "clients",
        "depth",
        unit.name(),
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
    ];
    let rows: Vec<Vec<Markup>> = topic
        .cells()
        .map(|(series, cell)| {
            let (middle, low, high) = cell.spread(|run| unit.rate(run));
            let at = |value: fn(&crate::result::Latency) -> f64| {
                let (middle, ..) = cell.spread(|run| value(&run.latency));
                html! { (latency(middle)) }
            };
            let cpu = |used: fn(&crate::result::Run) -> Option<f64>| {
                let known = cell.phase.runs.iter().all(|run| used(run).is_some());
                let (share, ..) = cell.spread(|run| used(run).unwrap_or_default() / run.seconds);
                html! { @if known { (format!("{share:.2}")) } @else { "-" } }
            };
            vec![
                html! { (series.label) },
                html! { (cell.clients) },
                html! { (cell.depth()) },
                html! { b { (grouped(middle)) } },
                html! { (grouped(low)) },
                html! { (grouped(high)) },
                at(|latency| latency.p50),
                at(|latency| latency.p90),
                at(|latency| latency.p99),
                at(|latency| latency.p999),
                at(|latency| latency.p9999),
                at(|latency| latency.max),
                cpu(|run| run.client_cpu),
                cpu(|run| run.server_cpu),
            ]
        })
        .collect();
    table(&head, &rows)
}

/// A number with its thousands apart.
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

fn method(reports: &[Labelled]) -> Markup {
    let head =
        ["", "measured", "when", "tool", "agents", "threads", "caches dropped", "content checked", "command"];
    let rows: Vec<Vec<Markup>> = reports
        .iter()
        .map(|Labelled { label, report }| {
            vec![
                html! { (label) },
                html! { (report.target) },
                html! { (time(report.started)) },
                html! { (report.version) },
                html! { (report.agents.len()) },
                html! { (report.threads) },
                html! { (yes(report.caches_dropped)) },
                html! { (yes(report.verified)) },
                html! { code { (report.command.join(" ")) } },
            ]
        })
        .collect();
    let machines = machines(reports.iter().map(|one| &one.report));
    html! {
        p { "The load generator speaks NFSv3 over TCP from user space, without a mount. A client is a connection with an "
            "identity of its own that keeps the given number of requests in flight (depth). A sequential write ends with "
            "COMMIT, which is timed. Latencies are from the first request of an operation to its last reply, in an HDR "
            "histogram of three digits. CPU is in processors: 1.00 is one of them fully used." }
        (table(&head, &rows))
        (machine_table(&machines))
    }
}

/// Every machine that clients ran on, once.
pub(crate) fn machines<'a>(reports: impl Iterator<Item = &'a Report>) -> Vec<&'a Machine> {
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
    machines
}

/// A table of machines.
pub(crate) fn machine_table(machines: &[&Machine]) -> Markup {
    let rows: Vec<Vec<Markup>> = machines
        .iter()
        .map(|machine| {
            vec![
                html! { (machine.hostname) },
                html! { (machine.cpu) },
                html! { (machine.cpus) },
                html! { (format!("{:.1} GiB", machine.memory as f64 / f64::from(1 << 30))) },
                html! { "Linux " (machine.kernel) },
            ]
        })
        .collect();
    table(&["machine", "processor", "of them", "memory", "kernel"], &rows)
}

const fn yes(value: bool) -> &'static str {
    if value { "yes" } else { "no" }
}

/// Seconds since 1970 as a date and time of the day, UTC.
pub(crate) fn time(seconds: u64) -> String {
    let known = i64::try_from(seconds).ok().and_then(|seconds| Timestamp::from_second(seconds).ok());
    known.map_or_else(String::new, |time| time.strftime("%Y-%m-%d %H:%M UTC").to_string())
}

fn now() -> String {
    Timestamp::now().strftime("%Y-%m-%d %H:%M UTC").to_string()
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
