//! Results as a table for people: one line per phase, with medians of its repeats.

use std::fmt::Write as _;

use crate::result::{PhaseReport, Report, Run, median};

/// Formats a latency in microseconds, in the unit that suits its size.
fn latency(microseconds: f64) -> String {
    match microseconds {
        us if us < 1000.0 => format!("{us:.0} us"),
        us if us < 1_000_000.0 => format!("{:.2} ms", us / 1e3),
        us => format!("{:.2} s", us / 1e6),
    }
}

/// Returns the table of a report.
#[must_use]
pub fn table(report: &Report) -> String {
    let mut out = String::new();
    let name_width = report.phases.iter().map(|phase| phase.name.len()).max().unwrap_or(0).max(5);
    let _ = writeln!(
        out,
        "{:name_width$} {:>7} {:>11} {:>9} {:>7} {:>9} {:>9} {:>9} {:>9} {:>9} {:>7} {:>7}",
        "phase",
        "clients",
        "ops/s",
        "MB/s",
        "spread",
        "p50",
        "p99",
        "p99.9",
        "p99.99",
        "max",
        "client",
        "server"
    );
    for phase in &report.phases {
        let _ = writeln!(out, "{}", line(phase, name_width));
    }
    let _ = writeln!(out, "version: {}", report.nfs);
    out.push_str("spread: (fastest - slowest) / median of the repeats; client, server: processors in use\n");
    out
}

/// Returns the line of a phase: medians over its repeats, and the spread of its rate in percent.
fn line(phase: &PhaseReport, name_width: usize) -> String {
    let of = |value: fn(&Run) -> f64| median(&phase.runs.iter().map(value).collect::<Vec<_>>());
    let rates: Vec<f64> = phase.runs.iter().map(|run| run.operations_per_second).collect();
    let spread = match rates.iter().copied().reduce(f64::max).zip(rates.iter().copied().reduce(f64::min)) {
        Some((most, least)) if rates.len() > 1 => format!("{:.0} %", (most - least) / median(&rates) * 100.0),
        _ => "-".to_owned(),
    };
    let clients: u32 = phase.groups.iter().map(|group| group.options.clients).sum();
    let cpu = |used: fn(&Run) -> Option<f64>| {
        let shares: Option<Vec<f64>> = phase.runs.iter().map(|run| Some(used(run)? / run.seconds)).collect();
        shares.map_or("-".to_owned(), |shares| format!("{:.2}", median(&shares)))
    };
    let mut line = format!(
        "{:name_width$} {clients:>7} {:>11.0} {:>9.1} {spread:>7} {:>9} {:>9} {:>9} {:>9} {:>9} {:>7} {:>7}",
        phase.name,
        of(|run| run.operations_per_second),
        of(|run| run.bytes_per_second / 1e6),
        latency(of(|run| run.latency.p50)),
        latency(of(|run| run.latency.p99)),
        latency(of(|run| run.latency.p999)),
        latency(of(|run| run.latency.p9999)),
        latency(of(|run| run.latency.max)),
        cpu(|run| run.client_cpu),
        cpu(|run| run.server_cpu),
    );
    let entries = of(|run| run.entries_per_second);
    if entries > 0.0 {
        let _ = write!(line, "  {entries:.0} entries/s");
    }
    let put_off: u64 = phase.runs.iter().map(|run| run.put_off).sum();
    if put_off > 0 {
        let _ = write!(line, "  {put_off} put off");
    }
    line
}
