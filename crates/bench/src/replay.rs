//! `bench replay`: carries out the operations of a trace on an NFSv3 server.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use clap::Args;
use forebay_profile::{Kind, Moved, TraceEnd, TraceFile, TraceRecord, decode_trace};

use crate::engine::MAX_DEPTH;
use crate::job::{Group, Step};
use crate::options::{Options, Pattern, Size};
use crate::part::{Alone, Part};
use crate::phases::Phases;
use crate::protocol::Link;
use crate::result::Report;
use crate::runner::{Runner, now};
use crate::settings::Settings;
use crate::setup::{DIRECTORY, Phase};
use crate::url::Target;
use crate::workload::{Replay, ReplayPlan, ReplayStep, Workload};

/// Bytes of a WRITE that fills a file before the replay.
const FILL: u32 = 1 << 20;
/// Clients that fill files.
const FILLERS: usize = 4;
const FILL_DEPTH: u16 = 8;

/// Arguments of `bench replay`.
#[derive(Debug, Args)]
pub struct ReplayArgs {
    /// Trace written by `forebay profile record`.
    trace: PathBuf,
    /// The export: nfs://HOST[:PORT]/EXPORT[?OPTION&...]; options: mountport=N, tls=FILE (authorities in PEM form for
    /// TLS), cert=FILE and key=FILE (of the client).
    #[arg(long)]
    url: Target,
    /// Begin each operation as soon as possible, not at its time in the trace.
    #[arg(long)]
    fast: bool,
    /// Requests that each client has in flight at most.
    #[arg(long, short = 'd', default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=i64::from(MAX_DEPTH)))]
    depth: u16,
    /// Most bytes of all files together that are filled first; a trace that needs more is refused
    #[arg(long, value_name = "SIZE", default_value = "1T")]
    fill_at_most: Size,
    /// Do not fill the files first: READs of parts that the trace does not write find holes.
    #[arg(long)]
    no_fill: bool,
    /// User id of the clients.
    #[arg(long, default_value_t = 0)]
    uid: u32,
    /// Name of this measurement in reports [default: the URL].
    #[arg(long, value_name = "NAME")]
    label: Option<String>,
    /// Write the result to this file as JSON; `-` is the standard output.
    #[arg(long, short = 'o', value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
}

/// Replays a trace.
///
/// # Errors
/// The trace cannot be read, or the first failure of the server, in one sentence.
pub(crate) fn replay(args: &ReplayArgs) -> Result<Report> {
    let records = load(&args.trace)?;
    let sizes = sizes(&records);
    if !args.no_fill {
        tell_fill(&sizes, args.fill_at_most)?;
    }
    let settings = Settings {
        uid: args.uid,
        label: args.label.clone(),
        command: std::env::args().collect(),
        ..Settings::of(args.url.clone())
    };
    let gate = &mut Alone;
    let mut runner = Runner::new(settings, Part::WHOLE, gate)?;
    let report = runner.replay(&records, &sizes, args);
    let root = runner.setup.session.root;
    let removed = runner.remove(root, DIRECTORY.as_bytes());
    runner.close();
    let report = report?;
    removed?;
    Ok(report)
}

/// Reads a trace. Says what it lacks.
fn load(path: &Path) -> Result<Vec<TraceRecord>> {
    let bytes =
        std::fs::read(path).with_context(|| format!("the trace {} cannot be read", path.display()))?;
    let TraceFile { records, end } =
        decode_trace(&bytes).map_err(|error| anyhow::anyhow!("cannot replay {}: {error}", path.display()))?;
    if records.is_empty() {
        bail!("the trace {} has no operations: record it while clients work", path.display());
    }
    match end {
        None => eprintln!(
            "Warning: the trace {} has no end, and may be cut short: it has {} operations.",
            path.display(),
            records.len()
        ),
        Some(TraceEnd { lost: 0, .. }) => {}
        Some(TraceEnd { lost, .. }) => eprintln!(
            "Warning: the trace {} lacks {lost} operations, which came faster than they could be recorded.",
            path.display()
        ),
    }
    Ok(records)
}

/// Says how much is filled before the replay.
///
/// # Errors
/// It is more than `most`.
fn tell_fill(sizes: &[u64], most: Size) -> Result<()> {
    let total = sizes.iter().fold(0_u64, |total, size| total.saturating_add(*size));
    let shown = Size(total);
    if total > most.0 {
        bail!(
            "the files of the trace have {shown}, more than --fill-at-most {most}; allow more, or do not fill them (--no-fill)"
        );
    }
    eprintln!("Filling {} files with {shown} in all before the replay.", sizes.len());
    Ok(())
}

/// Returns the size that each file needs: the largest end of a READ or WRITE that moved data. A READ behind the end of
/// its file moved none.
fn sizes(records: &[TraceRecord]) -> Vec<u64> {
    let mut sizes: Vec<u64> = Vec::new();
    for record in records {
        let Some(file) = record.file.map(|file| file as usize) else { continue };
        if sizes.len() <= file {
            sizes.resize(file + 1, 0);
        }
        let moved = record.moved.filter(|moved| moved.len > 0);
        let end = moved.map_or(0, |moved| moved.offset.saturating_add(moved.len.into()));
        sizes[file] = sizes[file].max(end);
    }
    sizes
}

/// Returns the steps of each client, in the order of the clients' numbers.
fn by_client(records: &[TraceRecord]) -> Vec<Vec<ReplayStep>> {
    let mut clients: Vec<Vec<ReplayStep>> = Vec::new();
    for record in records {
        let client = record.client as usize;
        if clients.len() <= client {
            clients.resize(client + 1, Vec::new());
        }
        let TraceRecord { at_us, kind, file, moved, .. } = *record;
        let file = file.map(|file| file as usize);
        clients[client].push(ReplayStep { at: Duration::from_micros(at_us), kind, file, moved });
    }
    clients
}

/// Returns the WRITEs that fill files, dealt out to several clients.
fn fill(sizes: &[u64]) -> Vec<Vec<ReplayStep>> {
    let mut clients = vec![Vec::new(); FILLERS];
    for (file, size) in sizes.iter().enumerate() {
        for (number, offset) in (0..*size).step_by(FILL as usize).enumerate() {
            let len = (size - offset).min(FILL.into()) as u32;
            let moved = Some(Moved { offset, len, stable: false });
            let step = ReplayStep { at: Duration::ZERO, kind: Kind::Write, file: Some(file), moved };
            clients[(file + number) % FILLERS].push(step);
        }
    }
    clients
}

impl Runner<'_> {
    /// Makes the files of a trace, fills them, and then carries out its operations, one connection for each client.
    /// Keeps the times of the trace unless `--fast`.
    fn replay(&mut self, records: &[TraceRecord], sizes: &[u64], args: &ReplayArgs) -> Result<Report> {
        let top = self.setup.dir;
        let dir = self.setup.session.directory(&top, "replay")?;
        let mut files = Vec::new();
        for number in 0..sizes.len() {
            let name = format!("f{number}");
            let file = self.setup.session.file(&dir, &name)?;
            files.push((name, file));
        }
        let plan = |keeps_time| {
            let late_ns = AtomicU64::new(0);
            Arc::new(ReplayPlan { dir, files: files.clone(), keeps_time, late_ns })
        };
        if !args.no_fill {
            let parts = parts(&plan(false), fill(sizes), FILL_DEPTH);
            self.in_batches(Phase { name: "filling files".to_owned(), parts }, &Options::default())?;
        }
        let started = now();
        let plan = plan(!args.fast);
        let parts = parts(&plan, by_client(records), args.depth);
        let options =
            Options { clients: parts.len() as u32, depth: args.depth, uid: args.uid, ..Options::default() };
        let links: Result<Vec<Link>> =
            (0..options.clients).map(|client| self.connect(client, &options)).collect();
        let phase = Phase { name: "replay".to_owned(), parts };
        let (measured, links) = self.measure(0, phase, links?, None, None)?;
        links.into_iter().for_each(Link::close);
        if !args.fast {
            let late = Duration::from_nanos(plan.late_ns.load(Ordering::Relaxed));
            eprintln!("Operations began at most {} ms later than in the trace.", late.as_millis());
        }
        let group = Group { pattern: Pattern::Replay, options };
        let step = Step { name: Some("replay".to_owned()), seconds: None, groups: vec![group] };
        let mut phases = Phases::default();
        phases.add(&step, "replay".to_owned(), &measured);
        Ok(phases.report(&self.settings, started))
    }
}

/// Returns a workload for each client with its steps, and the number of requests that it may have in flight.
fn parts(plan: &Arc<ReplayPlan>, clients: Vec<Vec<ReplayStep>>, depth: u16) -> Vec<(Box<dyn Workload>, u16)> {
    let part = |(client, steps)| {
        let replay: Box<dyn Workload> = Box::new(Replay::new(plan.clone(), client, steps, depth));
        (replay, depth)
    };
    (0..).zip(clients).map(part).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(client: u32, kind: Kind, file: u32, range: Option<(u64, u32)>) -> TraceRecord {
        let moved = range.map(|(offset, len)| Moved { offset, len, stable: false });
        TraceRecord { at_us: 5, client, kind, failed: false, file: Some(file), moved }
    }

    #[test]
    fn a_read_behind_the_end_fills_nothing_and_too_much_is_refused() {
        let records = [
            record(0, Kind::Read, 0, Some((1 << 60, 0))),
            record(0, Kind::Write, 0, Some((4096, 4096))),
            record(0, Kind::Write, 1, Some((1 << 50, 4096))),
        ];
        let sizes = sizes(&records);
        assert_eq!(sizes, [8192, (1 << 50) + 4096]);
        assert!(tell_fill(&sizes[..1], Size(8192)).is_ok());
        let refused = tell_fill(&sizes, Size(1 << 40)).unwrap_err().to_string();
        assert!(refused.contains("more than --fill-at-most 1T"), "{refused}");
        assert!(tell_fill(&[u64::MAX, u64::MAX], Size(1 << 40)).is_err());
    }

    #[test]
    fn files_are_as_large_as_the_trace_needs_and_filled_once() {
        let records = [
            record(1, Kind::Read, 2, Some((3 << 20, 4096))),
            record(0, Kind::Write, 0, Some((0, 10))),
            record(1, Kind::Getattr, 1, None),
        ];
        let sizes = sizes(&records);
        assert_eq!(sizes, [10, 0, (3 << 20) + 4096]);
        let mut filled: Vec<_> =
            fill(&sizes).concat().iter().map(|step| (step.file, step.moved.unwrap())).collect();
        filled.sort_by_key(|(file, moved)| (*file, moved.offset));
        let ends: Vec<_> =
            filled.iter().map(|(file, moved)| (file.unwrap(), moved.offset, moved.len)).collect();
        let mib = 1 << 20;
        assert_eq!(ends, [(0, 0, 10), (2, 0, FILL), (2, mib, FILL), (2, 2 * mib, FILL), (2, 3 * mib, 4096)]);
        assert_eq!(by_client(&records).iter().map(Vec::len).collect::<Vec<_>>(), [1, 2]);
    }
}
