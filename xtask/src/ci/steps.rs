//! The steps of `cargo x ci`, in the order in which they begin.

use std::process::Command;

use super::{
    Share::{Alone, Prompt},
    Step, WITHOUT_ALLOCATOR, cargo_test, fuzz, modes, one, sim, step, tests,
};
use crate::{
    boot,
    dist::{self, Linked},
    documents, mounts, nbd, package,
    process::{command, target_dir},
    quota, readme,
    server::Kind,
    suites::{self, Counts, SUITES, Target},
    untar,
    vm::Version,
    watched,
};

/// Returns the checks of a quick run: some minutes, without root, and without anything to install.
pub(crate) fn quick() -> Vec<Step> {
    vec![
        step("format", "cargo fmt", || one(&mut command("cargo", ["fmt", "--all", "--check"]))),
        step("clippy", "no warnings in any target", || {
            one(&mut command(
                "cargo",
                ["clippy", "--workspace", WITHOUT_ALLOCATOR, "--all-targets", "--", "-D", "warnings"],
            ))
        }),
        step("test build", "builds all tests", || {
            // Without the examples: clippy checks them, and no test starts one.
            one(&mut cargo_test(&["--no-run", "--lib", "--bins", "--test", "*"]))
        })
        .after(&["clippy"]),
        step("unit tests", "tests of the libraries, and the scenarios of the simulator", || {
            tests(&mut cargo_test(&["--no-fail-fast", "--lib"]))
        })
        .after(&["test build"]),
        step("tests", "tests of the programs and of whole crates, with real servers and files", || {
            let mut command = cargo_test(&["--no-fail-fast", "--bins", "--test", "*"]);
            tests(command.env("FOREBAY_TEST_RECORD", modes::new_record()?))
        })
        .shared(Prompt)
        .after(&["test build"]),
        step("doc tests", "examples in comments", || tests(&mut cargo_test(&["--no-fail-fast", "--doc"])))
            .after(&["test build"]),
        step(
            "documents",
            "links, commands and English of the documents; the ladder of crates",
            documents::check,
        ),
    ]
}

/// Returns all checks.
pub(crate) fn all() -> Vec<Step> {
    let mut steps = quick();
    // Suites need the release build, so it begins with the first steps.
    steps.insert(1, release());
    steps.extend([
        step("write-back", "the tests `nfs` that set no mode again, in mode write-back", || {
            let mut command = cargo_test(&["--test", "nfs", "--no-fail-fast"]);
            if let Some(names) = modes::tests_without_mode(&modes::record()?) {
                command.args(["--", "--exact"]).args(names);
            }
            tests(command.env("FOREBAY_TEST_MODE", "write-back"))
        })
        .shared(Prompt)
        .after(&["test build", "tests"]),
        step("readme", "the transcript of the README", || readme::check(false))
            .shared(Prompt)
            .after(&["release"]),
        step("rustdoc", "no warnings in documentation", || {
            // With the examples, dependencies have the features that they have for clippy, and are not checked again.
            let targets = ["--lib", "--bins", "--examples"];
            let mut command = command("cargo", ["doc", "--workspace", "--no-deps", WITHOUT_ALLOCATOR]);
            one(command.args(targets).env("RUSTDOCFLAGS", "-D warnings"))
        })
        .after(&["clippy"]),
        step("dependencies", "licences, sources and bans", || {
            // The advisory database cannot be had from a registry (decision 041), so advisories are left out.
            one(&mut command("cargo", ["deny", "check", "bans", "licenses", "sources"]))
        }),
    ]);
    steps.extend(guests());
    steps.extend(computed());
    // Sends real requests through FUSE and a loop device. The ratios between loads must be those of the model.
    steps.push(
        step("array", "the emulated array against its model", || {
            let arguments =
                ["bench", "array", "calibrate", "--check", "--model", "nl-sas-8", "--seconds", "4"];
            one(Command::new(target_dir().join("release/forebay")).args(arguments))
        })
        .shared(Alone)
        .after(&["release"]),
    );
    steps
}

/// Returns the step that builds the release binary and splits its debug information off.
fn release() -> Step {
    step("release", "the binary that is installed", || {
        one(&mut dist::build(Linked::Plain))?;
        dist::split(&target_dir().join("release/forebay"), &target_dir().join("dist"))?;
        Ok(Counts { passed: 2, ..Counts::default() })
    })
}

/// Returns the steps with a client of the release build, most of them with a kernel client in a guest.
fn guests() -> Vec<Step> {
    let suites = SUITES.iter().map(|suite| {
        step(suite.name, suite.about, move || {
            suites::run(suite, Kind::Forebay, Target::start(Kind::Forebay, None, Version::V3)?)
        })
        .after(&["release"])
    });
    let mut steps: Vec<_> = suites.collect();
    // The suites of which NFSv4 has most: opens, attributes, and clients that carry on over a crash.
    let again = [("pjdfstest", "pjdfstest 4.2"), ("restart", "restart 4.2")];
    steps.extend(again.into_iter().filter_map(|(suite, name)| {
        let suite = SUITES.iter().find(|known| known.name == suite)?;
        let check =
            move || suites::run(suite, Kind::Forebay, Target::start(Kind::Forebay, None, Version::V4_2)?);
        Some(step(name, "the suite again, mounted with NFSv4.2", check).after(&["release"]))
    }));
    steps.extend([
        step("untar", "power cuts under a kernel client that unpacks a tree", untar::check)
            .after(&["release"]),
        // This machine's kernel may have no quotas, but the guest's has.
        step("mounts", "mounts without options, and locks of NFSv3 and NFSv4", mounts::check)
            .after(&["release"]),
        step("quota", "quotas of the served file system, in a guest", quota::check).after(&["release"]),
        step("nbd", "libnbd's, QEMU's and fio's tools on a block volume", nbd::check).after(&["release"]),
        step("watched", "metrics and alerts in Prometheus, and the page in a browser", watched::check)
            .after(&["release"]),
        step("boot", "the shipped unit under systemd", boot::check).after(&["release"]),
        step(
            "packages",
            "packages: made, checked, installed, upgraded under a client, removed",
            package::check,
        )
        .after(&["release"]),
    ]);
    steps
}

/// Returns the steps that only compute. Each has a number of worlds or orders, not a time, so that it has one meaning
/// on every machine.
fn computed() -> Vec<Step> {
    vec![
        worlds("sim", "random worlds of the engine", &[&["--seeds", "800"]]),
        worlds(
            "sim: all",
            "all short workloads",
            &[&["--exhaustive", "2", "--stride", "4"], &["--exhaustive", "3", "--stride", "40"]],
        ),
        worlds(
            "sim: names",
            "names and attributes after crashes",
            &[&["--names", "--seeds", "10000"], &["--names", "--exhaustive", "3", "--stride", "40"]],
        ),
        worlds("sim: joined", "names and data in one log", &[&["--joined", "--seeds", "1000"]]),
        // A seed that has found a bug before is run first. If it finds the bug, the seeds before it are not run.
        worlds(
            "sim: bugs",
            "planted bugs must be found by worlds",
            &[
                &["--known", PLANTED, "--plants", "--seeds", "800"],
                &["--known", PLANTED, "--plants", "--seeds", "800", "--names"],
                &["--known", PLANTED, "--plants", "--seeds", "8000", "--joined"],
            ],
        ),
        step("threads", "the engine under a scheduler of threads", || {
            tests(&mut features_of_all("forebay-threads", "shuttle"))
        }),
        step("fuzz", "a minute of all fuzz targets", fuzz).after(&["test build"]),
    ]
}

/// The seeds that have found planted bugs.
const PLANTED: &str = "crates/sim/planted.txt";

/// Returns a step that runs the simulator once with each of some lists of arguments.
fn worlds(name: &'static str, about: &'static str, runs: &'static [&[&str]]) -> Step {
    let check = move || {
        runs.iter().try_for_each(|arguments| one(&mut sim(arguments)?).map(drop))?;
        Ok(Counts { passed: 1, ..Counts::default() })
    };
    step(name, about, check).after(&["test build"])
}

/// Returns the command for the unit tests of a package with one of its features. It names further packages, so that
/// dependencies have the features that they have for the whole workspace, and are not built again. Of these packages
/// only `forebay-wire` has a library, whose unit tests take a second or two.
fn features_of_all(package: &str, feature: &str) -> Command {
    let features = format!("{package}/{feature}");
    let mut command = command("cargo", ["test", "--lib", "--features", &features, "--package", package]);
    command.arg(WITHOUT_ALLOCATOR);
    command.args(["forebay-wire", "forebay-cli", "xtask"].map(|other| format!("--package={other}")));
    command
}
