//! The tests of pynfs: a client of NFSv4.1 and 4.2 in Python that checks replies, errors and call-backs.

use std::{
    path::{Path, PathBuf},
    process::Stdio,
    thread,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use clap::{Parser, ValueEnum};

use crate::{
    process::{bounded, command, lines, rigs_dir, run},
    server::{Kind, Server, work_dir},
    suites::{Case, Counts, Outcome, expected, whole},
    vm::Version,
};

/// All tests take six minutes, most of it until leases expire.
const LIMIT: Duration = Duration::from_secs(1800);
/// Directories of system programs: the tests need Debian's Python with the packages below.
const PATH: &str = "/usr/sbin:/usr/bin:/sbin:/bin";
const PACKAGES: &str = "python3-dev python3-gssapi python3-ply python3-setuptools swig libkrb5-dev";

/// The arguments of `cargo x pynfs`.
#[derive(Parser)]
pub(crate) struct Pynfs {
    /// Source of the tests: a clone of the repository kofemann/pynfs on GitHub
    #[arg(long, value_name = "DIR")]
    source: PathBuf,
    /// Minor version of NFSv4 (may be repeated) [default: both]
    #[arg(long, value_enum)]
    minor: Vec<Minor>,
    /// Mode of the server (may be repeated); in pass-through it has no cache [default: both]
    #[arg(long, value_parser = ["write-back", "pass-through"])]
    mode: Vec<String>,
    /// Binary to use in place of target/release/forebay
    #[arg(long, value_name = "PATH")]
    forebay: Option<PathBuf>,
    /// Names of tests or of groups of tests
    #[arg(default_value = "all")]
    tests: Vec<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Minor {
    #[value(name = "1")]
    One,
    #[value(name = "2")]
    Two,
}

impl Pynfs {
    /// Runs the tests of all minor versions and modes at once, prints the failures and a table, and counts.
    pub(crate) fn run(&self) -> Result<Counts> {
        let built = build(&self.source)?;
        let minors = if self.minor.is_empty() { vec![Minor::One, Minor::Two] } else { self.minor.clone() };
        let both = || ["write-back", "pass-through"].map(String::from).to_vec();
        let modes = if self.mode.is_empty() { both() } else { self.mode.clone() };
        let runs: Vec<_> = minors.iter().flat_map(|minor| modes.iter().map(|mode| (*minor, mode))).collect();
        // A run mostly waits.
        let results: Vec<_> = thread::scope(|scope| {
            let built = built.as_path();
            let runs: Vec<_> = runs
                .iter()
                .map(|&(minor, mode)| scope.spawn(move || self.cases(built, minor, mode)))
                .collect();
            runs.into_iter().map(|run| run.join().map_err(|_| anyhow::anyhow!("a run panicked"))?).collect()
        });
        let list = expected::list("pynfs", Kind::Forebay, Version::V4_2)?;
        let (mut total, mut table) = (Counts::default(), Vec::new());
        for ((minor, mode), cases) in runs.iter().zip(results) {
            let counts = expected::judge(&cases?, &list);
            let Counts { passed, failed, expected, skipped } = counts;
            let run = passed + failed + expected;
            table.push(format!(
                "4.{}    {mode:<12} {run:>3} {passed:>6} {failed:>6} {expected:>8} {skipped:>7}",
                minor.number()
            ));
            total.passed += passed;
            total.failed += failed;
            total.expected += expected;
            total.skipped += skipped;
        }
        println!("version mode         run passed failed expected skipped\n{}", table.join("\n"));
        Ok(total)
    }

    /// Runs the tests against a server of its own.
    fn cases(&self, built: &Path, minor: Minor, mode: &str) -> Result<Vec<Case>> {
        let mut server =
            Server::start_in(work_dir()?, Vec::new(), Kind::Forebay, self.forebay.as_deref(), mode)?;
        let (url, version) =
            (format!("127.0.0.1:{}/pynfs", server.port), format!("--minorversion={}", minor.number()));
        let words = ["testserver.py", &url, "--maketree", &version, "--showomit"];
        let mut tests = bounded(Some(LIMIT), "/usr/bin/python3", words);
        tests.args(&self.tests).current_dir(built.join("nfs4.1")).env("PATH", PATH).stderr(Stdio::null());
        let mut text = String::new();
        let status = lines(&mut tests, |line| text.push_str(&String::from_utf8_lossy(line)))?;
        let mut cases = parse(&text);
        if cases.is_empty() || !status.success() {
            let end: Vec<_> = text.lines().rev().filter(|line| !line.is_empty()).take(10).collect();
            let problem =
                format!("the tests ended with {status}; their last lines, latest first: {}", end.join(" | "));
            cases.push(whole("the run", Some(problem)));
        }
        server.stop()?;
        Ok(cases)
    }
}

impl Minor {
    /// Returns the minor version as the number that pynfs takes.
    fn number(self) -> u32 {
        match self {
            Minor::One => 1,
            Minor::Two => 2,
        }
    }
}

/// Returns the cases in the output of the tests. A test that it skips because another one failed has failed as well.
fn parse(text: &str) -> Vec<Case> {
    let mut cases: Vec<Case> = Vec::new();
    for line in text.lines() {
        match (result(line), cases.last_mut()) {
            (Some(case), _) => cases.push(case),
            (None, Some(Case { outcome: Outcome::Failed(why), .. })) if line.starts_with("     ") => {
                why.push(' ');
                why.push_str(line.trim());
            }
            _ => {}
        }
    }
    cases
}

/// Parses a line such as `RNM1a    st_rename.testCfhDir     : PASS`.
fn result(line: &str) -> Option<Case> {
    let (test, word) = line.rsplit_once(" : ")?;
    let mut words = test.split_whitespace();
    let (name, function) = (words.next()?, words.next()?);
    if !function.starts_with("st_") || words.next().is_some() {
        return None;
    }
    let outcome = match word.trim() {
        "PASS" => Outcome::Passed,
        word => Outcome::Failed(word.to_lowercase()),
    };
    Some(Case { name: name.into(), outcome })
}

/// Builds a copy of the tests, unless that was done before.
fn build(source: &Path) -> Result<PathBuf> {
    let built = rigs_dir()?.join("pynfs");
    let is_built =
        || built.join("nfs4.1/xdrdef/nfs4_pack.py").is_file() && built.join("rpc/gss_pack.py").is_file();
    if is_built() {
        return Ok(built);
    }
    ensure!(source.join("nfs4.1/testserver.py").is_file(), "{} has no source of pynfs", source.display());
    if !built.exists() {
        run(command("cp", ["-r", "--"]).arg(source).arg(&built))?;
    }
    let mut make = command("/usr/bin/python3", ["setup.py", "build"]);
    run(make.current_dir(&built).env("PATH", PATH).stdout(Stdio::null())).context("cannot build pynfs")?;
    // The script ignores failures.
    ensure!(is_built(), "cannot build pynfs: install {PACKAGES}");
    Ok(built)
}

#[cfg(test)]
mod tests {
    use super::{Case, Outcome, parse};

    #[test]
    fn results_are_read_with_their_reasons() {
        let text = "INFO : a line of the log\n\
            RNM4     st_rename.testNoSfh                                       : PASS\n\
            DELEG25  st_delegation.testCbGetattrWithChange                     : FAILURE\n           \
                       AttributeError: 'NoneType' object : none\n           here\n\
            SEQ6     st_sequence.testRequestTooBig                             : OMIT\n\
            **************************************************\n\
            Of those: 0 Skipped, 5 Failed, 0 Warned, 178 Passed\n";
        let cases = parse(text);
        let names: Vec<_> = cases.iter().map(|case| case.name.as_str()).collect();
        assert_eq!(names, ["RNM4", "DELEG25", "SEQ6"]);
        let [Case { outcome: Outcome::Passed, .. }, failed, omitted] = &cases[..] else {
            panic!("{names:?}")
        };
        let why = |case: &Case| match &case.outcome {
            Outcome::Failed(why) => why.clone(),
            _ => String::new(),
        };
        assert_eq!(why(failed), "failure AttributeError: 'NoneType' object : none here");
        assert_eq!(why(omitted), "omit");
    }
}
