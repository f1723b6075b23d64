//! The servers that are compared: how each is started, used and stopped.

use std::ffi::OsString;
use std::fs::{self, File};
use std::net::TcpListener;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use clap::ValueEnum;
use rustix::process::{Pid, Signal};
use serde::{Deserialize, Serialize};

use crate::job::Job;
use crate::protocol::Version;
use crate::result::Report;
use crate::runner;
use crate::session::{Identity, Session};
use crate::settings::Settings;
use crate::url::Target;

/// Longest time until a server can be mounted. A server with a cache replays its log first.
const START: Duration = Duration::from_secs(60);
const STOP: Duration = Duration::from_secs(60);

/// A system that is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum System {
    /// nfs-ganesha with its VFS back end, on the array without a cache: the baseline.
    Ganesha,
    /// Forebay without a cache.
    PassThrough,
    /// Forebay in write-back mode: it acknowledges when two SSDs have the data.
    WriteBack,
    /// Forebay in write-through mode: it acknowledges when the array has the data.
    WriteThrough,
}

impl System {
    pub(crate) const ALL: [Self; 4] = [Self::Ganesha, Self::PassThrough, Self::WriteBack, Self::WriteThrough];

    /// Returns the system's name in reports.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Ganesha => "nfs-ganesha",
            Self::PassThrough => "pass-through",
            Self::WriteBack => "write-back",
            Self::WriteThrough => "write-through",
        }
    }

    /// Returns true if the system has a cache on SSDs.
    pub(crate) const fn is_cached(self) -> bool {
        matches!(self, Self::WriteBack | Self::WriteThrough)
    }
}

/// The places for the servers' files.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    /// Directory for state directories, logs and jobs.
    pub(crate) work: PathBuf,
    /// Directory for cache files.
    pub(crate) caches: PathBuf,
    /// Size in bytes of each of two cache files.
    pub(crate) cache_size: u64,
}

/// A server on one directory.
pub(crate) enum Server {
    /// nfs-ganesha. It is started for each job by a child of this program in private namespaces.
    Ganesha {
        dir: PathBuf,
        work: PathBuf,
    },
    Forebay(Forebay),
}

/// A running `forebay serve` that started with an empty cache. It ends when this value is dropped.
pub(crate) struct Forebay {
    child: Child,
    target: Target,
    state: PathBuf,
    caches: [PathBuf; 2],
}

impl Server {
    /// Starts a server with empty caches.
    pub(crate) fn start(system: System, dir: &Path, place: &Place) -> Result<Self> {
        match system {
            System::Ganesha => Ok(Self::Ganesha { dir: dir.to_owned(), work: place.work.clone() }),
            _ => Ok(Self::Forebay(Forebay::start(system, dir, place)?)),
        }
    }

    /// Runs a job on the server. With `cold`, the page cache is dropped before each phase.
    pub(crate) fn run(&self, job: &Job, cold: bool, keep: bool) -> Result<Report> {
        match self {
            Self::Ganesha { dir, work } => run_ganesha(dir, work, job, cold, keep),
            Self::Forebay(server) => {
                let settings = Settings { keep, drop_caches: cold, ..Settings::of(server.target.clone()) };
                runner::run(settings, job)
            }
        }
    }

    /// Makes the server write all dirty data to its backing store.
    pub(crate) fn flush(&self) -> Result<()> {
        let Self::Forebay(server) = self else { return Ok(()) };
        let output = program()?.args(["flush", "--wait", "--state-dir"]).arg(&server.state).output()?;
        if !output.status.success() {
            bail!("forebay flush failed: {}", first_line(&String::from_utf8_lossy(&output.stderr)));
        }
        Ok(())
    }

    /// Stops the server and waits for its end.
    pub(crate) fn stop(self) -> Result<()> {
        match self {
            Self::Ganesha { .. } => Ok(()),
            Self::Forebay(mut server) => server.stop(),
        }
    }
}

/// Returns a command that runs this program.
pub(super) fn program() -> Result<Command> {
    Ok(Command::new(std::env::current_exe().context("the path of this program cannot be found")?))
}

/// Measures nfs-ganesha in a process of its own, since that process moves into private namespaces. Returns its
/// result.
fn run_ganesha(dir: &Path, work: &Path, job: &Job, cold: bool, keep: bool) -> Result<Report> {
    let (job_file, result) = (work.join("job.json"), work.join("result.json"));
    fs::write(&job_file, serde_json::to_vec(job)?).context("the job file cannot be written")?;
    let mut command = program()?;
    command.args(["bench", "run", "--ganesha"]).arg(dir).arg("--job").arg(&job_file).arg("-o").arg(&result);
    command.args(cold.then_some("--drop-caches")).args(keep.then_some("--keep"));
    let output = command.stdin(Stdio::null()).output().context("nfs-ganesha cannot be measured")?;
    if !output.status.success() {
        bail!("{}", first_line(&String::from_utf8_lossy(&output.stderr)));
    }
    Report::load(&result)
}

/// Returns the first line of an error output, without the name of the program.
fn first_line(errors: &str) -> String {
    let line =
        errors.lines().find(|line| !line.trim().is_empty()).unwrap_or("the program ended without a message");
    line.trim_start_matches("forebay: ").trim_start_matches("error: ").to_owned()
}

impl Forebay {
    /// Starts a server with empty caches and an empty state directory, and waits until it serves. The server ends
    /// with this program.
    fn start(system: System, dir: &Path, place: &Place) -> Result<Self> {
        let state = place.work.join("state");
        let caches = ["cache-a", "cache-b"].map(|name| place.caches.join(name));
        discard(&state, &caches)?;
        // The port is almost always still free when the server binds it.
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let log_path = place.work.join("server.log");
        let log = File::create(&log_path).with_context(|| format!("cannot make {}", log_path.display()))?;
        let mut arguments: Vec<OsString> = ["serve".into(), dir.into()].into();
        arguments.extend(["--listen", &format!("127.0.0.1:{port}"), "--squash", "none"].map(OsString::from));
        arguments.extend(["--mode".into(), system.name().into(), "--state-dir".into(), state.clone().into()]);
        if system.is_cached() {
            for cache in &caches {
                arguments.extend(["--cache".into(), cache.into()]);
            }
            arguments.extend(["--cache-size".into(), place.cache_size.to_string().into()]);
        }
        let mut command = program()?;
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        // If this program is interrupted, the server must end as well.
        // SAFETY: between fork and exec only prctl(2) is called, which is async-signal-safe (signal-safety(7)).
        unsafe {
            command.pre_exec(|| Ok(rustix::process::set_parent_process_death_signal(Some(Signal::TERM))?));
        }
        let child = command.spawn().context("forebay serve cannot be started")?;
        let target = Target {
            host: "127.0.0.1".into(),
            port: Some(port),
            mount_port: None,
            export: "/".into(),
            tls: None,
        };
        let mut server = Self { child, target, state, caches };
        server.wait(&log_path)?;
        Ok(server)
    }

    /// Tries to mount until a mount succeeds.
    fn wait(&mut self, log: &Path) -> Result<()> {
        let identity = Identity { uid: 0, machine_name: "bench".to_owned() };
        let start = Instant::now();
        loop {
            match Session::open(&self.target, Version::V3, &identity) {
                Ok(_) => return Ok(()),
                Err(error) if start.elapsed() > START => return Err(error),
                Err(_) => {}
            }
            if self.child.try_wait()?.is_some() {
                let said = fs::read_to_string(log).unwrap_or_default();
                return Err(anyhow!("{}", first_line(&said)));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Stops the server with SIGTERM, and removes its caches and its state. Fails if the server takes longer than
    /// `STOP`.
    fn stop(&mut self) -> Result<()> {
        let pid = Pid::from_child(&self.child);
        if self.child.try_wait()?.is_none() {
            rustix::process::kill_process(pid, Signal::TERM)?;
        }
        let start = Instant::now();
        while self.child.try_wait()?.is_none() {
            if start.elapsed() > STOP {
                bail!("forebay serve did not stop within {} seconds", STOP.as_secs());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        discard(&self.state, &self.caches)
    }
}

impl Drop for Forebay {
    fn drop(&mut self) {
        // The process may have ended already, so errors are ignored.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Removes the state and cache files of a server, so that the next server starts without them.
fn discard(state: &Path, caches: &[PathBuf; 2]) -> Result<()> {
    let gone = |result: std::io::Result<()>, path: &Path| match result {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("{} cannot be removed", path.display()))
        }
        _ => Ok(()),
    };
    gone(fs::remove_dir_all(state), state)?;
    caches.iter().try_for_each(|cache| gone(fs::remove_file(cache), cache))
}

/// Returns the version of a system for reports.
pub(crate) fn version(system: System) -> Result<String> {
    match system {
        System::Ganesha => ganesha_version(),
        _ => Ok(env!("CARGO_PKG_VERSION").to_owned()),
    }
}

/// Returns the version of nfs-ganesha, or an error if it cannot be used on this machine.
pub(crate) fn ganesha_version() -> Result<String> {
    if !rustix::process::geteuid().is_root() {
        bail!("nfs-ganesha needs root; run this program as root");
    }
    let output = Command::new("ganesha.nfsd").arg("-v").output();
    let output = output.context("install nfs-ganesha, nfs-ganesha-vfs and rpcbind")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let version = text.lines().find_map(|line| line.split_once("V").map(|(_, version)| version.trim()));
    Ok(version.unwrap_or("of unknown version").to_owned())
}
