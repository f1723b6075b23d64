//! Each mutant against the tests that reach it, until one of them fails.

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use super::tree::Program;
use crate::process::{Guarded, bounded, output};

/// A test that runs longer than this with a mutant has noticed it.
const LIMIT: Duration = Duration::from_secs(1800);

/// A test of a program, and the mutants that it reaches.
struct Test {
    name: String,
    reached: BTreeSet<usize>,
    took: Duration,
}

/// A test program with its tests.
pub(super) struct Bench {
    program: Program,
    tests: Vec<Test>,
    worlds: u64,
}

impl Bench {
    /// Runs each test of a program by itself, without a mutant.
    ///
    /// # Errors
    /// A test fails.
    pub(super) fn new(program: Program, worlds: u64) -> Result<Self> {
        let mut list = bounded(None, &program.path, ["--list"]);
        let list = output(list.current_dir(&program.folder))?;
        let names: Vec<_> = list.lines().filter_map(|line| line.strip_suffix(": test")).collect();
        let mut bench = Bench { program, tests: Vec::new(), worlds };
        for name in names {
            let file = tempfile::NamedTempFile::new()?;
            let begun = Instant::now();
            if let Some(failed) = bench.run(&[name], 0, Some(file.path()))? {
                bail!("{failed} fails without any mutant");
            }
            let reached = std::fs::read_to_string(file.path())?;
            let reached = reached.lines().filter_map(|line| line.parse().ok()).collect();
            bench.tests.push(Test { name: name.to_owned(), reached, took: begun.elapsed() });
        }
        // Of many tests that notice a mutant, a quick one tells it sooner.
        bench.tests.sort_by_key(|test| test.took);
        Ok(bench)
    }

    /// The test that notices a mutant.
    pub(super) fn notices(&self, mutant: usize) -> Result<Option<String>> {
        let reaching = self.tests.iter().filter(|test| test.reached.contains(&mutant));
        // A start of the program for each test would take longer than most of them.
        let (quick, slow): (Vec<&Test>, Vec<&Test>) =
            reaching.partition(|test| test.took < Duration::from_secs(1));
        for tests in [quick, slow] {
            let names: Vec<_> = tests.iter().map(|test| test.name.as_str()).collect();
            if !names.is_empty()
                && let Some(name) = self.run(&names, mutant, None)?
            {
                return Ok(Some(name));
            }
        }
        Ok(None)
    }

    /// Runs these tests. Returns the first that fails.
    fn run(
        &self,
        names: &[&str],
        mutant: usize,
        reached: Option<&std::path::Path>,
    ) -> Result<Option<String>> {
        run_program(&self.program, self.worlds, &[&["--exact"], names].concat(), mutant, reached)
    }
}

/// Runs all tests of a program that has one mutant, without a switch. Returns the first that fails.
pub(super) fn all_tests(program: &Program, worlds: u64) -> Result<Option<String>> {
    run_program(program, worlds, &[], 0, None)
}

/// Runs a test program with mutant number `mutant`, or without one if the number is 0, until a test fails. Returns
/// the name of that test.
fn run_program(
    program: &Program,
    worlds: u64,
    arguments: &[&str],
    mutant: usize,
    reached: Option<&std::path::Path>,
) -> Result<Option<String>> {
    let mut command = bounded(Some(LIMIT), &program.path, arguments);
    command.current_dir(&program.folder).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    command.env("FOREBAY_MUTANT", mutant.to_string()).env("FOREBAY_WORLDS", worlds.to_string());
    reached.into_iter().for_each(|path| _ = command.env("FOREBAY_REACHED", path));
    let mut child = Guarded(command.spawn().context("cannot start a test program")?);
    let lines = BufReader::new(child.0.stdout.take().context("stdout was not piped")?).lines();
    for line in lines {
        let line = String::from_utf8_lossy(line?.as_bytes()).into_owned();
        if let Some(name) = line.strip_suffix(" ... FAILED") {
            return Ok(Some(name.trim_start_matches("test ").to_owned()));
        }
    }
    let status = child.0.wait()?;
    Ok((!status.success()).then(|| format!("the test program: {status}")))
}

/// The outcome of a mutant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// It cannot be compiled.
    Invalid,
    /// This test of this package failed.
    Noticed(&'static str, String),
    /// Nothing of the part's tests fails.
    Lives,
}
