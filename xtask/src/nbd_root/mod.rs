//! A guest whose root file system is a volume that the kernel attaches over NBD. The server runs on this machine and is
//! killed under load. At the end, guest and server die at once. The guest reports what it changes and what was durable,
//! a second boot reports what it finds, and this program compares.

mod judge;
mod tree;

use std::{
    fs::File,
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
    thread::{self, ScopedJoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use clap::Parser;
use rustix::process::{Signal, kill_process};

use crate::{
    boot::Random,
    process::{command, output, rigs_dir, run},
    server::{self, Server},
    suites::{Case, Counts, asset, count, whole},
    vm::{Guest, Kernel, Machine, Release},
};
use judge::Judge;
use tree::Fs;

/// Longest time until the guest goes on. Its requests wait 20 s for replies that were lost, and some follow each other.
const PATIENCE: Duration = Duration::from_secs(240);
/// Name of the image in the directory of the cache files.
const IMAGE: &str = "disk.img";

/// The arguments of `cargo x nbd-root`.
#[derive(Parser)]
pub(crate) struct NbdRoot {
    /// Number of kills of the server below each file system
    #[arg(long, default_value_t = 10)]
    kills: u32,
    /// Only this file system
    #[arg(long, value_enum)]
    fs: Option<Fs>,
    /// Seed of the moments of the kills
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Lose what became durable just before the power cut: the judge must report it
    #[arg(long)]
    forget: bool,
    /// Binary to use in place of target/release/forebay
    #[arg(long, value_name = "PATH")]
    forebay: Option<PathBuf>,
    /// Seconds after which a guest is killed
    #[arg(long, default_value_t = 1800, value_name = "SECONDS")]
    timeout: u64,
}

/// A case of a file system.
type Step<'a> = &'a dyn Fn(&mut Server) -> Result<()>;

/// The guest while it runs.
type Running<'scope> = ScopedJoinHandle<'scope, Result<i32>>;

impl NbdRoot {
    /// Runs the cases, prints the failures, and counts.
    pub(crate) fn run(&self) -> Result<Counts> {
        let mut cases = Vec::new();
        for fs in [Fs::Ext4, Fs::Xfs] {
            if self.fs.is_none_or(|only| only == fs) {
                cases.extend(self.cases(fs)?);
            }
        }
        Ok(count("nbd-root", &cases))
    }

    /// Runs the cases of a file system, up to the first that fails.
    fn cases(&self, fs: Fs) -> Result<Vec<Case>> {
        let port = server::free_port()?;
        let nbd = format!("127.0.0.1:{port}");
        let mut server = Server::start_with(self.forebay.as_deref(), ["--nbd".into(), nbd.into()].into())?;
        let image = server.ssd().join(IMAGE);
        tree::make_image(fs, &image)?;
        server.ask(&["volume", "create", "root", "--backing", &image.to_string_lossy()])?;
        let judge = Mutex::new(Judge::default());
        let steps: [(&str, Step<'_>); 3] = [
            ("kills of the server", &|server| self.kills(fs, server, port, &judge)),
            ("a power cut", &|server| self.found(fs, server, port, &judge)),
            ("the image without a server", &|server| {
                server.ask(&["volume", "remove", "root"])?;
                server.stop()?;
                output(&mut fs.check(&image)).map(drop)
            }),
        ];
        let mut cases = Vec::new();
        for (name, step) in steps {
            let problem = step(&mut server).and_then(|()| lock(&judge).verdict()).err();
            let is_last = problem.is_some();
            cases.push(whole(&format!("{}, {name}", fs.name()), problem.map(|error| format!("{error:#}"))));
            if is_last {
                break;
            }
        }
        Ok(cases)
    }

    /// Boots from the volume, kills the server under load, and at last the guest and the server.
    fn kills(&self, fs: Fs, server: &mut Server, port: u16, judge: &Mutex<Judge>) -> Result<()> {
        let share = tempfile::tempdir()?;
        let guest = self.guest(fs, "load", port, share.path())?;
        let former = tempfile::Builder::new().prefix("former-").tempdir_in(rigs_dir()?)?;
        let (driven, ended) = thread::scope(|scope| {
            let guest = scope.spawn(|| guest.run(|line| lock(judge).take(line)));
            let driven = self.drive(fs, server, judge, &guest, former.path());
            // The guest looks for this file, and cuts its power.
            let cut = File::create(share.path().join("cut")).map(drop);
            (driven.and(server.kill()).and(cut.map_err(Into::into)), guest.join())
        });
        driven?;
        if let Ok(Ok(status)) = ended {
            bail!("the guest ended with {status} in place of a power cut");
        }
        if self.forget {
            copy(former.path(), &server.ssd())?;
        }
        server.launch()
    }

    /// Kills the server at random moments at which changes are in progress. The guest must go on after each start.
    fn drive(
        &self,
        fs: Fs,
        server: &mut Server,
        judge: &Mutex<Judge>,
        guest: &Running<'_>,
        former: &Path,
    ) -> Result<()> {
        let mut random = Random(self.seed);
        goes_on(judge, guest)?;
        for kill in 1..=self.kills {
            thread::sleep(Duration::from_millis(random.below(4000)));
            until("a change is in progress", guest, || lock(judge).is_under_load())?;
            let before = lock(judge).linked();
            server.crash_and_restart(false)?;
            let begun = Instant::now();
            until("the guest connects again", guest, || lock(judge).linked() > before)?;
            goes_on(judge, guest).with_context(|| format!("after kill {kill}"))?;
            eprintln!(
                "# {}: kill {kill}, all went on after {:.1} s",
                fs.name(),
                begun.elapsed().as_secs_f64()
            );
        }
        if self.forget {
            kill_process(server.pid()?, Signal::STOP)?;
            copy(&server.ssd(), former)?;
            kill_process(server.pid()?, Signal::CONT)?;
            goes_on(judge, guest)?;
        }
        until("a change is in progress", guest, || lock(judge).is_under_load())?;
        eprintln!("# {}: {}", fs.name(), lock(judge).summary());
        Ok(())
    }

    /// Boots from the volume again: the journal is replayed, and everything durable must be there.
    fn found(&self, fs: Fs, server: &Server, port: u16, judge: &Mutex<Judge>) -> Result<()> {
        let share = tempfile::tempdir()?;
        lock(judge).begin_check();
        let status = self.guest(fs, "check", port, share.path())?.run(|line| lock(judge).take(line))?;
        ensure!(status == 0, "the guest ended with {status}");
        lock(judge).end_check();
        server.ask(&["volume", "flush", "root"]).map(drop)
    }

    fn guest(&self, fs: Fs, phase: &str, port: u16, share: &Path) -> Result<Guest> {
        let kernel = Kernel::ready(Release::V6_12, Machine::here())?;
        let script = asset("nbd_root.py").to_string_lossy().into_owned();
        let port = port.to_string();
        let words = ["/usr/bin/python3", "-B", &script, phase, "10.0.2.2", &port, fs.name()];
        let modules = kernel.block_modules().map(|module| module.to_string_lossy().into_owned());
        Ok(Guest {
            nfs: None,
            shares: vec![(share.to_owned(), "/share".into())],
            command: words.map(str::to_owned).into_iter().chain(modules).collect(),
            limit: Duration::from_secs(self.timeout),
            memory: 1024,
            all_modules: true,
            machine: Machine::here(),
            kernel: Release::V6_12,
            network: None,
        })
    }
}

fn lock(judge: &Mutex<Judge>) -> MutexGuard<'_, Judge> {
    judge.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits until every process of the load has made further changes durable, and programs were read.
fn goes_on(judge: &Mutex<Judge>, guest: &Running<'_>) -> Result<()> {
    let before = lock(judge).progress();
    until("every process goes on", guest, || lock(judge).has_gone_on(&before))
}

/// Waits until the condition is true, while the guest runs.
fn until(what: &str, guest: &Running<'_>, condition: impl Fn() -> bool) -> Result<()> {
    let end = Instant::now() + PATIENCE;
    while !condition() {
        ensure!(!guest.is_finished(), "the guest ended before this: {what}");
        ensure!(Instant::now() < end, "not within {} s: {what}", PATIENCE.as_secs());
        thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// Copies the contents of all files below a directory to another one. Files that are there keep their inodes.
fn copy(from: &Path, to: &Path) -> Result<()> {
    let script = "find . -type f -exec cp --sparse=always --parents -t \"$1\" {} +";
    run(command("sh", ["-c", script, "sh"]).arg(to).current_dir(from))
}
