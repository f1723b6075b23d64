//! Mutants: small changes of the code, named by cargo-mutants, each of which some test has to notice. All mutants are
//! in one build, each behind a switch (`switch.rs`). The unit tests of the package come first. Surviving mutants meet
//! the tests of the simulator that reach them: its scenarios and some of its worlds (`crates/sim/tests/worlds.rs`).

mod switch;
mod tree;
mod trial;

use std::collections::BTreeMap;
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use clap::Args;

use crate::process::{command, output};
use crate::setup::tool;
use switch::Mutant;
use tree::Tree;
use trial::{Bench, Fate, all_tests};

/// The mutants that no test can tell from the code.
const EQUIVALENT: &str = include_str!("../../assets/mutants/equivalent.txt");

/// The number of mutants, of 100, that tests have to notice.
const WANTED: usize = 95;

/// Test programs that mutants have to pass to live on.
pub(super) struct Tests {
    package: &'static str,
    /// Arguments of `cargo test`.
    targets: &'static [&'static str],
}

const fn unit_tests(package: &'static str) -> Tests {
    Tests { package, targets: &["--lib"] }
}

const SIMULATOR: Tests = Tests { package: "forebay-sim", targets: &["--lib", "--test", "worlds"] };

/// The files to mutate, and the tests that have to notice, in order.
struct Part {
    name: &'static str,
    files: &'static [&'static str],
    stages: &'static [Tests],
}

const PARTS: [Part; 4] = [
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
            "crates/engine/src/request/no_device.rs",
            "crates/engine/src/index/unsynced.rs",
            "crates/engine/src/maintain/devices.rs",
        ],
        stages: &[unit_tests("forebay-engine"), SIMULATOR],
    },
    Part {
        name: "oplog",
        files: &["crates/oplog/src/**/*.rs"],
        stages: &[unit_tests("forebay-oplog"), SIMULATOR],
    },
    Part {
        name: "metalog",
        files: &["crates/metalog/src/**/*.rs"],
        stages: &[unit_tests("forebay-metalog"), SIMULATOR],
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
    /// Try this number, chosen by chance [default: all, which takes a day]
    #[arg(long, value_name = "N")]
    sample: Option<usize>,
    /// Choose by this number
    #[arg(long, default_value_t = 1, value_name = "S")]
    seed: u64,
    /// Worlds of the simulator for each mutant
    #[arg(long, default_value_t = 300, value_name = "W")]
    worlds: u64,
    /// Only list the mutants
    #[arg(long)]
    list: bool,
}

/// A mutant's name without line and column, which change with every edit.
fn name_of(line: &str) -> Option<String> {
    let (file, rest) = line.split_once(':')?;
    let (_, change) = rest.split_once(": ")?;
    Some(format!("{file}: {}", change.trim()))
}

/// The mutants that no test can tell from the code, by name, and the reasons.
fn equivalent(text: &str) -> Result<BTreeMap<String, String>> {
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let split = |line: &str| {
        let (name, reason) = line.rsplit_once(" = ").with_context(|| format!("no reason in: {line}"))?;
        Ok((name.to_owned(), reason.to_owned()))
    };
    lines.map(split).collect()
}

/// `count` of `lines`, chosen by `seed`, in the order they had.
fn sample<T>(mut lines: Vec<T>, count: usize, seed: u64) -> Vec<T> {
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

impl Mutants {
    /// Draws mutants of a part of the code and runs the tests against each. Fails if the tests notice too few. With
    /// `--list`, only prints their names.
    pub(crate) fn run(self) -> Result<ExitCode> {
        let part = PARTS.iter().find(|part| part.name == self.part).context("no such part")?;
        tool("cargo-mutants").context("install it with `cargo x setup --mutants`")?;
        let mut mutants = self.choose(part)?;
        let equivalent = equivalent(EQUIVALENT)?;
        let is_known =
            |mutant: &Mutant| name_of(&mutant.name).is_some_and(|name| equivalent.contains_key(&name));
        if self.list {
            mutants.iter().filter_map(|mutant| name_of(&mutant.name)).for_each(|name| println!("{name}"));
            return Ok(ExitCode::SUCCESS);
        }
        let drawn = mutants.len();
        mutants.retain(|mutant| !is_known(mutant));
        if mutants.is_empty() {
            bail!("there is nothing to mutate in {}", self.part);
        }
        let fates = self.meet(part, &mutants)?;
        let report = Report { part: part.name, equivalent: drawn - mutants.len(), fates };
        Ok(report.print(&mutants))
    }

    /// The mutants that are drawn, numbered.
    fn choose(&self, part: &Part) -> Result<Vec<Mutant>> {
        let mut list = command("cargo", ["mutants", "--list", "--json", "--workspace"]);
        list.args(part.files.iter().flat_map(|file| ["--file", *file]));
        let list: Vec<serde_json::Value> = serde_json::from_str(&output(&mut list)?)?;
        let all: Vec<Mutant> = list.iter().map(Mutant::new).collect::<Result<_>>()?;
        let count = self.sample.unwrap_or(all.len());
        let mut mutants = sample(all, count, self.seed);
        (1..).zip(&mut mutants).for_each(|(number, mutant)| mutant.number = number);
        Ok(mutants)
    }

    /// Tries `mutants` against the tests of a part, stage by stage.
    fn meet(&self, part: &Part, mutants: &[Mutant]) -> Result<Vec<Fate>> {
        let mut tree = Tree::new(mutants)?;
        let mut fates = vec![Fate::Lives; mutants.len()];
        for tests in part.stages {
            println!("building the tests of {} with all mutants", tests.package);
            let programs = tree.build(mutants, tests)?;
            let bench = |program| Bench::new(program, self.worlds);
            let benches: Vec<_> = programs.into_iter().map(bench).collect::<Result<_>>()?;
            for (mutant, fate) in mutants.iter().zip(&mut fates).filter(|(_, fate)| **fate == Fate::Lives) {
                *fate = if tree.apart.contains(&mutant.number) {
                    self.meet_apart(&mut tree, mutant, tests)?
                } else if tree.invalid.contains(&mutant.number) {
                    Fate::Invalid
                } else {
                    let mut found = benches.iter().map(|bench| bench.notices(mutant.number));
                    let found = found.find_map(Result::transpose).transpose()?;
                    found.map_or(Fate::Lives, |test| Fate::Noticed(tests.package, test))
                };
                if let Fate::Noticed(_, test) = fate {
                    println!("{}: {test}", mutant.name);
                }
            }
        }
        Ok(fates)
    }

    /// A mutant that no switch can be put around.
    fn meet_apart(&self, tree: &mut Tree, mutant: &Mutant, tests: &Tests) -> Result<Fate> {
        let Some(programs) = tree.build_apart(mutant, tests)? else { return Ok(Fate::Invalid) };
        let mut found = programs.iter().map(|program| all_tests(program, self.worlds));
        let found = found.find_map(Result::transpose).transpose()?;
        Ok(found.map_or(Fate::Lives, |test| Fate::Noticed(tests.package, test)))
    }
}

/// The outcomes of a part's mutants.
struct Report {
    part: &'static str,
    /// Mutants drawn that no test can tell from the code.
    equivalent: usize,
    fates: Vec<Fate>,
}

impl Report {
    /// Prints the surviving mutants and the counts. Returns failure if less than `WANTED` percent were noticed.
    fn print(&self, mutants: &[Mutant]) -> ExitCode {
        let mut packages = BTreeMap::<&str, usize>::new();
        let (mut living, mut invalid) = (0, 0);
        for (mutant, fate) in mutants.iter().zip(&self.fates) {
            match fate {
                Fate::Lives => {
                    living += 1;
                    println!("LIVES: {}", mutant.name);
                }
                Fate::Invalid => invalid += 1,
                Fate::Noticed(package, _) => *packages.entry(package).or_default() += 1,
            }
        }
        let dead: usize = packages.values().sum();
        let all = dead + living;
        packages.iter().for_each(|(package, count)| println!("{count} noticed by the tests of {package}"));
        println!("{} equivalent, {invalid} that cannot be compiled", self.equivalent);
        println!("{dead} of {all} mutants of {} noticed", self.part);
        if dead * 100 >= all * WANTED { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
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
}
