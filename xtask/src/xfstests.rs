//! xfstests from a Linux client on a network of its own. The server has an XFS that can share blocks. With `--volumes`,
//! the tests run on an XFS of the client on block volumes.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use clap::Parser;

use crate::{
    leftovers,
    mounts::Client,
    process::{command, rigs_dir, run},
    protection::Security,
    server::{self, Kind, Server},
    suites::{Counts, asset, cases_of, count},
    vm::{Guest, Kernel, Machine, Release},
};

/// The size of the file system that is served, in bytes. Its image is sparse.
const SIZE: u64 = 24 << 30;
/// The size of each volume, in bytes.
const VOLUME: u64 = 4 << 30;
/// Time of the guest beside that for tests: its boot, and the end of the last test.
const BESIDE: Duration = Duration::from_secs(900);

/// The arguments of `cargo x xfstests`.
#[derive(Parser)]
pub(crate) struct Xfstests {
    /// Source of the tests: a clone of the repository kdave/xfstests on GitHub
    #[arg(long, value_name = "DIR")]
    source: PathBuf,
    /// Group of the tests in generic and nfs
    #[arg(long, default_value = "quick")]
    group: String,
    /// Number of tests to run at most
    #[arg(long, value_name = "TESTS")]
    limit: Option<usize>,
    /// Test behind which to begin, such as generic/100
    #[arg(long, value_name = "TEST")]
    after: Option<String>,
    /// Minutes after which no further test is begun
    #[arg(long, default_value_t = 60, value_name = "M")]
    minutes: u64,
    /// Run the tests of generic on XFS on two block volumes over NBD, with kernel 6.12 (not as root)
    #[arg(long)]
    volumes: bool,
    /// Kernel of the client
    #[arg(long, value_enum, default_value = "6.1")]
    kernel: Release,
    /// Binary to use in place of target/release/forebay
    #[arg(long, value_name = "PATH")]
    forebay: Option<PathBuf>,
    /// Tests to run in place of the group, such as generic/001
    tests: Vec<String>,
}

impl Xfstests {
    /// Builds the tests, runs them, prints the failures, and counts.
    pub(crate) fn run(&self) -> Result<Counts> {
        let built = build(&self.source)?;
        let tests = if self.tests.is_empty() { self.of_group(&built)? } else { self.tests.clone() };
        ensure!(!tests.is_empty(), "the group {} has no test there", self.group);
        let mut words = vec![built.to_string_lossy().into_owned(), "4.2".into(), self.minutes.to_string()];
        if self.volumes {
            return self.on_volumes(&built, tests);
        }
        words.extend(tests);
        leftovers::remove()?;
        let client = Client {
            server: Kind::Forebay,
            forebay: self.forebay.as_deref(),
            kernel: self.kernel,
            script: asset("xfstests.py"),
            words,
            limit: Duration::from_secs(60 * self.minutes) + BESIDE,
            security: Security::Plain,
            xfs: Some(SIZE),
        };
        client.run("xfstests")
    }

    /// Runs the tests in a guest that attaches two volumes.
    fn on_volumes(&self, built: &Path, tests: Vec<String>) -> Result<Counts> {
        let port = server::free_port()?;
        let nbd = format!("127.0.0.1:{port}");
        let mut server = Server::start_with(self.forebay.as_deref(), ["--nbd".into(), nbd.into()].into())?;
        for name in ["test", "scratch", "log"] {
            let image = server.ssd().join(name);
            File::create(&image)?.set_len(VOLUME)?;
            server.ask(&["volume", "create", name, "--backing", &image.to_string_lossy()])?;
        }
        let kernel = Kernel::ready(Release::V6_12, Machine::here())?;
        // Tests cut the power of a volume by a target of the device mapper.
        let modules = kernel.block_modules().map(|module| module.to_string_lossy().into_owned());
        let modules = modules.filter(|module| module.contains("-dm-") || module.ends_with("-nbd.ko"));
        let modules = modules.collect::<Vec<_>>().join(",");
        let script = asset("xfstests.py").to_string_lossy().into_owned();
        let words = ["/usr/bin/python3", "-B", &script, "10.0.2.2", "/share", &built.to_string_lossy()];
        let words = words.map(str::to_owned).into_iter();
        let words = words.chain([format!("nbd:{port}:{modules}"), self.minutes.to_string()]).chain(tests);
        let share = tempfile::tempdir()?;
        let guest = Guest {
            nfs: None,
            shares: vec![(share.path().to_owned(), "/share".into())],
            command: words.collect(),
            limit: Duration::from_secs(60 * self.minutes) + BESIDE,
            memory: 2048,
            all_modules: true,
            machine: Machine::here(),
            kernel: Release::V6_12,
            network: None,
        };
        let cases = cases_of(&guest);
        server.stop()?;
        Ok(count("xfstests on volumes", &cases))
    }

    /// Returns the tests of the group, in the order of their numbers.
    fn of_group(&self, built: &Path) -> Result<Vec<String>> {
        let mut tests = Vec::new();
        for directory in if self.volumes { &["generic"][..] } else { &["generic", "nfs"] } {
            let list = built.join("tests").join(directory).join("group.list");
            let text =
                fs::read_to_string(&list).with_context(|| format!("cannot read {}", list.display()))?;
            tests.extend(of_list(&text, &self.group).map(|number| format!("{directory}/{number}")));
        }
        let after = |test: &String| self.after.as_ref().is_none_or(|after| test > after);
        Ok(tests.into_iter().filter(after).take(self.limit.unwrap_or(usize::MAX)).collect())
    }
}

/// Returns the numbers of the tests of a group in the list of a directory: lines of a number and groups.
fn of_list<'a>(text: &'a str, group: &'a str) -> impl Iterator<Item = &'a str> {
    text.lines().filter_map(move |line| {
        let mut words = line.split('#').next()?.split_whitespace();
        let number = words.next()?;
        words.any(|word| word == group).then_some(number)
    })
}

/// Builds a copy of the tests for this machine, unless that was done before.
fn build(source: &Path) -> Result<PathBuf> {
    let built = rigs_dir()?.join("xfstests");
    if built.join("tests/generic/group.list").is_file() && built.join("ltp/fsx").is_file() {
        return Ok(built);
    }
    ensure!(source.join("check").is_file(), "{} has no source of xfstests", source.display());
    run(command("cp", ["-r", "--"]).arg(source).arg(&built))?;
    let mut make = Command::new("make");
    run(make.arg("-j2").current_dir(&built))
        .context("cannot build xfstests (docs/development.md lists the packages)")?;
    Ok(built)
}

#[cfg(test)]
mod tests {
    use super::of_list;

    #[test]
    fn a_group_is_a_whole_word_of_a_line() {
        let text =
            "# QA groups\n001 rw dir udf auto quick\n002 quickly\n\n003 auto # quick\n020 attr quick\n";
        assert_eq!(of_list(text, "quick").collect::<Vec<_>>(), ["001", "020"]);
    }
}
