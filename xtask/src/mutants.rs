//! Mutants: small changes of the code, made by cargo-mutants, each of which a test must notice. The unit tests of the
//! package come first and take some ten seconds for a mutant. The mutants that survive are run against the
//! simulator's tests, with its scenarios and some of its worlds (`crates/sim/tests/worlds.rs`).

use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use clap::Args;

use crate::process::{command, output};
use crate::setup::tool;

/// The list of mutants that no test can distinguish from the code.
const EQUIVALENT: &str = include_str!("../assets/mutants/equivalent.txt");

/// Percentage of mutants that must be noticed.
const WANTED: usize = 95;

/// Tests that a mutant must pass to survive.
struct Stage {
    package: &'static str,
    profile: &'static str,
}

const fn unit_tests(package: &'static str) -> Stage {
    Stage { package, profile: "dev" }
}

const SIMULATOR: Stage = Stage { package: "forebay-sim", profile: "sim" };

/// Files to mutate, and the tests that must notice the mutants, in order.
struct Part {
    name: &'static str,
    files: &'static [&'static str],
    stages: &'static [Stage],
}

const PARTS: [Part; 3] = [
    Part {
        name: "engine",
        files: &[
            "crates/engine/src/log/*.rs",
            "crates/engine/src/recover/*.rs",
            "crates/engine/src/segments/*.rs",
            "crates/engine/src/pool/*.rs",
            "crates/engine/src/log/writer.rs",
            "crates/engine/src/request/bypass.rs",
            "crates/engine/src/request/truncate.rs",
            "crates/engine/src/maintain/remirror.rs",
            "crates/engine/src/log/mirror_io.rs",
            "crates/engine/src/pool/membership.rs",
            "crates/engine/src/request/unsynced.rs",
        ],
        stages: &[unit_tests("forebay-engine"), SIMULATOR],
    },
    Part {
        name: "oplog",
        files: &["crates/oplog/src/**/*.rs"],
        stages: &[unit_tests("forebay-oplog"), SIMULATOR],
    },
    Part {
        name: "vfs",
        files: &["crates/vfs/src/oplog/recover*.rs", "crates/vfs/src/oplog/recover/**/*.rs"],
        stages: &[unit_tests("forebay-vfs")],
    },
];

/// The arguments of `cargo x mutants`.
#[derive(Args)]
pub(crate) struct Mutants {
    /// Part to mutate
    #[arg(value_parser = PARTS.map(|part| part.name), default_value = "engine")]
    part: String,
    /// Try this number of mutants, chosen at random [default: all, which takes days]
    #[arg(long, value_name = "N")]
    sample: Option<usize>,
    /// Seed of the random choice
    #[arg(long, default_value_t = 1, value_name = "S")]
    seed: u64,
    /// Worlds of the simulator for each mutant
    #[arg(long, default_value_t = 300, value_name = "W")]
    worlds: u64,
    /// Number of mutants tried at one time; each takes 2 GiB of disk
    #[arg(long, default_value_t = 1)]
    jobs: usize,
    /// Only list the mutants
    #[arg(long)]
    list: bool,
}

/// Returns a mutant's name without line and column, because these change with every edit.
fn name_of(line: &str) -> Option<String> {
    let (file, rest) = line.split_once(':')?;
    let (_, change) = rest.split_once(": ")?;
    Some(format!("{file}: {}", change.trim()))
}

/// Parses the list of mutants that no test can distinguish from the code. Returns names and reasons.
fn equivalent(text: &str) -> Result<BTreeMap<String, String>> {
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let split = |line: &str| {
        let (name, reason) = line.rsplit_once(" = ").with_context(|| format!("no reason in: {line}"))?;
        Ok((name.to_owned(), reason.to_owned()))
    };
    lines.map(split).collect()
}

/// Returns `count` of `lines`, chosen by `seed`, in their original order.
fn sample(mut lines: Vec<String>, count: usize, seed: u64) -> Vec<String> {
    let mut state = seed;
    let mut draw = || {
        // splitmix64
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    };
    while lines.len() > count {
        let at = draw() % lines.len() as u64;
        lines.remove(at as usize);
    }
    lines
}

/// Returns a regular expression that matches only this text.
fn exactly(text: &str) -> String {
    let special = |letter: char| "\\.+*?()|[]{}^$".contains(letter);
    let escaped = text.chars().flat_map(|letter| special(letter).then_some('\\').into_iter().chain([letter]));
    format!("^{}$", escaped.collect::<String>())
}

/// Returns the mutants in an output file of cargo-mutants.
fn listed(name: &str) -> Vec<String> {
    let text = std::fs::read_to_string(format!("target/mutants.out/{name}.txt")).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

impl Mutants {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let part = PARTS.iter().find(|part| part.name == self.part).context("no such part")?;
        tool("cargo-mutants").context("install it with `cargo x setup --mutants`")?;
        let equivalent = equivalent(EQUIVALENT)?;
        let mut list = command("cargo", ["mutants", "--list", "--workspace"]);
        list.args(part.files.iter().flat_map(|file| ["--file", *file]));
        let is_known = |line: &String| name_of(line).is_some_and(|name| equivalent.contains_key(&name));
        let all: Vec<String> = output(&mut list)?.lines().map(str::to_owned).collect();
        let open: Vec<String> = all.into_iter().filter(|line| !is_known(line)).collect();
        let known = open.len();
        let chosen = sample(open, self.sample.unwrap_or(known), self.seed);
        if self.list {
            chosen.iter().filter_map(|line| name_of(line)).for_each(|name| println!("{name}"));
            return Ok(ExitCode::SUCCESS);
        }
        if chosen.is_empty() {
            bail!("the part {} has no mutants to try", self.part);
        }
        let (mut living, mut dead) = (chosen, 0);
        for stage in part.stages.iter() {
            if !living.is_empty() {
                let tried = self.meet(stage, &living)?;
                dead += tried.dead;
                living = tried.living;
            }
        }
        self.report(&living, dead)
    }

    /// Tries `mutants` against the tests of a stage.
    fn meet(&self, stage: &Stage, mutants: &[String]) -> Result<Tried> {
        let mut run = command("cargo", ["mutants", "--workspace", "--output", "target", "--no-shuffle"]);
        run.args(["--profile", stage.profile, "--test-package", stage.package]);
        run.args(["--timeout", "1800", "--jobs", &self.jobs.to_string()]);
        // Cargo-mutants 27.1 always tries mutants that leave out a field. The file list limits them to the files of
        // the sample.
        let files: BTreeSet<&str> = mutants.iter().filter_map(|line| Some(line.split_once(':')?.0)).collect();
        run.args(files.into_iter().flat_map(|file| ["--file", file]));
        run.args(mutants.iter().flat_map(|line| ["--re".to_owned(), exactly(line)]));
        // The exit status is an error if a mutant survives. The output files say which mutants survived.
        let _ = run.env("FOREBAY_WORLDS", self.worlds.to_string()).status()?;
        let of_these =
            |name| listed(name).into_iter().filter(|line| mutants.contains(line)).collect::<Vec<_>>();
        let dead = of_these("caught").len() + of_these("timeout").len();
        let tried = Tried { living: of_these("missed"), dead };
        if tried.dead == 0 && tried.living.is_empty() {
            bail!("no mutant was tested; see target/mutants.out/log");
        }
        Ok(tried)
    }

    fn report(&self, living: &[String], dead: usize) -> Result<ExitCode> {
        let all = dead + living.len();
        living.iter().for_each(|line| println!("LIVES: {}", name_of(line).as_deref().unwrap_or(line)));
        println!("{dead} of {all} mutants of {} noticed (seed {})", self.part, self.seed);
        Ok(if dead * 100 >= all * WANTED { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

/// The outcome of a stage. Mutants that cannot be compiled are in neither field.
struct Tried {
    living: Vec<String>,
    dead: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mutant_keeps_its_name_when_lines_are_added_above_it() {
        let name = name_of("crates/a/src/b.rs:12:5: replace f -> bool with true").unwrap();
        assert_eq!(name, "crates/a/src/b.rs: replace f -> bool with true");
        assert_eq!(name_of("crates/a/src/b.rs:99:1: replace f -> bool with true"), Some(name));
    }

    #[test]
    fn a_sample_is_the_same_for_the_same_seed() {
        let lines = || (0..100).map(|number| number.to_string()).collect::<Vec<_>>();
        let chosen = sample(lines(), 30, 7);
        assert_eq!((chosen.len(), &chosen), (30, &sample(lines(), 30, 7)));
        assert_ne!(chosen, sample(lines(), 30, 8));
        assert_eq!(sample(lines(), 200, 1), lines());
    }

    #[test]
    fn every_line_of_the_list_has_a_reason() {
        equivalent(EQUIVALENT).unwrap();
        assert!(equivalent("crates/a/src/b.rs: replace f with ()").is_err());
        let one = equivalent("# a comment\na.rs: replace = with == = both are never reached\n").unwrap();
        assert_eq!(one["a.rs: replace = with =="], "both are never reached");
    }

    #[test]
    fn names_are_matched_as_they_are() {
        assert_eq!(exactly("a.rs:1:2: replace + with *"), "^a\\.rs:1:2: replace \\+ with \\*$");
    }
}
