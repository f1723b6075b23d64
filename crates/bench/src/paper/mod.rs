//! `bench paper`: runs the published tests on this machine, one system after the other. Its report compares the
//! measured ratios with the published ones.

mod cell;
mod compared;
mod document;
mod figures;
mod generator;
mod plan;
mod published;
mod rig;
mod storage;
mod system;
mod trace;
pub(crate) mod verdict;

use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::options::Size;
use crate::report::TextForm;
use crate::result::{Machine, Report};
use cell::{Cell, Key};
use plan::Plan;
use rig::Rig;
use system::System;

/// Arguments of `bench paper`.
#[derive(Debug, Args)]
pub struct PaperArgs {
    /// Less data, less time, fewer numbers of clients: within ten minutes on two cores.
    #[arg(long)]
    quick: bool,
    /// The report to write: a page (.html), its text and tables (.md), or both.
    #[arg(long, short = 'o', value_name = "FILE", default_value = "report.html")]
    output: Vec<PathBuf>,
    /// Directory for results, logs and state during the run.
    #[arg(long, value_name = "DIR", default_value = "forebay-paper")]
    dir: PathBuf,
    /// Continue an interrupted run in --dir; if all is measured, only write the report.
    #[arg(long)]
    resume: bool,
    /// Begin no measurement after this many minutes, and report the results so far; --resume continues.
    #[arg(long, value_name = "N")]
    minutes: Option<f64>,
    /// Measure on this directory instead of an emulated array.
    #[arg(long, value_name = "DIR", conflicts_with = "model")]
    array: Option<PathBuf>,
    /// Model of the emulated array, as `bench array list` shows them [default: one that fits this machine].
    #[arg(long)]
    model: Option<String>,
    /// Directory for the cache files, on an SSD [default: --dir].
    #[arg(long, value_name = "DIR")]
    cache_dir: Option<PathBuf>,
    /// Systems to measure [default: all].
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
    /// Leave the page cache of this host alone, to try the command on a host in use. Cold reads may be warm then.
    #[arg(long)]
    keep_page_cache: bool,
    /// Number of repeats of each measurement.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    repeat: Option<u32>,
}

/// The results and circumstances that the report shows.
struct Outcome {
    plan: Plan,
    quick: bool,
    storage: String,
    caches: String,
    /// Load generator against a server that costs nothing; `None` if not measured.
    generator: Option<Report>,
    cells: Vec<Cell>,
    /// Systems that cannot be measured on this machine, with the reason.
    missing: Vec<(System, String)>,
    /// Measurements that failed, with the reason.
    failed: Vec<(Key, String)>,
    /// Number of measurements for which the time was too short.
    left: usize,
}

/// Makes the missing measurements and writes the report. `daemon` is the list of arguments that lead to the verbs of
/// the emulated array.
///
/// # Errors
/// There is no storage to measure, or no measurement succeeded.
pub fn run(args: &PaperArgs, daemon: &[&str]) -> Result<()> {
    let forms: Result<Vec<TextForm>> = args.output.iter().map(|path| TextForm::of(path)).collect();
    let forms = forms?;
    let deadline = deadline(args.minutes)?;
    let plan = Plan::new(args, &Machine::this())?;
    std::fs::create_dir_all(&args.dir).with_context(|| format!("{} cannot be made", args.dir.display()))?;
    let work = args.dir.canonicalize()?;
    let _lock = cell::open(&work, &plan, args.resume)?;
    let caches = match &args.cache_dir {
        Some(dir) => dir.canonicalize().with_context(|| format!("{} cannot be used", dir.display()))?,
        None => work.clone(),
    };
    let mut outcome = Outcome {
        quick: args.quick,
        storage: storage::describe(args.array.as_deref(), &plan.array)?,
        caches: caches.display().to_string(),
        generator: generator::load(&work)?,
        cells: Vec::new(),
        missing: Vec::new(),
        failed: Vec::new(),
        left: 0,
        plan,
    };
    let wanted = |system: &System| args.systems.is_empty() || args.systems.contains(system);
    let systems: Vec<System> = System::ALL.into_iter().filter(wanted).collect();
    let complete = keys(&outcome.plan, &systems).iter().all(|key| key.is_there(&work));
    if complete && outcome.generator.is_some() {
        outcome.load(&work, &systems)?;
    } else {
        let storage = storage::Storage::prepare(args.array.as_deref(), &outcome.plan.array, &work, daemon)?;
        let mut rig = Rig::new(outcome.plan.clone(), work, caches, storage);
        let measured = outcome.measure(&mut rig, &systems, deadline);
        rig.down()?;
        measured?;
    }
    let report = document::document(&outcome);
    forms.iter().zip(&args.output).try_for_each(|(form, path)| form.write(path, &report))
}

/// Returns the end of the time that `--minutes` allows, or `None` without a limit.
fn deadline(minutes: Option<f64>) -> Result<Option<Instant>> {
    match minutes {
        Some(minutes) if !(minutes > 0.0 && minutes < 1e6) => bail!("--minutes must be a positive number"),
        Some(minutes) => Ok(Some(Instant::now() + Duration::from_secs_f64(minutes * 60.0))),
        None => Ok(None),
    }
}

impl Outcome {
    /// Loads the measurements. All of them exist.
    fn load(&mut self, work: &Path, systems: &[System]) -> Result<()> {
        for key in keys(&self.plan, systems) {
            self.cells.extend(key.load(work)?);
        }
        Ok(())
    }

    /// Makes the measurements that are missing.
    fn measure(&mut self, rig: &mut Rig, systems: &[System], deadline: Option<Instant>) -> Result<()> {
        if self.generator.is_none() {
            self.generator = Some(generator::measure(&self.plan, rig.work())?);
        }
        let mut available = Vec::new();
        for system in systems {
            match rig.probe(*system) {
                Ok(()) => available.push(*system),
                Err(why) => self.missing.push((*system, format!("{why:#}"))),
            }
        }
        let keys = keys(&self.plan, &available);
        let talks = std::io::stderr().is_terminal();
        for (number, key) in keys.iter().enumerate() {
            if let Some(cell) = key.load(rig.work())? {
                self.cells.push(cell);
                continue;
            }
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                self.left += 1;
                continue;
            }
            if talks {
                eprintln!("{}/{}: {}", number + 1, keys.len(), key.describe());
            }
            match rig.measure(*key) {
                Ok(cell) => {
                    cell.save(rig.work())?;
                    self.cells.push(cell);
                }
                Err(why) => self.failed.push((*key, format!("{why:#}"))),
            }
        }
        if self.cells.is_empty() {
            let failed =
                self.failed.iter().map(|(_, why)| why).chain(self.missing.iter().map(|(_, why)| why));
            let why =
                failed.map(String::as_str).next().unwrap_or("the time given with --minutes was too short");
            bail!("no measurement succeeded: {why}");
        }
        Ok(())
    }
}

/// Returns all measurements in order. Systems take turns, so that a change of the machine's speed affects all of
/// them.
fn keys(plan: &Plan, systems: &[System]) -> Vec<Key> {
    let mut keys = Vec::new();
    for repeat in 0..plan.repeat {
        for test in plan::Test::ALL {
            for clients in plan.clients_of(test) {
                keys.extend(systems.iter().map(|system| Key { test, clients, system: *system, repeat }));
            }
        }
    }
    keys
}
