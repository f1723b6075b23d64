//! Servers for suites: Forebay, and nfs-ganesha to know the usual behaviour.

use std::{
    ffi::OsString,
    fs::{self, File},
    net::{Ipv4Addr, TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::{
    array::Array,
    loop_xfs::LoopXfs,
    process::{Guarded, bounded, output, rigs_dir, target_dir},
    protection::Protection,
    vm::Network,
};

/// Name of the served directory in the server's directory.
pub(crate) const EXPORT: &str = "export";
/// Name of the directory for the two cache files and the state.
pub(crate) const SSD: &str = "ssd";
/// The port of NFS.
const NFS: u16 = 2049;
const LEGS: [&str; 2] = ["cache-a", "cache-b"];
/// Lease time of NFSv4 clients. It is short, because some tests wait for its end.
const LEASE: &str = "20s";
const READY: Duration = Duration::from_secs(20);
const STOPPED: Duration = Duration::from_secs(30);

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    Forebay,
    Ganesha,
}

impl Kind {
    /// Returns the name of the server, which is a part of the names of lists of expected failures.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Kind::Forebay => "forebay",
            Kind::Ganesha => "ganesha",
        }
    }
}

/// A server on the loopback. When this value is dropped, the server is killed and its directory is removed.
pub(crate) struct Server {
    kind: Kind,
    binary: PathBuf,
    process: Guarded,
    /// The arrays that are mounted in the server's directory.
    arrays: Vec<Array>,
    _xfs: Option<LoopXfs>,
    mode: String,
    work: TempDir,
    /// The clients that may mount over a network; without any, the server listens on the loopback.
    clients: Option<&'static str>,
    protection: Box<Protection>,
    pub(crate) port: u16,
    pub(crate) mount_port: u16,
}

/// Returns a directory for a server.
pub(crate) fn work_dir() -> Result<TempDir> {
    Ok(tempfile::Builder::new().prefix("server-").tempdir_in(rigs_dir()?)?)
}

/// Returns the binary to use: `forebay`, or the release build.
pub(crate) fn binary(forebay: Option<&Path>) -> PathBuf {
    forebay.map_or_else(|| target_dir().join("release/forebay"), Path::to_owned)
}

impl Server {
    /// Serves a new empty directory to the loopback, without squashing, and to any source port.
    ///
    /// `forebay` is the binary to use instead of the release build.
    pub(crate) fn start(kind: Kind, forebay: Option<&Path>) -> Result<Self> {
        Self::start_in(work_dir()?, Vec::new(), kind, forebay, "write-back")
    }

    /// Serves the directory `work` to the loopback. `arrays` are mounted in it. `mode` is Forebay's mode. There is no
    /// cache in pass-through.
    pub(crate) fn start_in(
        work: TempDir,
        arrays: Vec<Array>,
        kind: Kind,
        forebay: Option<&Path>,
        mode: &str,
    ) -> Result<Self> {
        Self::begin(work, arrays, kind, forebay, mode, Box::default())
    }

    /// Serves a new empty directory to the loopback, in write-back mode, with further flags.
    pub(crate) fn start_with(forebay: Option<&Path>, flags: Vec<OsString>) -> Result<Self> {
        let mut protection = Box::<Protection>::default();
        protection.flags = flags;
        Self::begin(work_dir()?, Vec::new(), Kind::Forebay, forebay, "write-back", protection)
    }

    fn begin(
        work: TempDir,
        arrays: Vec<Array>,
        kind: Kind,
        forebay: Option<&Path>,
        mode: &str,
        protection: Box<Protection>,
    ) -> Result<Self> {
        let port = free_port()?;
        let (binary, mount_port) = match kind {
            Kind::Forebay => (binary(forebay), port),
            Kind::Ganesha => ("unshare".into(), free_port()?),
        };
        let place = Place { work: work.path(), port, mount_port, clients: None, protection: &protection };
        let process = launch(kind, &binary, &place, mode)?;
        let clients = None;
        let mode = mode.into();
        Ok(Self {
            kind,
            binary,
            process,
            arrays,
            _xfs: None,
            mode,
            work,
            clients,
            protection,
            port,
            mount_port,
        })
    }

    /// Serves a new empty directory to a guest's network, on the port of NFS. With `xfs`, the directory is a file
    /// system of that many bytes.
    pub(crate) fn start_on(
        network: &Network,
        kind: Kind,
        forebay: Option<&Path>,
        protection: Protection,
        xfs: Option<u64>,
    ) -> Result<Self> {
        let protection = Box::new(protection);
        let (work, mode, clients) = (work_dir()?, "write-back", Some(network.clients()));
        let (binary, port, mount_port) = match kind {
            Kind::Forebay => (binary(forebay), NFS, NFS),
            Kind::Ganesha => ("unshare".into(), NFS, free_port()?),
        };
        let mount = |size| LoopXfs::mount(&work.path().join("image"), size, &work.path().join(EXPORT));
        let xfs = xfs.map(mount).transpose()?;
        let place = Place { work: work.path(), port, mount_port, clients, protection: &protection };
        let process = launch(kind, &binary, &place, mode)?;
        let arrays = Vec::new();
        Ok(Self {
            kind,
            binary,
            process,
            arrays,
            _xfs: xfs,
            mode: mode.into(),
            work,
            clients,
            protection,
            port,
            mount_port,
        })
    }

    /// Returns the served directory.
    pub(crate) fn directory(&self) -> PathBuf {
        self.work.path().join(EXPORT)
    }

    /// Returns the directory of the cache files, in which other files may be put.
    pub(crate) fn ssd(&self) -> PathBuf {
        self.work.path().join(SSD)
    }

    /// Writes all data of clients to the directory.
    pub(crate) fn flush(&self) -> Result<()> {
        if self.kind == Kind::Forebay { self.ask(&["flush", "--wait"]).map(drop) } else { Ok(()) }
    }

    /// Runs a verb of Forebay for the server, once the server has started. Returns the output.
    pub(crate) fn ask(&self, words: &[&str]) -> Result<String> {
        let end = Instant::now() + READY;
        loop {
            let mut verb = Command::new(&self.binary);
            let said = output(verb.args(words).arg("--state-dir").arg(self.ssd().join("state")));
            match said {
                Err(error) if error.to_string().contains("still starting") && Instant::now() < end => {
                    std::thread::sleep(Duration::from_millis(50));
                }
                said => return said,
            }
        }
    }

    /// Kills the server as a crash would, and starts it again on its directory and port. With `lose_leg`, one of its
    /// two cache files is deleted.
    pub(crate) fn crash_and_restart(&mut self, lose_leg: bool) -> Result<()> {
        self.kill()?;
        if lose_leg {
            fs::remove_file(self.work.path().join(SSD).join(LEGS[1]))?;
        }
        self.launch()
    }

    /// Cuts the power of the server and its arrays, and restores it.
    pub(crate) fn cut_power(&mut self, seed: u64) -> Result<()> {
        // The server is stopped first, so that clients see nothing while only some arrays have power.
        kill_process(self.pid()?, Signal::STOP)?;
        self.arrays.iter().try_for_each(|array| array.cut_power(seed))?;
        self.kill()?;
        self.arrays.iter().try_for_each(Array::power_on)?;
        self.launch()
    }

    /// Kills the server with SIGKILL and waits for its end, so that its port and its locks are free.
    pub(crate) fn kill(&mut self) -> Result<()> {
        kill_process(self.pid()?, Signal::KILL)?;
        self.process.wait(STOPPED)?.context("the server survived SIGKILL")?;
        Ok(())
    }

    /// Starts the server again with the ports and directories that it had before. The caller has stopped the last
    /// process.
    pub(crate) fn launch(&mut self) -> Result<()> {
        let Self { port, mount_port, clients, .. } = *self;
        let place = Place { work: self.work.path(), port, mount_port, clients, protection: &self.protection };
        self.process = launch(self.kind, &self.binary, &place, &self.mode)?;
        Ok(())
    }

    /// Stops Forebay with SIGTERM, which must end it with status 0. Other servers are killed.
    pub(crate) fn stop(&mut self) -> Result<()> {
        if self.kind != Kind::Forebay {
            return self.kill();
        }
        if let Some(status) = self.process.0.try_wait()? {
            bail!("the server ended by itself with {status}:\n{}", tail(self.work.path()));
        }
        kill_process(self.pid()?, Signal::TERM)?;
        let status = self.process.wait(STOPPED)?.context("the server did not end after SIGTERM")?;
        ensure!(
            status.success(),
            "the server ended after SIGTERM with {status}:\n{}",
            tail(self.work.path())
        );
        Ok(())
    }

    pub(crate) fn pid(&self) -> Result<Pid> {
        Pid::from_raw(self.process.0.id().cast_signed()).context("the server has no process id")
    }
}

/// The directory and the addresses of a server.
struct Place<'a> {
    work: &'a Path,
    port: u16,
    mount_port: u16,
    clients: Option<&'static str>,
    protection: &'a Protection,
}

/// Starts the server and waits until it accepts connections.
fn launch(kind: Kind, binary: &Path, place: &Place<'_>, mode: &str) -> Result<Guarded> {
    let Place { work, port, mount_port, clients, protection } = *place;
    fs::create_dir_all(work.join(EXPORT))?;
    fs::create_dir_all(work.join(SSD))?;
    let arguments: Vec<OsString> = match kind {
        Kind::Forebay => {
            ensure!(
                binary.is_file(),
                "{} is missing: build it with `cargo build --release`",
                binary.display()
            );
            let listen = format!("{}:{port}", if clients.is_some() { "0.0.0.0" } else { "127.0.0.1" });
            let ssd = work.join(SSD);
            let mut arguments = vec!["serve".into(), work.join(EXPORT).into_os_string()];
            arguments.extend(["--listen", &listen, "--squash", "none", "--mode", mode].map(OsString::from));
            arguments.extend(["--state-dir".into(), ssd.join("state").into_os_string()]);
            let legs = if mode == "pass-through" { &[][..] } else { &LEGS };
            for leg in legs {
                arguments.extend(["--cache".into(), ssd.join(leg).into_os_string()]);
            }
            if let Some(clients) = clients {
                arguments.extend(["--allow", clients].map(OsString::from));
            }
            arguments.extend(["--cache-size", "256MiB", "--lease", LEASE].map(OsString::from));
            arguments.extend(protection.flags.iter().cloned());
            // A cache file may have been deleted between two starts.
            if ssd.join("state").exists() && legs.iter().any(|leg| !ssd.join(leg).exists()) {
                arguments.push("--make-missing".into());
            }
            arguments
        }
        Kind::Ganesha => {
            let has_network = clients.is_some();
            let config = ganesha_config(&work.join(EXPORT), port, mount_port, has_network);
            fs::write(work.join("ganesha.conf"), config)?;
            let script = include_str!("ganesha.sh");
            let mut arguments: Vec<OsString> =
                ["--mount", "--pid", "--fork", "--kill-child", "sh", "-c", script, "sh"]
                    .map(OsString::from)
                    .into();
            arguments.push(work.into());
            arguments.push(if has_network { "network" } else { "loopback" }.into());
            arguments
        }
    };
    let log = File::options().create(true).append(true).open(work.join("log"))?;
    let child = bounded(None, binary, arguments)
        .envs(protection.environment.iter().cloned())
        .stdin(std::process::Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn()
        .with_context(|| format!("cannot start {}", kind.name()))?;
    let mut process = Guarded(child);
    let end = Instant::now() + READY;
    while TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err() {
        if let Some(status) = process.wait(Duration::from_millis(20))? {
            bail!("{} ended at its start with {status}:\n{}", kind.name(), tail(work));
        }
        if Instant::now() > end {
            bail!("{} did not listen within {} s:\n{}", kind.name(), READY.as_secs(), tail(work));
        }
    }
    Ok(process)
}

/// Returns the configuration of nfs-ganesha for one export: over NFSv3 on loopback only, or over NFSv3 with locks and
/// NFSv4 to a guest's network.
fn ganesha_config(export: &Path, port: u16, mount_port: u16, has_network: bool) -> String {
    let (address, protocols) = if has_network { ("0.0.0.0", "3, 4") } else { ("127.0.0.1", "3") };
    format!(
        "NFS_CORE_PARAM {{ NFS_Port = {port}; MNT_Port = {mount_port}; Bind_addr = {address};\n\
         Protocols = {protocols}; Enable_NLM = {has_network}; Enable_RQUOTA = false; Enable_UDP = false;\n\
         Mount_Path_Pseudo = true; }}\n\
         NFSV4 {{ Graceless = true; }}\n\
         EXPORT {{ Export_Id = 1; Path = {}; Pseudo = /; Access_Type = RW; Squash = No_Root_Squash; SecType = sys;\n\
         Protocols = {protocols}; Transports = TCP; PrivilegedPort = false; FSAL {{ Name = VFS; }} }}\n\
         LOG {{ Default_Log_Level = EVENT; }}\n",
        export.display()
    )
}

/// Returns the last lines of a server's log.
fn tail(work: &Path) -> String {
    let log = fs::read(work.join("log")).unwrap_or_default();
    let text = String::from_utf8_lossy(&log);
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(20)..].join("\n")
}

/// Returns a TCP port on which no process listens at this moment.
pub(crate) fn free_port() -> Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}
