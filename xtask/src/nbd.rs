//! Runs the tools of NBD's users against a server of this machine: libnbd's, QEMU's and fio's.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Result, ensure};
use clap::{Parser, ValueEnum};

use crate::{
    process::{self, bounded, rigs_dir},
    server,
    suites::{Counts, asset, count, reported, whole},
};

/// The longest time of all cases. An idle machine needs 20 s.
const LIMIT: Duration = Duration::from_secs(300);

/// A server of NBD.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Peer {
    Forebay,
    Nbdkit,
    QemuNbd,
}

/// The arguments of `cargo x nbd`.
#[derive(Parser)]
pub(crate) struct Nbd {
    /// Server to start; the others show the usual behaviour
    #[arg(long, value_enum, default_value = "forebay")]
    server: Peer,
    /// Binary to use in place of target/release/forebay
    #[arg(long, value_name = "PATH")]
    forebay: Option<PathBuf>,
    /// Source of libnbd, whose example programs run as well (needs libnbd-dev)
    #[arg(long, value_name = "DIR")]
    libnbd: Option<PathBuf>,
}

/// Runs the cases with the release build.
pub(crate) fn check() -> Result<Counts> {
    Nbd { server: Peer::Forebay, forebay: None, libnbd: None }.run()
}

impl Nbd {
    /// Runs the cases, prints the failures, and counts.
    pub(crate) fn run(&self) -> Result<Counts> {
        let server = match self.server {
            Peer::Forebay => server::binary(self.forebay.as_deref()),
            Peer::Nbdkit => "nbdkit".into(),
            Peer::QemuNbd => "qemu-nbd".into(),
        };
        let is_there = self.server != Peer::Forebay || server.is_file();
        ensure!(is_there, "{} is missing: build it with `cargo build --release`", server.display());
        let server = if self.server == Peer::Forebay { fs::canonicalize(server)? } else { server };
        let work = tempfile::Builder::new().prefix("nbd-").tempdir_in(rigs_dir()?)?;
        // Debian's own python has libnbd.
        let script = asset("nbd_tools.py");
        let libnbd = self.libnbd.as_deref().map(std::path::absolute).transpose()?;
        let words = [Path::new("-B"), &script, &server, work.path()].into_iter().chain(libnbd.as_deref());
        let mut tools = bounded(Some(LIMIT), "/usr/bin/python3", words);
        let mut cases = Vec::new();
        let status = process::lines(&mut tools, |line| {
            let line = String::from_utf8_lossy(line);
            eprint!("{line}");
            cases.extend(reported(&line));
        })?;
        cases.push(whole("the run", (!status.success()).then(|| format!("the script ended with {status}"))));
        Ok(count("nbd", &cases))
    }
}
