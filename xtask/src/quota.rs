//! Checks quotas of users and groups on the served file system: acknowledged data stays within the limits, and all of
//! it reaches the directory. Everything, including the server, runs in the guest, because the host's kernel may have
//! no quotas. The guest of ext4 also checks TLS by the kernel, which a host's kernel may lack as well.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Result, ensure};
use clap::Parser;

use crate::{
    ktls,
    process::quoted,
    server,
    suites::{Case, Counts, Outcome, asset, cases_of},
    vm::{Guest, Machine, Release},
};

/// The arguments of `cargo x quota`.
#[derive(Parser)]
pub(crate) struct Quota {
    /// Run on this file system only
    #[arg(long, value_parser = FILE_SYSTEMS)]
    fs: Option<String>,
    /// Mode of Forebay; in modes that write through, the kernel enforces the limits, and every case must pass as well
    #[arg(long, default_value = "write-back", value_parser = ["write-back", "write-through", "pass-through"])]
    mode: String,
    /// Binary to use in place of target/release/forebay
    #[arg(long, value_name = "PATH")]
    forebay: Option<PathBuf>,
    /// Seconds after which the guest is killed
    #[arg(long, default_value_t = 600, value_name = "SECONDS")]
    timeout: u64,
}

const FILE_SYSTEMS: [&str; 2] = ["ext4", "xfs"];

/// The file system whose guest checks TLS as well.
const WITH_TLS: &str = "ext4";

pub(crate) fn check() -> Result<Counts> {
    Quota::parse_from(["quota"]).run()
}

impl Quota {
    /// Runs the cases, prints the failures, and counts.
    pub(crate) fn run(&self) -> Result<Counts> {
        let binary = std::path::absolute(server::binary(self.forebay.as_deref()))?;
        ensure!(binary.is_file(), "{} is missing: build it with `cargo build --release`", binary.display());
        let mut total = Counts::default();
        for fs in FILE_SYSTEMS.iter().filter(|fs| self.fs.as_deref().is_none_or(|only| only == **fs)) {
            eprintln!("quotas on {fs}");
            let mut counts = Counts::default();
            for Case { name, outcome } in self.cases(fs, &binary)? {
                match outcome {
                    Outcome::Passed => counts.passed += 1,
                    Outcome::Skipped => counts.skipped += 1,
                    Outcome::Failed(why) => {
                        println!("FAILED {name} ({fs}): {}", why.trim_end());
                        counts.failed += 1;
                    }
                }
            }
            println!("quotas on {fs}: {} passed, {} failed", counts.passed, counts.failed);
            total.passed += counts.passed;
            total.failed += counts.failed;
            total.skipped += counts.skipped;
        }
        Ok(total)
    }

    /// Returns the cases on one file system. A guest that does not end normally is a failed case.
    ///
    /// # Errors
    /// The guest cannot be prepared.
    fn cases(&self, fs: &str, binary: &Path) -> Result<Vec<Case>> {
        let share = tempfile::tempdir()?;
        let mut guest = self.guest(fs, binary);
        if fs == WITH_TLS {
            let also = ktls::words(binary, share.path(), guest.kernel)?;
            guest.command = both(&guest.command, &also);
            guest.shares.push((share.path().to_owned(), ktls::SHARE.into()));
        }
        Ok(cases_of(&guest))
    }

    /// Returns the guest that runs the check on a file system of this kind. It mounts nothing from this host.
    fn guest(&self, fs: &str, binary: &Path) -> Guest {
        let (script, binary) = (asset("quota.py"), binary.to_string_lossy());
        let command = ["/usr/bin/python3", &script.to_string_lossy(), fs, &self.mode, &binary];
        Guest {
            nfs: None,
            shares: Vec::new(),
            command: command.map(str::to_owned).into(),
            limit: Duration::from_secs(self.timeout),
            // The guest's memory contains the images.
            memory: 3072,
            all_modules: true,
            machine: Machine::here(),
            kernel: Release::default(),
            network: None,
        }
    }
}

/// Returns a command that runs two commands, and fails if one of them fails.
fn both(first: &[String], second: &[String]) -> Vec<String> {
    let line = |words: &[String]| words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" ");
    let script = format!("{}; status=$?; {} && exit $status", line(first), line(second));
    ["/bin/sh".into(), "-c".into(), script].into()
}
