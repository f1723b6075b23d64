//! The cost of the load generator, and its rates against a server that answers at once with constants. No figure of
//! the report can be above these rates.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use anyhow::{Context, Result};

use super::plan::{Plan, job, step};
use super::system::program;
use crate::job::Job;
use crate::options::{Options, Pattern, Size};
use crate::report::document::{Part, Section, Span, Table, text};
use crate::report::measured::grouped;
use crate::result::{PhaseReport, Report, Run, median};
use crate::runner;
use crate::settings::Settings;
use crate::url::Target;

/// Requests per second for which the cost is stated.
const RATE: f64 = 50_000.0;
/// Largest share of one processor that the generator should use at [`RATE`].
const AIM: f64 = 0.33;

/// A running null server. It ends when this value is dropped.
struct NullServer(Child);

impl NullServer {
    /// Starts the server and returns its address.
    fn start() -> Result<(Self, Target)> {
        let mut command = program()?;
        let command = command.args(["bench", "null-server"]).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut server = Self(command.spawn().context("the null server cannot be started")?);
        let output = server.0.stdout.take().context("the null server has no output")?;
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line)?;
        let target = line.trim().parse().context("the null server does not print its address")?;
        Ok((server, target))
    }
}

impl Drop for NullServer {
    fn drop(&mut self) {
        // The process may have ended already, so errors are ignored.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn file(work: &Path) -> PathBuf {
    work.join("generator.json")
}

/// Returns the earlier measurement, if there is one.
pub(super) fn load(work: &Path) -> Result<Option<Report>> {
    let path = file(work);
    path.exists().then(|| Report::load(&path)).transpose()
}

/// Measures the load generator and saves the result.
pub(super) fn measure(plan: &Plan, work: &Path) -> Result<Report> {
    let (_server, target) = NullServer::start()?;
    let settings = Settings { repeat: plan.repeat, ..Settings::of(target) };
    let report = runner::run(settings, &loads(plan)).context("the load generator cannot be measured")?;
    let (path, new) = (file(work), work.join("generator.new"));
    let what = || format!("{} cannot be written", path.display());
    fs::write(&new, serde_json::to_vec(&report)?).with_context(what)?;
    fs::rename(&new, &path).with_context(what)?;
    Ok(report)
}

/// Returns the loads on the null server, of the closed and of the open loop. Each runs for at most 2 s.
fn loads(plan: &Plan) -> Job {
    let seconds = Some(plan.seconds.min(2.0));
    let load = |name: &str, pattern: Pattern, rate: Option<f64>| {
        // The null server reports 64 MiB as the size of every file.
        let options =
            Options { clients: 32, depth: 4, size: Size(64 << 20), items: 32, rate, ..Options::default() };
        step(name, pattern, &options, seconds)
    };
    job([
        load("GETATTR", Pattern::Getattr, None),
        load("4 KiB reads", Pattern::Randread, None),
        load("4 KiB writes", Pattern::Randwrite, None),
        load("4 KiB reads, open loop", Pattern::Randread, Some(RATE)),
        load("4 KiB writes, open loop", Pattern::Randwrite, Some(RATE)),
    ])
}

/// Returns operations per second and the number of busy processors, both medians of the repeats.
fn rate_and_cost(phase: &PhaseReport) -> (f64, f64) {
    let of = |value: fn(&Run) -> f64| median(&phase.runs.iter().map(value).collect::<Vec<f64>>());
    (of(|run| run.operations_per_second), of(|run| run.client_cpu.unwrap_or_default() / run.seconds))
}

/// Returns the number of processors needed for [`RATE`], in proportion to the measured rate and use.
fn scaled((rate, used): (f64, f64)) -> f64 {
    used / rate.max(1.0) * RATE
}

/// Returns the section of the report.
pub(super) fn section(report: &Report) -> Section {
    let rows = report.phases.iter().map(|phase| {
        let (rate, used) = rate_and_cost(phase);
        vec![
            Span::from(phase.name.as_str()),
            Span::from(grouped(rate)),
            Span::from(format!("{used:.2}")),
            Span::from(format!("{:.2}", scaled((rate, used)))),
        ]
    });
    let is_paced = |phase: &&PhaseReport| phase.groups.iter().any(|group| group.options.rate.is_some());
    let paced = report.phases.iter().filter(is_paced);
    let dearest = paced.map(|phase| scaled(rate_and_cost(phase))).fold(0.0, f64::max);
    let verdict = if dearest < AIM { Span::Win("less".into()) } else { Span::Lose("not less".into()) };
    let said = text![
        "Against a server that answers at once with constants (",
        Span::Code("forebay bench null-server".into()),
        "), 32 clients with four requests in flight, one thread, on the same processors. No figure of this report can be above these. \
         The aim is less than a third of a processor at 50,000 requests a second; it takes ",
        Span::Strong(format!("{dearest:.2}")),
        ": ",
        verdict,
        ".",
    ];
    let head = ["load", "operations/s", "processors in use", "processors for 50,000/s"];
    let table = Table::new(&head, rows.collect());
    Section::new("The load generator itself", vec![Part::Text(said), Part::Table(table)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cost_is_that_of_the_rate_stated_where_less_was_reached() {
        assert!((scaled((25_000.0, 0.2)) - 0.4).abs() < 1e-9);
        assert!((scaled((50_000.0, 0.2)) - 0.2).abs() < 1e-9);
    }
}
