//! The report of `bench paper`: measured ratios beside the published ones, method, machine and versions.

use super::cell::{Cell, by_system};
use super::plan::Plan;
use super::system::System;
use super::{Outcome, compared, figures, generator, trace};
use crate::options::Size;
use crate::report::document::{Document, Part, Section, Span, text};
use crate::report::doubts;
use crate::report::measured::{machines, time};
use crate::report::topic::topics;
use crate::result::median;

/// Returns the whole report.
pub(super) fn document(outcome: &Outcome) -> Document {
    let reports = by_system(&outcome.cells);
    let topics = topics(&reports);
    let mut lead = vec![text![
        "The tests of published studies on NFS storage with an SSD cache, made anew on this machine: the same loads, scaled, on \
         nfs-ganesha as the independent baseline and on Forebay in its modes, in turn. What compares is the ratio to \
         the baseline, not the figure: the published hardware was larger."
    ]];
    if outcome.quick {
        let note = "A quick run: little data, short phases, ";
        let note = format!(
            "{note}{}. It shows directions; a full run gives figures to rely on.",
            repeats(outcome.plan.repeat)
        );
        lead.push(text![Span::Note(note)]);
    }
    if !outcome.plan.drops_caches {
        lead.push(text![Span::Note("The page cache was not dropped, so cold reads may be warm.".to_owned())]);
    }
    let mut sections = vec![figures::summary(&topics)];
    sections.extend(absent(outcome));
    sections.extend(figures::sections(&topics));
    sections.extend(figures::durable(&topics));
    sections.extend(trace::section(&outcome.cells));
    sections.extend(compared::promise(&topics));
    sections.extend(compared::shared(&topics));
    sections.extend(compared::parallel(&topics));
    sections.extend(outcome.generator.as_ref().map(generator::section));
    sections.push(method(outcome));
    let warnings = doubts::loaded(outcome.cells.iter().map(|cell| &cell.report)).into_iter().collect();
    Document {
        title: "The published figures, on this machine".to_owned(),
        lead,
        warnings,
        listed: false,
        sections,
    }
}

fn repeats(count: u32) -> String {
    if count == 1 { "one repeat".to_owned() } else { format!("{count} repeats") }
}

/// Returns the section about the measurements that are missing, if any.
fn absent(outcome: &Outcome) -> Option<Section> {
    let missing = outcome.missing.iter().map(|(system, why)| {
        text![
            Span::Strong(system.name().into()),
            ": not available on this machine. ",
            Span::Note(why.clone())
        ]
    });
    let failed = outcome
        .failed
        .iter()
        .map(|(key, why)| text![Span::Strong(key.describe()), ": failed. ", Span::Note(why.clone())]);
    let left = (outcome.left > 0).then(|| {
        text![format!(
            "{} measurements: there was no time for them; the same command with --resume goes on.",
            outcome.left
        )]
    });
    let items: Vec<_> = missing.chain(failed).chain(left).collect();
    (!items.is_empty()).then(|| Section::new("What is missing", vec![Part::List(items)]))
}

/// Returns the section that tells how the figures were measured, on which machine, with which versions, and how to
/// repeat it.
fn method(outcome: &Outcome) -> Section {
    let plan = &outcome.plan;
    let first = outcome.cells.iter().map(|cell| cell.report.started).min().unwrap_or_default();
    let last = outcome.cells.iter().map(|cell| cell.report.started).max().unwrap_or_default();
    let mib = |bytes: u64| format!("{} MiB", bytes >> 20);
    let paced =
        if outcome.storage.starts_with("emulated") { ", while the emulated disks keep no pace" } else { "" };
    let threads = match plan.threads.as_slice() {
        [] => String::new(),
        more => format!("; metadata also {}", list(more)),
    };
    let items = vec![
        text![
            format!("Storage: {}. Cache files: two of {} in ", outcome.storage, mib(plan.cache_size())),
            Span::Code(outcome.caches.clone()),
            ".",
        ],
        text![format!(
            "Load: NFSv3 over loopback TCP from user space, on the same machine as the server; a client is a connection of its own. \
             Sequential: 1 MiB records, four requests in flight for each client, {} over all clients, COMMIT timed. \
             Random: 4 KiB, one request in flight, {} for each client, FILE_SYNC, {} s for each phase. \
             Metadata: empty files in a directory for each client, one request in flight; 4 KiB files written FILE_SYNC.",
            mib(plan.data),
            mib(plan.random),
            plan.seconds
        )],
        text![
            "The page cache is dropped before each phase (except metadata and sync against async): what memory cannot hold comes from the \
             disks or from the SSDs. The published run had twice as much data as memory instead."
        ],
        text![
            "Cold: the server is stopped, its cache files are removed and made anew, the page cache is dropped, then one read."
        ],
        text![format!(
            "Warm: random pieces of 64 KiB are read three times over before random reads are measured{paced}."
        )],
        text![format!(
            "Every server starts anew for every measurement. Systems take turns within each number of clients. Figures are medians of {}; \
             brackets and bars are their range.",
            repeats(plan.repeat)
        )],
        text![loads(&outcome.cells)],
        text![
            "nfs-ganesha answers CREATE and REMOVE before they are on stable storage; Forebay answers after."
        ],
        text![format!(
            "Versions: {}. Measured from {} to {}.",
            versions(&outcome.cells),
            time(first),
            time(last)
        )],
        text![format!("Numbers of clients: {}{threads}.", list(&plan.clients))],
    ];
    let repeat = text![
        "Repeat it: ",
        Span::Code(again(plan, outcome.quick)),
        ". All results are in cells/ of its working directory, as JSON.",
    ];
    let machines = machines(outcome.cells.iter().map(|cell| &cell.report));
    Section::new(
        "Method, machine, versions",
        vec![Part::List(items), Part::Table(machines), Part::Text(repeat)],
    )
}

/// Returns a sentence about the load of the machine when the measurements began.
fn loads(cells: &[Cell]) -> String {
    let loads: Vec<f64> = cells.iter().map(|cell| cell.load).collect();
    let highest = loads.iter().copied().fold(0.0, f64::max);
    format!(
        "Load average when measurements began, over a minute: median {:.1}, highest {highest:.1}. \
         What the measurements before them ran is in it, too.",
        median(&loads)
    )
}

/// Returns the versions of all measured systems, each once.
fn versions(cells: &[Cell]) -> String {
    let mut versions: Vec<String> = Vec::new();
    for cell in cells {
        let name = if cell.key.system == System::Ganesha { "nfs-ganesha" } else { "Forebay" };
        let version = format!("{name} {}", cell.version);
        if !versions.contains(&version) {
            versions.push(version);
        }
    }
    versions.join(", ")
}

fn list(clients: &[u32]) -> String {
    clients.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// Returns the command that repeats the measurements. The numbers of clients are left out if the full run picked
/// them.
fn again(plan: &Plan, quick: bool) -> String {
    let quick = if quick { " --quick" } else { "" };
    let keep = if plan.drops_caches { "" } else { " --keep-page-cache" };
    let clients = match plan.threads.as_slice() {
        [] => format!(" --clients {}", list(&plan.clients).replace(' ', "")),
        _ => String::new(),
    };
    let Plan { repeat, seconds, .. } = plan;
    let data = Size(plan.data);
    format!("forebay bench paper{quick}{keep}{clients} --repeat {repeat} --seconds {seconds} --data {data}")
}
