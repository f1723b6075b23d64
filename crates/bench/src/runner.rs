//! Runs jobs: prepares files, starts the threads, draws the progress bar, collects the results.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, anyhow};

use crate::cleanup::Survey;
use crate::cpu;
use crate::engine::{self, Client, Live, Pace};
use crate::job::{Group, Job, Step};
use crate::options::{Options, Pattern, unit_of};
use crate::part::{Alone, Gate, Part};
use crate::phases::Phases;
use crate::progress;
use crate::protocol::{Handle, Link, MIN_SLOTS};
use crate::result::Report;
use crate::session::{Identity, Session};
use crate::settings::Settings;
use crate::setup::{DIRECTORY, Phase, Setup, TREE};
use crate::state;
use crate::stats::{Measured, Stats};
use crate::workload::{MetaPhase, Tree, Workload};

/// Most connections that fill files at one time.
const FILL_CLIENTS: usize = 32;
const REDRAW: Duration = Duration::from_millis(100);

/// A job in progress.
pub(crate) struct Runner<'g> {
    pub(crate) settings: Settings,
    pub(crate) setup: Setup,
    server_pid: Option<u32>,
    part: Part,
    gate: &'g mut dyn Gate,
    trees: HashMap<(usize, usize), Vec<Arc<Tree>>>,
}

/// Runs all steps, with their repeats, and removes the files.
///
/// # Errors
/// The first failure, in one sentence. The state file is written even after a failure.
pub fn run(settings: Settings, job: &Job) -> Result<Report> {
    run_part(settings, job, Part::WHOLE, &mut Alone)
}

/// Runs the clients of one host.
pub(crate) fn run_part(settings: Settings, job: &Job, part: Part, gate: &mut dyn Gate) -> Result<Report> {
    let mut runner = Runner::new(settings, part, gate)?;
    let result = runner.run(job);
    if let Some(path) = &runner.settings.state {
        state::save(path, runner.setup.files(), &runner.setup.promises())?;
    }
    let report = result?;
    if !runner.settings.keep && runner.settings.state.is_none() && part.leads() {
        let root = runner.setup.session.root;
        runner.remove(root, DIRECTORY.as_bytes())?;
    }
    runner.close();
    Ok(report)
}

/// Returns the current time in seconds since 1970.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

impl<'g> Runner<'g> {
    /// Connects to the server and prepares the directory of the runs. Finds the server's process if it is on this
    /// host, to count its processor time.
    pub(crate) fn new(settings: Settings, part: Part, gate: &'g mut dyn Gate) -> Result<Self> {
        let session = Session::open(
            &settings.target,
            settings.nfs,
            &identity(0, &Options { uid: settings.uid, ..Options::default() }),
        )?;
        let server_pid = settings.server_pid.or_else(|| {
            let local = settings.target.is_loopback().unwrap_or(false);
            local.then(|| cpu::listener_of(session.peer.address.port())).flatten()
        });
        let setup = Setup::new(session, settings.verify || settings.state.is_some(), part)?;
        Ok(Self { settings, setup, server_pid, part, gate, trees: HashMap::new() })
    }

    /// Ends the session of the preparation.
    pub(crate) fn close(self) {
        self.setup.session.close();
    }

    /// Removes a directory and everything below it.
    pub(crate) fn remove(&mut self, dir: Handle, name: &[u8]) -> Result<()> {
        let mut remove = || {
            let mut survey = Survey::of(&mut self.setup.session, dir, name)?;
            if let Some(phase) = survey.files_phase() {
                let options = Options { uid: self.settings.uid, ..Options::default() };
                self.in_batches(phase, &options)?;
            }
            survey.remove_dirs(&mut self.setup.session)
        };
        remove().context("cleaning up failed")
    }

    /// Removes the small files of runs that were interrupted.
    fn remove_leftovers(&mut self) -> Result<()> {
        let dir = self.setup.dir;
        for entry in self.setup.session.entries(&dir)? {
            if entry.name.starts_with(TREE.as_bytes()) {
                self.remove(dir, &entry.name)?;
            }
        }
        Ok(())
    }

    /// Runs all steps as often as the settings say, and returns the report. The first host also removes what
    /// interrupted runs have left.
    fn run(&mut self, job: &Job) -> Result<Report> {
        if self.part.leads() {
            self.remove_leftovers()?;
        }
        self.gate.wait("the start")?;
        let started = now();
        let mut phases = Phases::default();
        for _ in 0..self.settings.repeat {
            for (number, step) in job.steps.iter().enumerate() {
                let ran =
                    self.step(number, step).with_context(|| format!("the step {} failed", step.name()))?;
                for (name, measured) in ran {
                    phases.add(step, name, &measured);
                }
            }
        }
        Ok(phases.report(&self.settings, started))
    }

    /// Runs the phases of one step.
    fn step(&mut self, number: usize, step: &Step) -> Result<Vec<(String, Measured)>> {
        if let [Group { pattern: Pattern::Meta, options }] = step.groups.as_slice() {
            return self.meta_step(number, &step.name(), options);
        }
        let mut parts = Vec::new();
        for (group_number, group) in step.groups.iter().enumerate() {
            let group_parts = self.prepare((number, group_number), group, step.seconds.is_some())?;
            parts.extend(group_parts);
        }
        let phase = Phase { name: step.name(), parts };
        // The files may take longer to prepare than a lease lasts, so the clients connect afterwards.
        let mut links = Vec::new();
        for group in &step.groups {
            for client in self.part.clients(group.options.clients) {
                links.push(self.connect(client, &group.options)?);
            }
        }
        let (measured, links) = self.measure(number, phase, links, step.limit(), self.rate(step))?;
        links.into_iter().for_each(Link::close);
        Ok(vec![(step.name(), measured)])
    }

    /// Returns the operations per second for the clients of this host.
    fn rate(&self, step: &Step) -> Option<f64> {
        let total: u32 = step.groups.iter().map(|group| group.options.clients).sum();
        let here = self.part.clients(total).len();
        step.rate().filter(|_| here > 0).map(|rate| rate * here as f64 / f64::from(total))
    }

    /// Runs the phases of the pattern `meta` on one tree, over the same connections. Leaves out phases that make no
    /// sense for the options.
    fn meta_step(&mut self, number: usize, name: &str, options: &Options) -> Result<Vec<(String, Measured)>> {
        let trees = self.setup.trees(Pattern::Meta, options)?;
        let mut links = self.connect_all(options)?;
        let mut runs = Vec::new();
        for meta_phase in MetaPhase::ALL {
            // A promise after a crash belongs to the name with which a file was made, so checked files are not
            // renamed.
            let checked = trees.iter().any(|tree| tree.names.is_some());
            let nothing = match meta_phase {
                MetaPhase::Read | MetaPhase::OpenReadClose => options.item_size.0 == 0,
                MetaPhase::Rename => checked,
                _ => false,
            };
            if nothing {
                continue;
            }
            let mut phase = self.setup.meta(&trees, meta_phase, options.depth);
            phase.name = format!("{name}/{}", phase.name);
            let phase_name = phase.name.clone();
            let (measured, back) = self.measure(number, phase, links, None, options.rate)?;
            links = back;
            runs.push((phase_name, measured));
            if meta_phase == MetaPhase::Mkdir {
                self.setup.adopt_dirs(&trees)?;
            }
        }
        links.into_iter().for_each(Link::close);
        Ok(runs)
    }

    /// Makes the files that the clients of a group need, and returns the clients' workloads.
    fn prepare(
        &mut self,
        place: (usize, usize),
        group: &Group,
        timed: bool,
    ) -> Result<Vec<(Box<dyn Workload>, u16)>> {
        let Group { pattern, options } = group;
        match pattern {
            Pattern::Smallfile => self.setup.smallfile(options),
            Pattern::Readdirplus => {
                let one = Options {
                    // Each host lists one directory of its own.
                    clients: self.part.count,
                    items_per_dir: options.items,
                    item_size: options.item_size,
                    ..options.clone()
                };
                let trees = self.small_files(place, Pattern::Readdirplus, &one)?;
                Ok(self.setup.listing(&trees, options))
            }
            Pattern::Getattr | Pattern::Lookup | Pattern::Access => {
                let trees = self.small_files(place, *pattern, options)?;
                Ok(self.setup.attributes(&trees, *pattern, options))
            }
            _ => {
                let empty = *pattern == Pattern::Seqwrite;
                let set = self.setup.fileset(place.1, *pattern, options, empty)?;
                if pattern.needs_data()
                    && let Some(phase) = self.setup.fill(&set, unit_of(options.record_for(*pattern)))?
                {
                    self.in_batches(phase, options)?;
                }
                self.setup.data(&set, *pattern, options, timed)
            }
        }
    }

    /// Returns trees with all their files. They are made once for all repeats of a step.
    fn small_files(
        &mut self,
        place: (usize, usize),
        pattern: Pattern,
        options: &Options,
    ) -> Result<Vec<Arc<Tree>>> {
        if let Some(trees) = self.trees.get(&place) {
            return Ok(trees.clone());
        }
        let trees = self.setup.trees(pattern, options)?;
        for phase in [MetaPhase::Mkdir, MetaPhase::Create] {
            let phase = self.setup.meta(&trees, phase, options.depth.max(8));
            let links = self.connect_all(options)?;
            let (_, _, links) = self.drive(phase, links, None, None)?;
            links.into_iter().for_each(Link::close);
            self.gate.wait("the small files")?;
            self.setup.adopt_dirs(&trees)?;
        }
        self.trees.insert(place, trees.clone());
        Ok(trees)
    }

    /// Runs a phase in batches, with a bounded number of connections at one time.
    pub(crate) fn in_batches(&mut self, phase: Phase, options: &Options) -> Result<()> {
        let name = phase.name;
        let mut parts = phase.parts;
        while !parts.is_empty() {
            let batch: Vec<_> = parts.drain(..parts.len().min(FILL_CLIENTS)).collect();
            let links: Result<Vec<_>> = batch.iter().map(|_| self.connect(0, options)).collect();
            let (_, _, links) = self.drive(Phase { name: name.clone(), parts: batch }, links?, None, None)?;
            links.into_iter().for_each(Link::close);
        }
        Ok(())
    }

    fn connect_all(&self, options: &Options) -> Result<Vec<Link>> {
        self.part.clients(options.clients).map(|client| self.connect(client, options)).collect()
    }

    /// Connects one client, with an identity of its own. In NFSv4.1 its session gets at least as many slots as
    /// requests in flight.
    pub(crate) fn connect(&self, client: u32, options: &Options) -> Result<Link> {
        let peer = &self.setup.session.peer;
        let slots = options.depth.max(MIN_SLOTS);
        Link::open(self.settings.nfs, peer, &identity(client, options), slots)
            .with_context(|| format!("client {client} cannot connect to {peer}"))
    }

    /// Runs a phase and measures it.
    pub(crate) fn measure(
        &mut self,
        step: usize,
        phase: Phase,
        links: Vec<Link>,
        limit: Option<f64>,
        rate: Option<f64>,
    ) -> Result<(Measured, Vec<Link>)> {
        if self.settings.drop_caches {
            drop_caches()?;
        }
        let name = phase.name.clone();
        self.gate.wait(&name)?;
        let cpu = |pid: Option<u32>| pid.and_then(cpu::process_time);
        let (own_before, server_before) = (cpu::own_time(), cpu(self.server_pid));
        let machine_before = cpu::machine_time();
        let began = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64());
        let (stats, seconds, links) = self.drive(phase, links, limit, rate)?;
        let used = |before: Option<Duration>, after: Option<Duration>| {
            Some(after?.saturating_sub(before?).as_secs_f64())
        };
        let client_cpu = used(own_before, cpu::own_time());
        let server_cpu = used(server_before, cpu(self.server_pid));
        // If a local server's process is not known, its CPU time cannot be told from that of other processes.
        let seen = server_cpu.is_some() || !self.setup.session.peer.address.ip().is_loopback();
        let machine = used(machine_before, cpu::machine_time()).filter(|_| seen);
        let known = client_cpu.unwrap_or_default() + server_cpu.unwrap_or_default();
        let other_cpu = machine.map(|machine| (machine - known).max(0.0));
        let measured = Measured { stats, began, seconds, client_cpu, server_cpu, other_cpu };
        self.gate.hand_in(step, &name, &measured)?;
        Ok((measured, links))
    }

    /// Spreads the clients over threads and runs them until they finish.
    fn drive(
        &self,
        phase: Phase,
        links: Vec<Link>,
        limit: Option<f64>,
        rate: Option<f64>,
    ) -> Result<(Stats, f64, Vec<Link>)> {
        let count = self.settings.threads.clamp(1, phase.parts.len().max(1));
        let mut threads: Vec<Vec<Client>> = (0..count).map(|_| Vec::new()).collect();
        for (number, ((workload, depth), link)) in phase.parts.into_iter().zip(links).enumerate() {
            let mut client = Client::new(number as u32, link, workload, depth);
            client.prepare().with_context(|| format!("client {number} failed"))?;
            threads[number % count].push(client);
        }
        let pace = Pace {
            limit: limit.map(Duration::from_secs_f64),
            interval: rate.map(|rate| (count as f64 / rate * 1e9) as u64),
        };
        let live = Live::default();
        let bar = progress::bar(&phase.name, limit);
        let start = Instant::now();
        let main = thread::current();
        let results: Vec<_> = thread::scope(|scope| {
            let workers: Vec<_> = threads
                .iter_mut()
                .map(|clients| {
                    scope.spawn(|| {
                        let result = engine::run(clients, pace, start, &live);
                        let seconds = start.elapsed().as_secs_f64();
                        main.unpark();
                        result.map(|stats| (stats, seconds))
                    })
                })
                .collect();
            while !workers.iter().all(thread::ScopedJoinHandle::is_finished) {
                thread::park_timeout(REDRAW);
                progress::redraw(&bar, &live, start);
                if self.gate.is_over() {
                    live.abort.store(true, Ordering::Relaxed);
                }
            }
            workers
                .into_iter()
                .map(|worker| worker.join().map_err(|_| anyhow!("a thread panicked")))
                .collect()
        });
        bar.finish_and_clear();
        let mut total = Stats::new();
        let mut longest = 0.0_f64;
        for result in results {
            let (stats, seconds) = result??;
            total.merge(&stats);
            longest = longest.max(seconds);
        }
        Ok((total, longest, in_order(threads)?))
    }
}

/// Ends the clients and returns their links in the order of the clients, which were assigned to the threads in turn.
fn in_order(threads: Vec<Vec<Client>>) -> Result<Vec<Link>> {
    let mut threads: Vec<_> = threads.into_iter().map(Vec::into_iter).collect();
    let mut links = Vec::new();
    loop {
        let before = links.len();
        for client in threads.iter_mut().filter_map(Iterator::next) {
            links.push(client.finish()?);
        }
        if links.len() == before {
            return Ok(links);
        }
    }
}

/// Returns the identity of a client: a machine name of its own, and a user of its own if the options say so.
fn identity(client: u32, options: &Options) -> Identity {
    let uid = options.uid + if options.distinct_uids { client } else { 0 };
    Identity { uid, machine_name: format!("bench-{client}") }
}

/// Drops the page cache and the kernel's caches of names and attributes.
pub(crate) fn drop_caches() -> Result<()> {
    rustix::fs::sync();
    std::fs::write("/proc/sys/vm/drop_caches", "3").context(
        "the caches cannot be dropped; run this program as root on this machine, or leave out --drop-caches",
    )
}
