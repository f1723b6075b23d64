//! Results sorted by phase, then by label, then by number of clients.

use crate::protocol::Version;
use crate::result::{PhaseReport, Report, Run, median};

/// A result and its name in the report.
#[derive(Debug, Clone)]
pub(crate) struct Labelled {
    pub(crate) label: String,
    pub(crate) report: Report,
}

/// All results of one phase.
#[derive(Debug)]
pub(crate) struct Topic<'a> {
    pub(crate) name: String,
    pub(crate) series: Vec<Series<'a>>,
}

/// The results of one label in a phase.
#[derive(Debug)]
pub(crate) struct Series<'a> {
    pub(crate) label: &'a str,
    /// Number of the series' colour on the page.
    pub(crate) color: usize,
    /// Cells by number of clients, fewest first.
    pub(crate) cells: Vec<Cell<'a>>,
}

/// The result of a phase with one number of clients.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cell<'a> {
    pub(crate) clients: u32,
    pub(crate) phase: &'a PhaseReport,
}

/// The unit of a rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unit {
    /// Operations per second.
    Operations,
    /// MiB per second.
    Mebibytes,
    /// Directory entries per second.
    Entries,
}

impl Unit {
    /// Returns the label of an axis.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Operations => "operations/s",
            Self::Mebibytes => "MiB/s",
            Self::Entries => "entries/s",
        }
    }

    /// Returns the rate of one run.
    pub(crate) fn rate(self, run: &Run) -> f64 {
        match self {
            Self::Operations => run.operations_per_second,
            Self::Mebibytes => run.bytes_per_second / f64::from(1 << 20),
            Self::Entries => run.entries_per_second,
        }
    }
}

/// Labels results with the text given with `--label`, or else with the target. If two results for one phase and
/// number of clients would get one label, all results are labelled with their file names.
pub(crate) fn label(reports: Vec<(String, Report)>) -> Vec<Labelled> {
    let unnamed = |report: &Report| match report.nfs {
        Version::V3 => report.target.clone(),
        version => format!("{} ({version})", report.target),
    };
    let named = |report: &Report| report.label.clone().unwrap_or_else(|| unnamed(report));
    let clash = reports.iter().enumerate().any(|(number, (_, one))| {
        reports[..number].iter().any(|(_, other)| {
            named(one) == named(other)
                && one.phases.iter().any(|phase| {
                    let same =
                        |known: &PhaseReport| known.name == phase.name && clients(known) == clients(phase);
                    other.phases.iter().any(same)
                })
        })
    });
    let labelled = |(file, report): (String, Report)| Labelled {
        label: if clash { file } else { named(&report) },
        report,
    };
    reports.into_iter().map(labelled).collect()
}

/// Returns the number of clients of a phase, over all its groups.
pub(crate) fn clients(phase: &PhaseReport) -> u32 {
    phase.groups.iter().map(|group| group.options.clients).sum()
}

/// Returns the labels in the order of their first appearance.
pub(crate) fn labels(reports: &[Labelled]) -> Vec<&str> {
    let mut labels: Vec<&str> = Vec::new();
    for one in reports {
        if !labels.contains(&one.label.as_str()) {
            labels.push(&one.label);
        }
    }
    labels
}

/// Sorts results by phase, in the order of their first appearance.
pub(crate) fn topics(reports: &[Labelled]) -> Vec<Topic<'_>> {
    let labels = labels(reports);
    let mut topics: Vec<Topic<'_>> = Vec::new();
    for one in reports {
        for phase in &one.report.phases {
            let number = topics.iter().position(|topic| topic.name == phase.name).unwrap_or_else(|| {
                topics.push(Topic { name: phase.name.clone(), series: Vec::new() });
                topics.len() - 1
            });
            let series = &mut topics[number].series;
            let number = series.iter().position(|series| series.label == one.label).unwrap_or_else(|| {
                let color = labels.iter().position(|label| *label == one.label).unwrap_or_default();
                series.push(Series { label: &one.label, color, cells: Vec::new() });
                series.len() - 1
            });
            series[number].cells.push(Cell { clients: clients(phase), phase });
        }
    }
    for series in topics.iter_mut().flat_map(|topic| &mut topic.series) {
        series.cells.sort_by_key(|cell| cell.clients);
    }
    topics
}

impl Topic<'_> {
    /// Returns the unit of the topic's rates: bytes if records are large.
    pub(crate) fn unit(&self) -> Unit {
        const LARGE: u64 = 64 << 10;
        let runs = || self.cells().flat_map(|(_, cell)| &cell.phase.runs);
        if runs().any(|run| run.entries_per_second > 0.0) {
            Unit::Entries
        } else if runs().any(|run| run.operations > 0 && run.bytes / run.operations >= LARGE) {
            Unit::Mebibytes
        } else {
            Unit::Operations
        }
    }

    /// Returns all cells with their series.
    pub(crate) fn cells(&self) -> impl Iterator<Item = (&Series<'_>, &Cell<'_>)> {
        self.series.iter().flat_map(|series| series.cells.iter().map(move |cell| (series, cell)))
    }

    /// Returns every measured number of clients, fewest first.
    pub(crate) fn clients(&self) -> Vec<u32> {
        let mut clients: Vec<u32> = self.cells().map(|(_, cell)| cell.clients).collect();
        clients.sort_unstable();
        clients.dedup();
        clients
    }
}

impl Cell<'_> {
    /// Returns the median, lowest and highest of a value over the repeats.
    pub(crate) fn spread(&self, value: impl Fn(&Run) -> f64) -> (f64, f64, f64) {
        let values: Vec<f64> = self.phase.runs.iter().map(value).collect();
        let low = values.iter().copied().reduce(f64::min).unwrap_or_default();
        let high = values.iter().copied().reduce(f64::max).unwrap_or_default();
        (median(&values), low, high)
    }

    /// Returns the requests that each client keeps in flight; the largest number if groups differ.
    pub(crate) fn depth(&self) -> u32 {
        self.phase.groups.iter().map(|group| u32::from(group.options.depth)).max().unwrap_or_default()
    }
}
