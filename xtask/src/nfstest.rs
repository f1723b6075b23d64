//! The tests of POSIX semantics in NFStest (`nfstest_posix`), from a Linux client on a network of its own.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Result, ensure};
use clap::Parser;

use crate::{
    mounts::Client,
    protection::Security,
    server::Kind,
    suites::{Counts, asset},
    vm::{Release, Version, unpacked},
};

/// An emulated client needs some minutes.
const LIMIT: Duration = Duration::from_secs(1500);
/// The release of Debian that has Python 2.7, and the packages.
const SUITE: &str = "bullseye";
const PYTHON: [&str; 5] =
    ["libffi7", "libpython2.7-minimal", "libpython2.7-stdlib", "python2.7", "python2.7-minimal"];

/// The arguments of `cargo x nfstest`.
#[derive(Parser)]
pub(crate) struct Nfstest {
    /// Source of the tests: a clone of the repository kofemann/nfstest on GitHub
    #[arg(long, value_name = "DIR")]
    source: PathBuf,
    /// Version of NFS
    #[arg(long, value_enum, default_value = "4.2")]
    vers: Version,
    /// Kernel of the client
    #[arg(long, value_enum, default_value = "6.1")]
    kernel: Release,
    /// Binary to use in place of target/release/forebay
    #[arg(long, value_name = "PATH")]
    forebay: Option<PathBuf>,
}

impl Nfstest {
    /// Runs the tests, prints the failures, and counts.
    pub(crate) fn run(&self) -> Result<Counts> {
        let source = std::path::absolute(&self.source)?;
        ensure!(source.join("test/nfstest_posix").is_file(), "{} has no source of NFStest", source.display());
        let python = unpacked(SUITE, "python2.7", &PYTHON)?;
        let word = |path: &Path| path.to_string_lossy().into_owned();
        let version = match self.vers {
            Version::V3 => "3",
            Version::V4_1 => "4.1",
            Version::V4_2 => "4.2",
        };
        let client = Client {
            server: Kind::Forebay,
            forebay: self.forebay.as_deref(),
            kernel: self.kernel,
            script: asset("nfstest.py"),
            words: vec![word(&source), word(&python), version.into()],
            limit: LIMIT,
            security: Security::Plain,
            xfs: None,
        };
        client.run("nfstest")
    }
}
