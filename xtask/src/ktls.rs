//! Checks TLS by the kernel. Everything, including the server and the tests of the transport, runs in the guest,
//! because this machine's kernel may have no TLS.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use clap::Parser;

use crate::{
    ci::cargo_test,
    process::output,
    protection::Security,
    server,
    suites::{Counts, asset, cases_of, count},
    vm::{Guest, Kernel, Machine, Release},
};

/// The arguments of `cargo x ktls`.
#[derive(Parser)]
pub(crate) struct Ktls {
    /// Kernel of the guest; the client of 6.12 mounts with TLS as well
    #[arg(long, value_enum, default_value = "6.12")]
    kernel: Release,
    /// Binary to use in place of target/release/forebay
    #[arg(long, value_name = "PATH")]
    forebay: Option<PathBuf>,
    /// Seconds after which the guest is killed
    #[arg(long, default_value_t = 1200, value_name = "SECONDS")]
    timeout: u64,
}

/// The place in the guest of the directory with the certificates.
pub(crate) const SHARE: &str = "/share";

impl Ktls {
    /// Runs the cases, prints the failures, and counts.
    pub(crate) fn run(&self) -> Result<Counts> {
        let binary = std::path::absolute(server::binary(self.forebay.as_deref()))?;
        ensure!(binary.is_file(), "{} is missing: build it with `cargo build --release`", binary.display());
        let share = tempfile::tempdir()?;
        let guest = Guest {
            nfs: None,
            command: words(&binary, share.path(), self.kernel)?,
            shares: vec![(share.path().to_owned(), SHARE.into())],
            limit: Duration::from_secs(self.timeout),
            // The guest's memory contains the images.
            memory: 3072,
            all_modules: true,
            machine: Machine::here(),
            kernel: self.kernel,
            network: None,
        };
        Ok(count("ktls", &cases_of(&guest)))
    }
}

/// Returns the command of the check for a guest. Puts certificates into `share`, which the guest has at [`SHARE`].
pub(crate) fn words(binary: &Path, share: &Path, kernel: Release) -> Result<Vec<String>> {
    Security::Tls.prepare(share, "127.0.0.1")?;
    let programs = match kernel {
        // The client of this kernel has no TLS.
        Release::V6_1 => PathBuf::from("-"),
        Release::V6_12 | Release::Newest => Security::Tls.programs()?.context("no programs")?,
    };
    let (script, tests, kernel) = (asset("ktls.py"), tests()?, Kernel::ready(kernel, Machine::here())?);
    let paths = [&script, binary, Path::new(SHARE), &tests, &programs];
    let text = |path: &Path| path.to_string_lossy().into_owned();
    let words = ["/usr/bin/python3", "-B"].map(str::to_owned).into_iter();
    Ok(words.chain(paths.map(text)).chain(kernel.security_modules().map(text)).collect())
}

/// Builds the tests of the transport over TLS, and returns their binary.
fn tests() -> Result<PathBuf> {
    let said = output(&mut cargo_test(&["--no-run", "--test", "tls", "--message-format", "json"]))?;
    let messages = said.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let binary = messages
        .filter(|message| message["target"]["name"] == "tls" && message["profile"]["test"] == true)
        .find_map(|message| message["executable"].as_str().map(PathBuf::from));
    binary.context("cargo names no binary of the tests")
}
