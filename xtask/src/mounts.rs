//! Mounts as an administrator types them: without options, from a guest on a network with the server alone. The server
//! has port 2049, and the guest ports below 1024, because the network is one of its own.

use std::{
    fs,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use clap::Parser;

use crate::{
    protection::Security,
    server::{Kind, Server},
    suites::{Case, Counts, asset, expected, reported, whole},
    vm::{Guest, Kernel, Machine, Network, Release, Version},
};

/// An idle machine needs two minutes.
const LIMIT: Duration = Duration::from_secs(1200);

/// The arguments of `cargo x mounts`.
#[derive(Parser)]
pub(crate) struct Mounts {
    /// Binary to use in place of target/release/forebay
    #[arg(long, value_name = "PATH")]
    forebay: Option<PathBuf>,
    /// Kernel of the client
    #[arg(long, value_enum, default_value = "6.1")]
    kernel: Release,
    /// Protection of the connection or of the requests
    #[arg(long, value_enum, default_value = "plain")]
    security: Security,
}

/// Runs the cases, or none if the kernel has no network devices for a guest.
pub(crate) fn check() -> Result<Counts> {
    if !Path::new("/dev/net/tun").exists() {
        println!("skipped: the kernel has no /dev/net/tun");
        return Ok(Counts { skipped: 1, ..Counts::default() });
    }
    Mounts::parse_from(["mounts"]).run()
}

impl Mounts {
    /// Runs the cases, prints the failures, and counts.
    pub(crate) fn run(&self) -> Result<Counts> {
        let client = Client {
            server: Kind::Forebay,
            forebay: self.forebay.as_deref(),
            kernel: self.kernel,
            script: asset("mounts.py"),
            words: Vec::new(),
            limit: LIMIT,
            security: self.security,
            xfs: None,
        };
        let needs_new = matches!(self.security, Security::Tls | Security::Mtls);
        ensure!(!needs_new || self.kernel == Release::V6_12, "the client has TLS with --kernel 6.12 only");
        client.run("mounts")
    }
}

/// A script that runs on a client beside a new server. It mounts, and reports cases as [`reported`] reads them.
pub(crate) struct Client<'a> {
    pub(crate) server: Kind,
    /// Binary to use instead of the release build.
    pub(crate) forebay: Option<&'a Path>,
    pub(crate) kernel: Release,
    /// Python script. Its arguments are the server's address, a directory that it shares with this host, and `words`.
    pub(crate) script: PathBuf,
    pub(crate) words: Vec<String>,
    /// Time after which the client is killed.
    pub(crate) limit: Duration,
    /// Protection of the mounts. With one, further words are its name, a directory with the client's programs, and the
    /// kernel's modules. The client's files are in the shared directory.
    pub(crate) security: Security,
    /// Bytes of the XFS that the server serves; without any, the server serves a directory of this machine.
    pub(crate) xfs: Option<u64>,
}

impl Client<'_> {
    /// Runs the script, prints the unexpected results, and counts. The list of expected failures has the name `name`.
    pub(crate) fn run(&self, name: &str) -> Result<Counts> {
        // In its own network this host reaches no other host, so the kernel is fetched before.
        let kernel = Kernel::ready(self.kernel, Machine::here())?;
        let programs = self.security.programs()?;
        let modules = kernel.security_modules().map(|module| module.to_string_lossy().into_owned());
        let mut words = self.words.clone();
        if self.security != Security::Plain {
            let programs = programs.unwrap_or_default();
            words.extend([self.security.name().to_owned(), programs.to_string_lossy().into_owned()]);
            words.extend(modules);
        }
        // A network belongs to a thread and to all that it starts.
        let cases = thread::scope(|scope| scope.spawn(|| self.cases(&words)).join());
        let cases = cases.map_err(|_| anyhow::anyhow!("the run panicked"))??;
        let counts = expected::judge(&cases, &expected::list(name, self.server, Version::V4_2)?);
        let Counts { passed, failed, expected, .. } = counts;
        println!("{name}: {passed} passed, {failed} failed, {expected} failed as expected");
        Ok(counts)
    }

    /// Starts the server and a guest on a network of their own, and runs the script in the guest. Kills and restarts
    /// the server when the script asks for it.
    fn cases(&self, further: &[String]) -> Result<Vec<Case>> {
        let network = Network::new()?;
        let share = tempfile::tempdir()?;
        let protection = self.security.prepare(share.path(), network.host())?;
        let mut server = Server::start_on(&network, self.server, self.forebay, protection, self.xfs)?;
        let mut cases = Vec::new();
        let mut report = |line: &[u8]| {
            let line = String::from_utf8_lossy(line);
            eprint!("{line}");
            cases.extend(reported(&line));
        };
        let script = self.script.to_string_lossy();
        let words = ["/usr/bin/python3", &script, network.host(), "/share"].map(str::to_owned);
        let guest = Guest {
            nfs: None,
            shares: vec![(share.path().to_owned(), "/share".into())],
            command: words.into_iter().chain(further.iter().cloned()).collect(),
            limit: self.limit,
            memory: 2048,
            all_modules: true,
            machine: Machine::here(),
            kernel: self.kernel,
            network: Some(network),
        };
        let kill = share.path().join("kill");
        let status = thread::scope(|scope| -> Result<_> {
            let client = scope.spawn(|| guest.run(&mut report));
            while !client.is_finished() {
                if kill.exists() {
                    server.crash_and_restart(false)?;
                    fs::remove_file(&kill).context("cannot tell the guest")?;
                }
                thread::sleep(Duration::from_millis(50));
            }
            Ok(client.join())
        })?;
        let problem = match status {
            Ok(Ok(0)) => None,
            Ok(Ok(status)) => Some(format!("the guest ended with {status}")),
            Ok(Err(error)) => Some(format!("{error:#}")),
            Err(_) => Some("the guest's thread panicked".into()),
        };
        cases.push(whole("the run", problem));
        server.stop()?;
        Ok(cases)
    }
}
