//! The page of `bench paper`: our ratios beside the published ones.

use anyhow::Result;
use maud::{Markup, html};

use super::cell::by_system;
use super::plan::Plan;
use super::published::{FIGURES, Figure};
use super::system::System;
use super::verdict::{Verdict, peak, shown, verdict};
use super::{Outcome, trace};
use crate::report::charts;
use crate::report::page::{document, figures, grouped, machine_table, machines, numbers, table, time};
use crate::report::topic::{Topic, topics};

/// The whole page.
///
/// # Errors
/// Where a plot cannot be drawn.
pub(super) fn page(outcome: &Outcome) -> Result<String> {
    let reports = by_system(&outcome.cells);
    let topics = topics(&reports);
    let find = |name: &str| topics.iter().find(|topic| topic.name == name);
    let lead = html! {
        p { "The tests of a published white paper on NFS with an SSD cache, made anew on this machine: the same loads, scaled, on "
            "nfs-ganesha as the independent baseline and on Forebay in its modes, in turn. What compares is the ratio to "
            "the baseline, not the figure: the published hardware was larger." }
        @if outcome.quick {
            p.note { "A quick run: little data, short phases, " (repeats(outcome.plan.repeat)) ". It shows directions; for figures "
                "to rely on, leave --quick out." }
        }
    };
    let mut sections = Vec::new();
    for figure in &FIGURES {
        if let Some(topic) = find(figure.phase) {
            sections.push(section(figure, topic)?);
        }
    }
    let durable = find("durable small file").map(durable).transpose()?;
    let saved = trace::section(&outcome.cells)?;
    let promise = promise(find("random write, async"), find("random write, sync"));
    let shared = shared(&topics);
    let body = html! {
        (summary(&topics))
        (absent(outcome))
        @for part in &sections { (part) }
        @if let Some(durable) = durable { (durable) }
        @if let Some(saved) = saved { (saved) }
        @if let Some(promise) = promise { (promise) }
        @if let Some(shared) = shared { (shared) }
        (method(outcome))
    };
    Ok(document("The published figures, on this machine", &lead, &body))
}

fn repeats(count: u32) -> String {
    if count == 1 { "one repeat".to_owned() } else { format!("{count} repeats") }
}

fn times(ratio: Option<f64>) -> String {
    ratio.map_or_else(|| "-".to_owned(), shown)
}

/// All figures in one table, then what was won and what was lost.
fn summary(topics: &[Topic<'_>]) -> Markup {
    let head = [
        "figure",
        "test",
        "published: baseline",
        "published: write-back",
        "published: ratio",
        "here: baseline",
        "here: pass-through",
        "here: write-back",
        "here: write-through",
        "verdict",
    ];
    let found = || {
        FIGURES
            .iter()
            .filter_map(|figure| Some((figure, topics.iter().find(|topic| topic.name == figure.phase)?)))
    };
    let rows: Vec<Vec<Markup>> = found()
        .map(|(figure, topic)| {
            let ratio = |system| times(super::verdict::ratio(topic, system));
            let baseline = peak(topic, System::Ganesha);
            vec![
                html! { (figure.number) },
                html! { a href={ "#f" (figure.number) } { (figure.phase) } },
                html! { (figure.baseline) },
                html! { (figure.write_back) },
                html! { (times(figure.ratio)) },
                html! { @if let Some(rate) = baseline { (grouped(rate)) " " (topic.unit().name()) } @else { "-" } },
                html! { (ratio(System::PassThrough)) },
                html! { (ratio(System::WriteBack)) },
                html! { (ratio(System::WriteThrough)) },
                verdict(topic).show(),
            ]
        })
        .collect();
    let list = |wanted: fn(&Verdict) -> bool| {
        let names: Vec<String> = found()
            .filter(|(_, topic)| wanted(&verdict(topic)))
            .map(|(figure, topic)| format!("{} ({})", figure.phase, verdict(topic).words()))
            .collect();
        if names.is_empty() { "nothing".to_owned() } else { names.join("; ") }
    };
    html! {
        section.summary {
            h2 { "Where we win, where we lose" }
            p { "Peaks over the numbers of clients, divided by the baseline's peak. The verdict is about write-back, or about "
                "pass-through where this build has no cache; within 5 % (10 % without repeats) counts as even." }
            (table(&head, &rows))
            p { "Creating and removing: the baseline answers before anything is durable; "
                "the same promise on both is compared under " a href="#durable" { "small files, durable on both" } "." }
            p { b.win { "Ahead of the baseline: " } (list(|verdict| matches!(verdict, Verdict::Win(..)))) "." }
            p { b.lose { "Behind it: " } (list(|verdict| matches!(verdict, Verdict::Lose(..)))) "." }
            p { b.even { "Even: " } (list(|verdict| matches!(verdict, Verdict::Even(..)))) "." }
        }
    }
}

fn absent(outcome: &Outcome) -> Markup {
    html! {
        @if !outcome.missing.is_empty() || !outcome.failed.is_empty() {
            section {
                h2 { "What is missing" }
                ul {
                    @for (system, why) in &outcome.missing {
                        li { b { (system.name()) } ": not available in this build or on this machine. " span.note { (why) } }
                    }
                    @for (key, why) in &outcome.failed {
                        li { b { (key.describe()) } ": failed. " span.note { (why) } }
                    }
                }
            }
        }
    }
}

fn section(figure: &Figure, topic: &Topic<'_>) -> Result<Markup> {
    let plots = charts::plots(topic);
    // Where several numbers of clients were measured, the first three are against clients.
    let drawn = figures(&plots[..plots.len().min(4)])?;
    Ok(html! {
        section {
            h2 id={ "f" (figure.number) } { "Figure " (figure.number) ": " (figure.phase) }
            p { (figure.note) }
            p { "Published: baseline " (figure.baseline) "; write-back " (figure.write_back) "; write-through "
                (figure.write_through) ". Here: " (verdict(topic).sentence(figure.ratio)) }
            (drawn)
            (numbers(topic))
        }
    })
}

/// Small files where both servers make the same promise.
fn durable(topic: &Topic<'_>) -> Result<Markup> {
    let drawn = figures(&charts::plots(topic)[..1])?;
    Ok(html! {
        section {
            h2 #durable { "Small files, durable on both" }
            p { "CREATE, then 4 KiB written FILE_SYNC: here nfs-ganesha, too, has to wait for stable storage, so this is a fairer "
                "comparison than figure 9. It still waits once for each file, Forebay twice: CREATE is durable by itself. " (verdict(topic).sentence(None)) }
            (drawn)
            (numbers(topic))
        }
    })
}

/// What an `async` export gives, and what it costs to keep the promise.
fn promise(unsafe_writes: Option<&Topic<'_>>, sync: Option<&Topic<'_>>) -> Option<Markup> {
    let (unsafe_writes, sync) = (unsafe_writes?, sync?);
    let rows: Vec<Vec<Markup>> = System::ALL
        .iter()
        .filter_map(|system| {
            let (fast, safe) = (peak(unsafe_writes, *system)?, peak(sync, *system)?);
            let baseline = peak(unsafe_writes, System::Ganesha).map(|baseline| safe / baseline);
            Some(vec![
                html! { (system.name()) },
                html! { (grouped(fast)) },
                html! { (grouped(safe)) },
                html! { (times(Some(safe / fast))) },
                html! { (times(baseline)) },
            ])
        })
        .collect();
    let head =
        ["", "async: no promise, /s", "sync: FILE_SYNC, /s", "sync / async", "sync / baseline's async"];
    Some(html! {
        section {
            h2 { "Sync against async" }
            p { "An export with async answers writes before anything is stable: published 111,000 random writes a second, against low "
                "thousands with sync; a crash loses data. Here async is a client that asks for no promise (UNSTABLE, COMMIT "
                "only at the end of the run): the same to the server, without the lie. The last column is the aim: the speed of "
                "async with the safety of sync. A small amount of data, so that COMMIT does not decide." }
            (table(&head, &rows))
        }
    })
}

/// All clients in one file, beside a file for each.
fn shared(topics: &[Topic<'_>]) -> Option<Markup> {
    let find = |name: &str| topics.iter().find(|topic| topic.name == name);
    let pairs = [
        ("N-1 segmented write", "sequential write", "0.95 (19.3 of 20.4 GB/s)"),
        ("N-1 segmented read", "sequential read, warm", "1.02 (24.8 of 24.2 GB/s)"),
        ("N-1 strided write", "sequential write", "not given"),
        ("N-1 strided read", "sequential read, warm", "not given"),
    ];
    let rows: Vec<Vec<Markup>> = pairs
        .iter()
        .filter_map(|(name, separate, published)| Some((find(name)?, find(separate)?, name, published)))
        .flat_map(|(topic, separate, name, published)| {
            System::ALL.iter().filter_map(move |system| {
                let rate = peak(topic, *system)?;
                let clients = topic.clients().first().copied()?;
                let beside = super::verdict::rate_at(separate, *system, clients);
                Some(vec![
                    html! { (name) },
                    html! { (system.name()) },
                    html! { (clients) },
                    html! { (grouped(rate)) },
                    html! { (times(beside.map(|beside| rate / beside))) },
                    html! { (published) },
                ])
            })
        })
        .collect();
    let head = ["test", "", "clients", "MiB/s", "against a file each", "published (parallel file system)"];
    (!rows.is_empty()).then(|| {
        html! {
            section {
                h2 { "All clients in one file (N-1)" }
                p { "Segmented: each client has one piece. Strided: records of 1 MiB alternate. Published figures are of a parallel "
                    "file system on eight enclosures; only the ratio to a file for each client compares with one server. Its metadata "
                    "figures come from an all-flash cluster and do not compare." }
                (table(&head, &rows))
            }
        }
    })
}

fn method(outcome: &Outcome) -> Markup {
    let plan = &outcome.plan;
    let machines = machines(outcome.cells.iter().map(|cell| &cell.report));
    let first = outcome.cells.iter().map(|cell| cell.report.started).min().unwrap_or_default();
    let last = outcome.cells.iter().map(|cell| cell.report.started).max().unwrap_or_default();
    let mib = |bytes: u64| format!("{} MiB", bytes >> 20);
    html! {
        section {
            h2 { "Method, machine, versions" }
            ul {
                li { "Storage: " (outcome.storage) ". Cache files: two of " (mib(plan.cache_size())) " in " code { (outcome.caches) } "." }
                li { "Load: NFSv3 over loopback TCP from user space, on the same machine as the server; a client is a connection of its own. "
                    "Sequential: 1 MiB records, four requests in flight for each client, " (mib(plan.data)) " over all clients, COMMIT timed. "
                    "Random: 4 KiB, one request in flight, " (mib(plan.random)) " for each client, FILE_SYNC, " (plan.seconds) " s for each phase. "
                    "Metadata: empty files in a directory for each client, one request in flight." }
                li { "The page cache is dropped before each phase (except metadata and sync against async): what memory cannot hold comes from the "
                    "disks or from the SSDs. The published run had twice as much data as memory instead." }
                li { "Cold: the server is stopped, its cache files are removed and made anew, the page cache is dropped, then one read." }
                li { "Warm: random pieces of 64 KiB are read three times over before random reads are measured"
                    @if outcome.storage.starts_with("emulated") { ", while the emulated disks keep no pace" } "." }
                li { "Every server starts anew for every measurement. Systems take turns within each number of clients. " (repeats(plan.repeat))
                    "; plots show medians, bars their range; tables give lowest and highest." }
                li { "nfs-ganesha answers CREATE and REMOVE before they are on stable storage; Forebay answers after." }
                li { "Versions: Forebay " (env!("CARGO_PKG_VERSION")) ", nfs-ganesha " (outcome.ganesha.as_deref().unwrap_or("not there"))
                    ". Measured from " (time(first)) " to " (time(last)) "." }
                li { "Numbers of clients: " (list(&plan.clients)) @if !plan.threads.is_empty() { "; metadata also " (list(&plan.threads)) } "." }
            }
            (machine_table(&machines))
            p.note { "Repeat it: " code { (again(plan, outcome.quick)) } ". All results are in cells/ of its working directory, as JSON." }
        }
    }
}

fn list(clients: &[u32]) -> String {
    clients.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

fn again(plan: &Plan, quick: bool) -> String {
    let quick = if quick { " --quick" } else { "" };
    format!(
        "forebay bench paper{quick} --clients {} --repeat {}",
        list(&plan.clients).replace(' ', ""),
        plan.repeat
    )
}
