//! The Connectathon tests (cthon04): basic, general, special and lock, from a Linux client on a network of its own.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use clap::Parser;

use crate::{
    mounts::Client,
    process::{command, rigs_dir, run},
    protection::Security,
    server::Kind,
    suites::{Counts, asset},
    vm::{Release, Version},
};

/// An emulated client needs about ten minutes.
const LIMIT: Duration = Duration::from_secs(2400);

/// The variables of the tests' Makefiles for Linux with libtirpc.
const VARIABLES: [&str; 2] =
    ["CFLAGS=-DLINUX -DGLIBC=22 -DMMAP -DSTDARG -fcommon -I/usr/include/tirpc -w", "LIBS=-ltirpc -lm"];

/// The arguments of `cargo x cthon`.
#[derive(Parser)]
pub(crate) struct Cthon {
    /// Source of the tests: a clone of the repository phdeniel/cthon04 on GitHub
    #[arg(long, value_name = "DIR")]
    source: PathBuf,
    /// Version of NFS
    #[arg(long, value_enum, default_value = "4.2")]
    vers: Version,
    /// Kernel of the client
    #[arg(long, value_enum, default_value = "6.1")]
    kernel: Release,
    /// Server: nfs-ganesha shows what is usual (`cargo x setup --peers`)
    #[arg(long, value_enum, default_value = "forebay")]
    server: Kind,
    /// Binary to use in place of target/release/forebay
    #[arg(long, value_name = "PATH")]
    forebay: Option<PathBuf>,
}

impl Cthon {
    /// Builds the tests, runs them, prints the failures, and counts.
    pub(crate) fn run(&self) -> Result<Counts> {
        let built = build(&self.source)?;
        let version = match self.vers {
            Version::V3 => "3",
            Version::V4_1 => "4.1",
            Version::V4_2 => "4.2",
        };
        let client = Client {
            server: self.server,
            forebay: self.forebay.as_deref(),
            kernel: self.kernel,
            script: asset("cthon.py"),
            words: vec![built.to_string_lossy().into_owned(), version.into()],
            limit: LIMIT,
            security: Security::Plain,
            xfs: None,
        };
        client.run("cthon")
    }
}

/// Builds a copy of the tests for this machine, unless that was done before.
fn build(source: &Path) -> Result<PathBuf> {
    let built = rigs_dir()?.join("cthon04");
    if built.join("lock/tlocklfs").is_file() {
        return Ok(built);
    }
    ensure!(source.join("runtests").is_file(), "{} has no source of cthon04", source.display());
    run(command("cp", ["-r", "--"]).arg(source).arg(&built))?;
    let mut make = command("make", VARIABLES);
    run(make.current_dir(&built)).context("cannot build cthon04 (is libtirpc-dev installed?)")?;
    Ok(built)
}
