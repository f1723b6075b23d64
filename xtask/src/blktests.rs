//! The tests of block devices by the kernel's developers (blktests), as far as they are about NBD, in a guest. They
//! start their server themselves: Forebay in the place of nbd-server, or nbd-server to know the usual results.

use std::{
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use clap::{Parser, ValueEnum};

use crate::{
    process::{command, rigs_dir, run},
    server,
    suites::{Counts, asset, cases_of, count},
    vm::{Guest, Kernel, Machine, Release},
};

/// A server of NBD.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Peer {
    Forebay,
    /// Debian's nbd-server.
    NbdServer,
}

/// The arguments of `cargo x blktests`.
#[derive(Parser)]
pub(crate) struct Blktests {
    /// Source of the tests: a clone of the repository linux-blktests/blktests on GitHub
    #[arg(long, value_name = "DIR")]
    source: PathBuf,
    /// Server that the tests get; nbd-server shows the usual results
    #[arg(long, value_enum, default_value = "forebay")]
    server: Peer,
    /// Binary to use in place of target/release/forebay
    #[arg(long, value_name = "PATH")]
    forebay: Option<PathBuf>,
    /// Seconds after which the guest is killed
    #[arg(long, default_value_t = 600, value_name = "SECONDS")]
    timeout: u64,
    /// Tests or groups to run
    #[arg(default_value = "nbd", value_name = "TEST")]
    tests: Vec<String>,
}

impl Blktests {
    /// Builds the tests, runs them in a guest, prints the failures, and counts.
    pub(crate) fn run(&self) -> Result<Counts> {
        let server = match self.server {
            Peer::Forebay => std::path::absolute(server::binary(self.forebay.as_deref()))?,
            Peer::NbdServer => "/usr/bin/nbd-server".into(),
        };
        ensure!(server.is_file(), "{} is missing (docs/development.md)", server.display());
        let built = build(&self.source)?;
        let kernel = Kernel::ready(Release::V6_12, Machine::here())?;
        let is_nbd = |module: &&Path| module.to_string_lossy().ends_with("-nbd.ko");
        let nbd = kernel.block_modules().find(is_nbd);
        let nbd = nbd.context("the kernel has no module nbd")?;
        let script = asset("blktests.py");
        let words = [Path::new("/usr/bin/python3"), Path::new("-B"), &script, &server, &built, nbd];
        let words = words.map(|word| word.to_string_lossy().into_owned()).into_iter();
        let share = tempfile::tempdir()?;
        let guest = Guest {
            nfs: None,
            shares: vec![(share.path().to_owned(), "/share".into())],
            command: words.chain(self.tests.iter().cloned()).collect(),
            limit: Duration::from_secs(self.timeout),
            memory: 3072,
            all_modules: true,
            machine: Machine::here(),
            kernel: Release::V6_12,
            network: None,
        };
        Ok(count("blktests", &cases_of(&guest)))
    }
}

/// Builds the programs of a copy of the tests that the tests of NBD need, unless that was done before.
fn build(source: &Path) -> Result<PathBuf> {
    let built = rigs_dir()?.join("blktests");
    if built.join("src/nbdsetsize").is_file() && built.join("src/mount_clear_sock").is_file() {
        return Ok(built);
    }
    ensure!(source.join("tests/nbd/rc").is_file(), "{} has no source of blktests", source.display());
    if !built.is_dir() {
        run(command("cp", ["-r", "--"]).arg(source).arg(&built))?;
    }
    let mut make = Command::new("make");
    run(make.args(["nbdsetsize", "mount_clear_sock"]).current_dir(built.join("src")))?;
    Ok(built)
}
