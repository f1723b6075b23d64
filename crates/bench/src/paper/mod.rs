//! `bench paper`: the published tests on this machine, one system after the other, and a page that sets our ratios beside the
//! published ones.

mod cell;
mod page;
mod plan;
mod published;
mod storage;
mod system;
mod trace;
mod verdict;

use std::collections::HashSet;
use std::io::IsTerminal as _;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::options::Size;
use crate::report;
use crate::result::{Machine, Report};
use cell::{Cell, Key};
use plan::{Plan, Test};
use storage::Storage;
use system::{Place, Server, System};

/// Arguments of `bench paper`.
#[derive(Debug, Args)]
pub struct PaperArgs {
    /// Less data, less time, fewer numbers of clients: within ten minutes on two cores.
    #[arg(long)]
    quick: bool,
    /// The page to write.
    #[arg(long, short = 'o', value_name = "FILE", default_value = "report.html")]
    output: PathBuf,
    /// Where results, logs and state are kept while it runs.
    #[arg(long, value_name = "DIR", default_value = "forebay-paper")]
    dir: PathBuf,
    /// Go on with what an interrupted run has left in --dir.
    #[arg(long)]
    resume: bool,
    /// Measure on this directory instead of an emulated array.
    #[arg(long, value_name = "DIR", conflicts_with = "model")]
    array: Option<PathBuf>,
    /// Model of the emulated array, as `bench array list` shows them [default: what suits this machine].
    #[arg(long)]
    model: Option<String>,
    /// Where the cache files are: a directory on an SSD [default: --dir].
    #[arg(long, value_name = "DIR")]
    cache_dir: Option<PathBuf>,
    /// What to measure [default: all].
    #[arg(long, value_name = "NAME,NAME", value_delimiter = ',')]
    systems: Vec<System>,
    /// Numbers of clients [default: 1 to 64 as published].
    #[arg(long, value_name = "N,N", value_delimiter = ',')]
    clients: Vec<u32>,
    /// Seconds of each random phase.
    #[arg(long)]
    seconds: Option<f64>,
    /// Bytes of sequential data over all clients.
    #[arg(long, value_name = "SIZE")]
    data: Option<Size>,
    /// How often each measurement is made.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    repeat: Option<u32>,
}

/// A paper under way.
struct Paper {
    plan: Plan,
    work: PathBuf,
    place: Place,
    storage: Storage,
    /// Directories that hold their data already.
    prepared: HashSet<String>,
}

/// What the page is made of.
struct Outcome {
    plan: Plan,
    quick: bool,
    storage: String,
    caches: String,
    ganesha: Option<String>,
    cells: Vec<Cell>,
    /// Systems that cannot be measured here, and why.
    missing: Vec<(System, String)>,
    /// Measurements that failed, and why.
    failed: Vec<(Key, String)>,
}

/// Measures what is not there yet and writes the page. `daemon`: the arguments that lead to the verbs of the emulated
/// array.
///
/// # Errors
/// Where there is no storage to measure, or nothing could be measured at all.
pub fn run(args: &PaperArgs, daemon: &[&str]) -> Result<()> {
    let plan = Plan::new(args, &Machine::this())?;
    std::fs::create_dir_all(&args.dir).with_context(|| format!("{} cannot be made", args.dir.display()))?;
    let work = args.dir.canonicalize()?;
    let _lock = cell::open(&work, &plan, args.resume)?;
    let caches = match &args.cache_dir {
        Some(dir) => dir.canonicalize().with_context(|| format!("{} cannot be used", dir.display()))?,
        None => work.clone(),
    };
    let storage = match &args.array {
        Some(dir) => Storage::directory(dir)?,
        None => Storage::emulated(&plan.array, work.join("array"), daemon)?,
    };
    let place = Place { work: work.clone(), caches, cache_size: plan.cache_size() };
    let mut paper = Paper { plan, work, place, storage, prepared: HashSet::new() };
    let outcome = paper.measure_all(args);
    let written = outcome.and_then(|outcome| {
        if outcome.cells.is_empty() {
            let why = outcome.failed.into_iter().map(|(_, why)| why).next();
            bail!(
                "nothing could be measured: {}",
                why.unwrap_or_else(|| "no system is available".to_owned())
            );
        }
        report::write(&args.output, page::page(&outcome)?.as_bytes())
    });
    paper.storage.down()?;
    written
}

impl Paper {
    fn measure_all(&mut self, args: &PaperArgs) -> Result<Outcome> {
        let (mut systems, mut missing) = (Vec::new(), Vec::new());
        let wanted = |system: &System| args.systems.is_empty() || args.systems.contains(system);
        for system in System::ALL.into_iter().filter(wanted) {
            match self.probe(system) {
                Ok(()) => systems.push(system),
                Err(why) => missing.push((system, format!("{why:#}"))),
            }
        }
        let keys = keys(&self.plan, &systems);
        let (mut cells, mut failed) = (Vec::new(), Vec::new());
        let talks = std::io::stderr().is_terminal();
        for (number, key) in keys.iter().enumerate() {
            if let Some(cell) = key.load(&self.work)? {
                cells.push(cell);
                continue;
            }
            if talks {
                eprintln!("{}/{}: {}", number + 1, keys.len(), key.describe());
            }
            match self.measure(*key) {
                Ok(cell) => {
                    cell.save(&self.work)?;
                    cells.push(cell);
                }
                Err(why) => failed.push((*key, format!("{why:#}"))),
            }
        }
        Ok(Outcome {
            plan: self.plan.clone(),
            quick: args.quick,
            storage: self.storage.description.clone(),
            caches: self.place.caches.display().to_string(),
            ganesha: system::ganesha_version().ok(),
            cells,
            missing,
            failed,
        })
    }

    /// Whether a system can be measured here at all.
    fn probe(&self, system: System) -> Result<()> {
        if system == System::Ganesha {
            return system::ganesha_version().map(drop);
        }
        Server::start(system, &self.storage.dir("probe")?, &self.place)?.stop()
    }

    fn measure(&mut self, key: Key) -> Result<Cell> {
        let Key { test, clients, system, .. } = key;
        let plan = self.plan.clone();
        let mut disk = Vec::new();
        let reports = match test {
            Test::Sequential => self.alone(system, test, &plan.sequential(clients), true)?,
            Test::Shared => self.alone(system, test, &plan.shared(clients), true)?,
            Test::Metadata => self.alone(system, test, &plan.metadata(clients), false)?,
            Test::Promise => self.alone(system, test, &plan.promise(clients), false)?,
            Test::Random => self.random(system, clients)?,
            Test::Cold => self.cold(system, clients)?,
            Test::Trace => {
                self.prepare("random", &plan.prepare_random())?;
                let server = Server::start(system, &self.storage.dir("random")?, &self.place)?;
                let watch = self.storage.watch();
                let report = server.run(&plan.trace(clients), true, true);
                disk = watch.samples();
                self.finish(system, server)?;
                vec![report?]
            }
        };
        let mut reports = reports.into_iter();
        let mut report = reports.next().context("nothing was measured")?;
        report.phases.extend(reports.flat_map(|report| report.phases));
        report.label = Some(system.name().to_owned());
        Ok(Cell { key, report, disk })
    }

    /// A job that makes its files and removes them.
    fn alone(&self, system: System, test: Test, job: &crate::job::Job, cold: bool) -> Result<Vec<Report>> {
        let server = Server::start(system, &self.storage.dir(test.name())?, &self.place)?;
        let report = server.run(job, cold, false);
        self.finish(system, server)?;
        Ok(vec![report?])
    }

    fn random(&mut self, system: System, clients: u32) -> Result<Vec<Report>> {
        let plan = self.plan.clone();
        self.prepare("random", &plan.prepare_random())?;
        let server = Server::start(system, &self.storage.dir("random")?, &self.place)?;
        let written = server.run(&plan.random_write(clients), true, true)?;
        if system.is_cached() {
            self.storage.without_pace(|| {
                server.flush()?;
                server.run(&plan.warm_up(clients), false, true).map(drop)
            })?;
        }
        let read = server.run(&plan.random_read(clients), true, true)?;
        self.finish(system, server)?;
        Ok(vec![written, read])
    }

    /// Each read with a server that has just started, with new cache files.
    fn cold(&mut self, system: System, clients: u32) -> Result<Vec<Report>> {
        let name = format!("cold-{clients}");
        let plan = self.plan.clone();
        self.prepare(&name, &plan.prepare_cold(clients))?;
        let jobs = [plan.cold_sequential(clients), plan.cold_random(clients)];
        let one = |job| {
            let server = Server::start(system, &self.storage.dir(&name)?, &self.place)?;
            let report = server.run(&job, true, true)?;
            self.finish(system, server)?;
            Ok(report)
        };
        jobs.into_iter().map(one).collect()
    }

    /// Stops a server, after it has written back what it has cached: its cache files are removed.
    fn finish(&self, system: System, server: Server) -> Result<()> {
        if system.is_cached() {
            self.storage.without_pace(|| server.flush())?;
        }
        server.stop()
    }

    /// Fills a directory, without any cache and without the pace of the disks.
    fn prepare(&mut self, name: &str, job: &crate::job::Job) -> Result<()> {
        if self.prepared.contains(name) {
            return Ok(());
        }
        // Only one number of clients is measured at a time; memory is not for all of them.
        for old in self.prepared.extract_if(|old| old.starts_with("cold-")) {
            self.storage.remove(&old)?;
        }
        let server = Server::start(System::PassThrough, &self.storage.dir(name)?, &self.place)?;
        self.storage.without_pace(|| server.run(job, false, true))?;
        server.stop()?;
        self.prepared.insert(name.to_owned());
        Ok(())
    }
}

/// Everything to be measured, systems in turn: a machine that changes its speed does so for all of them.
fn keys(plan: &Plan, systems: &[System]) -> Vec<Key> {
    let mut keys = Vec::new();
    for repeat in 0..plan.repeat {
        for test in Test::ALL {
            for clients in plan.clients_of(test) {
                keys.extend(systems.iter().map(|system| Key { test, clients, system: *system, repeat }));
            }
        }
    }
    keys
}
