//! Makes measurements one after the other. Each server runs on the slow storage and starts with empty caches.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::cell::{Cell, Key};
use super::plan::{Plan, Test};
use super::storage::Storage;
use super::system::{self, Place, Server, System};
use crate::job::Job;
use crate::result::Report;

/// Returns the load average over one minute, the first figure of proc_loadavg(5).
fn load_average() -> Result<f64> {
    let text = std::fs::read_to_string("/proc/loadavg").context("/proc/loadavg cannot be read")?;
    let first = text.split(' ').next().and_then(|figure| figure.parse().ok());
    first.context("/proc/loadavg has no number in its first field")
}

/// The storage with its test data, and the places for the servers' files.
pub(super) struct Rig {
    plan: Plan,
    place: Place,
    storage: Storage,
    /// Names of directories that already have their data.
    prepared: HashSet<String>,
}

impl Rig {
    /// Makes a rig that has measured nothing. `caches` is the directory of the cache files.
    pub(super) fn new(plan: Plan, work: PathBuf, caches: PathBuf, storage: Storage) -> Self {
        let place = Place { work, caches, cache_size: plan.cache_size() };
        Self { plan, place, storage, prepared: HashSet::new() }
    }

    /// Returns the directory of the results.
    pub(super) fn work(&self) -> &Path {
        &self.place.work
    }

    /// Removes the storage.
    pub(super) fn down(self) -> Result<()> {
        self.storage.down()
    }

    /// Checks that a system can be measured on this machine.
    pub(super) fn probe(&self, system: System) -> Result<()> {
        if system == System::Ganesha {
            return system::ganesha_version().map(drop);
        }
        Server::start(system, &self.storage.dir("probe")?, &self.place)?.stop()
    }

    /// Makes one measurement.
    pub(super) fn measure(&mut self, key: Key) -> Result<Cell> {
        let Key { test, clients, system, .. } = key;
        let plan = self.plan.clone();
        let load = load_average()?;
        let mut disk = Vec::new();
        let reports = match test {
            Test::Sequential => self.alone(system, test, &plan.sequential(clients), true)?,
            Test::Shared => self.alone(system, test, &plan.shared(clients), true)?,
            Test::Metadata => self.alone(system, test, &plan.metadata(clients), false)?,
            Test::SmallFiles => self.alone(system, test, &plan.small_files(clients), false)?,
            Test::Promise => self.alone(system, test, &plan.promise(clients), false)?,
            Test::Random => self.random(system, clients)?,
            Test::Cold => self.cold(system, clients)?,
            Test::Trace => {
                self.prepare("random", &plan.prepare_random())?;
                let server = Server::start(system, &self.storage.dir("random")?, &self.place)?;
                let watch = self.storage.watch();
                let report = self.run(&server, &plan.trace(clients), true, true);
                disk = watch.samples();
                self.finish(system, server)?;
                vec![report?]
            }
        };
        let mut reports = reports.into_iter();
        let mut report = reports.next().context("the job has no phases")?;
        report.phases.extend(reports.flat_map(|report| report.phases));
        report.label = Some(system.name().to_owned());
        let version = system::version(system)?;
        Ok(Cell { key, version, load, report, disk })
    }

    /// Runs a job on a server. With `cold`, the page cache is dropped before each phase, unless the plan keeps it.
    fn run(&self, server: &Server, job: &Job, cold: bool, keep: bool) -> Result<Report> {
        server.run(job, cold && self.plan.drops_caches, keep)
    }

    /// Runs a job that makes its own files and removes them.
    fn alone(&self, system: System, test: Test, job: &Job, cold: bool) -> Result<Vec<Report>> {
        let server = Server::start(system, &self.storage.dir(test.name())?, &self.place)?;
        let report = self.run(&server, job, cold, false);
        self.finish(system, server)?;
        Ok(vec![report?])
    }

    /// Measures random writes, then random reads of data that were read before. Emulated disks have their delays only
    /// while a measurement runs.
    fn random(&mut self, system: System, clients: u32) -> Result<Vec<Report>> {
        let plan = self.plan.clone();
        self.prepare("random", &plan.prepare_random())?;
        let server = Server::start(system, &self.storage.dir("random")?, &self.place)?;
        let written = self.run(&server, &plan.random_write(clients), true, true)?;
        if system.is_cached() {
            self.storage.without_pace(|| {
                server.flush()?;
                server.run(&plan.warm_up(clients), false, true).map(drop)
            })?;
        }
        let read = self.run(&server, &plan.random_read(clients), true, true)?;
        self.finish(system, server)?;
        Ok(vec![written, read])
    }

    /// Measures each kind of cold read with a newly started server and new cache files.
    fn cold(&mut self, system: System, clients: u32) -> Result<Vec<Report>> {
        let name = format!("cold-{clients}");
        let plan = self.plan.clone();
        self.prepare(&name, &plan.prepare_cold(clients))?;
        let jobs = [plan.cold_sequential(clients), plan.cold_random(clients)];
        let one = |job| {
            let server = Server::start(system, &self.storage.dir(&name)?, &self.place)?;
            let report = self.run(&server, &job, true, true)?;
            self.finish(system, server)?;
            Ok(report)
        };
        jobs.into_iter().map(one).collect()
    }

    /// Flushes a server's cache to the storage and stops the server. The flush is needed because the cache files are
    /// removed.
    fn finish(&self, system: System, server: Server) -> Result<()> {
        if system.is_cached() {
            self.storage.without_pace(|| server.flush())?;
        }
        server.stop()
    }

    /// Fills a directory, without a cache and without the delays of the disks.
    fn prepare(&mut self, name: &str, job: &Job) -> Result<()> {
        if self.prepared.contains(name) {
            return Ok(());
        }
        // Memory does not suffice for the data of several numbers of clients, so only the current one keeps its data.
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
