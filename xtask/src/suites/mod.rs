//! Suites of checks that run against a server from outside. Each case has a name and a result.

pub(crate) mod expected;
mod fsx;
mod libnfs;
mod pjdfstest;
mod posix;
mod restart;

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Result, bail};

use crate::{
    server::{Kind, Server},
    vm::{Guest, Machine, NfsMount, Release, Version},
};

/// The outcome of one case.
pub(crate) enum Outcome {
    Passed,
    Failed(String),
    Skipped,
}

/// One case of a suite.
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) outcome: Outcome,
}

/// The counts of one run.
#[derive(Clone, Copy, Default)]
pub(crate) struct Counts {
    pub(crate) passed: usize,
    pub(crate) failed: usize,
    /// Cases that failed and are in the list of expected failures.
    pub(crate) expected: usize,
    pub(crate) skipped: usize,
}

/// A suite of `cargo x suite`.
pub(crate) struct Suite {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    run: fn(&mut Target) -> Result<Vec<Case>>,
}

pub(crate) const SUITES: [Suite; 5] = [
    Suite {
        name: "libnfs",
        about: "libnfs's utilities, without root: copy in, list, copy out, compare",
        run: libnfs::run,
    },
    Suite {
        name: "posix",
        about: "operations of applications on files, through the kernel client, checked in the served directory",
        run: posix::run,
    },
    Suite {
        name: "fsx",
        about: "random reads, writes, truncates and mappings of a file, each read verified (crate fsx)",
        run: fsx::run,
    },
    Suite {
        name: "pjdfstest",
        about: "POSIX conformance of the file system calls (crate pjdfstest)",
        run: pjdfstest::run,
    },
    Suite {
        name: "restart",
        about: "the server is killed under load, loses a cache file, and is started again while the kernel client carries on",
        run: restart::run,
    },
];

/// The server that a suite runs against.
pub(crate) struct Target {
    pub(crate) server: Serving,
    /// The version of NFS by which clients mount.
    pub(crate) version: Version,
}

/// A server, and who started it.
pub(crate) enum Serving {
    /// A server that this program started.
    Own(Server),
    /// A running server that the caller names.
    Given { port: u16, mount_port: u16, directory: PathBuf },
}

impl Target {
    /// Starts a server on an empty directory.
    pub(crate) fn start(kind: Kind, forebay: Option<&Path>, version: Version) -> Result<Self> {
        Ok(Self { server: Serving::Own(Server::start(kind, forebay)?), version })
    }

    /// Returns the TCP port of NFS.
    pub(crate) fn port(&self) -> u16 {
        match &self.server {
            Serving::Own(server) => server.port,
            Serving::Given { port, .. } => *port,
        }
    }

    /// Returns the TCP port of MOUNT.
    pub(crate) fn mount_port(&self) -> u16 {
        match &self.server {
            Serving::Own(server) => server.mount_port,
            Serving::Given { mount_port, .. } => *mount_port,
        }
    }

    /// Returns the served directory on this host.
    pub(crate) fn directory(&self) -> PathBuf {
        match &self.server {
            Serving::Own(server) => server.directory(),
            Serving::Given { directory, .. } => directory.clone(),
        }
    }

    /// Writes all data of clients to the directory, if this program started the server.
    pub(crate) fn flush(&self) -> Result<()> {
        match &self.server {
            Serving::Own(server) => server.flush(),
            Serving::Given { .. } => Ok(()),
        }
    }

    /// Returns a guest with the export mounted, for one command.
    pub(crate) fn guest<const N: usize>(&self, limit: Duration, command: [&str; N]) -> Guest {
        Guest {
            nfs: Some(NfsMount {
                version: self.version,
                port: self.port(),
                mount_port: self.mount_port(),
                export: "/".into(),
                options: String::new(),
            }),
            shares: Vec::new(),
            command: command.map(str::to_owned).into(),
            limit,
            memory: 2048,
            all_modules: self.version != Version::V3,
            machine: Machine::here(),
            kernel: Release::default(),
            network: None,
        }
    }
}

/// Runs a suite against a target, prints failures and unexpected results, and counts.
pub(crate) fn run(suite: &Suite, kind: Kind, mut target: Target) -> Result<Counts> {
    let cases = (suite.run)(&mut target)?;
    if let Serving::Own(server) = &mut target.server {
        server.stop()?;
    }
    if cases.is_empty() {
        bail!("{} gave no results", suite.name);
    }
    let counts = expected::judge(&cases, &expected::list(suite.name, kind, target.version)?);
    println!(
        "{}: {} passed, {} failed, {} failed as expected, {} skipped",
        suite.name, counts.passed, counts.failed, counts.expected, counts.skipped
    );
    Ok(counts)
}

/// Returns the path of a file in the suites' assets.
pub(crate) fn asset(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("assets").join(name)
}

/// Parses a line of the suites' scripts: `ok NAME`, `not ok NAME: WHY` or `skip NAME: WHY`.
pub(crate) fn reported(line: &str) -> Option<Case> {
    let (name, outcome) = if let Some(name) = line.strip_prefix("ok ") {
        (name, Outcome::Passed)
    } else if let Some(text) = line.strip_prefix("not ok ") {
        let (name, why) = text.split_once(": ").unwrap_or((text, ""));
        (name, Outcome::Failed(why.into()))
    } else {
        (line.strip_prefix("skip ")?.split(": ").next()?, Outcome::Skipped)
    };
    Some(Case { name: name.trim().into(), outcome })
}

/// Returns a case for a whole program. It passed if there is no problem.
pub(crate) fn whole(name: &str, problem: Option<String>) -> Case {
    Case { name: name.into(), outcome: problem.map_or(Outcome::Passed, Outcome::Failed) }
}

/// Runs a guest, prints what it says, and returns the cases that it reports. The last case is the run itself: it failed
/// if the guest did not end with status 0, or reported nothing.
pub(crate) fn cases_of(guest: &Guest) -> Vec<Case> {
    let mut cases = Vec::new();
    let ended = guest.run(|line| {
        let line = String::from_utf8_lossy(line);
        eprint!("{line}");
        cases.extend(reported(&line));
    });
    let problem = match ended {
        Ok(0) if cases.is_empty() => Some("the guest reported nothing".to_owned()),
        Ok(0) => None,
        Ok(status) => Some(format!("the guest ended with {status}")),
        Err(error) => Some(format!("{error:#}")),
    };
    cases.push(whole("the run", problem));
    cases
}

/// Prints the failed cases, and counts. There is no list of expected failures.
pub(crate) fn count(name: &str, cases: &[Case]) -> Counts {
    let mut counts = Counts::default();
    for Case { name, outcome } in cases {
        match outcome {
            Outcome::Passed => counts.passed += 1,
            Outcome::Skipped => counts.skipped += 1,
            Outcome::Failed(why) => {
                println!("FAILED {name}: {}", why.trim_end());
                counts.failed += 1;
            }
        }
    }
    println!("{name}: {} passed, {} failed", counts.passed, counts.failed);
    counts
}
