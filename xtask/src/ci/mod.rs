//! `cargo x ci`: runs every check in order. Each is named and timed, and a table comes at the end.

use std::{
    io::Write as _,
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};

use crate::{
    boot, dist, documents,
    process::{command, line, lines, output, root, run, target_dir, within},
    quota, readme,
    server::{Kind, Server},
    setup,
    suites::{self, Counts, SUITES, Target},
    untar,
};

/// Longest time of a step. A step that takes longer is ended, and the following steps still run.
const LIMIT: Duration = Duration::from_mins(25);

/// Time of all fuzz targets together.
const FUZZING: Duration = Duration::from_secs(60);

/// A named check.
pub(crate) struct Step {
    pub(crate) name: &'static str,
    check: Box<dyn Fn() -> Result<Counts>>,
}

fn step(name: &'static str, check: impl Fn() -> Result<Counts> + 'static) -> Step {
    Step { name, check: Box::new(check) }
}

/// Returns the checks of a quick run: some minutes, without root, and without anything to install.
pub(crate) fn quick() -> Vec<Step> {
    vec![
        step("format", || one(&mut command("cargo", ["fmt", "--all", "--check"]))),
        step("clippy", || {
            one(&mut command("cargo", ["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]))
        }),
        step("tests", || tests(&mut command("cargo", ["test", "--workspace", "--no-fail-fast"]))),
        step("documents", documents::check),
    ]
}

/// Returns all checks.
pub(crate) fn all() -> Vec<Step> {
    let mut steps = quick();
    steps.extend([
        step("rustdoc", || {
            one(command("cargo", ["doc", "--workspace", "--no-deps"]).env("RUSTDOCFLAGS", "-D warnings"))
        }),
        step("dependencies", || {
            // The advisory database cannot be reached from everywhere, so advisories are left out.
            one(&mut command("cargo", ["deny", "check", "bans", "licenses", "sources"]))
        }),
        // Repeats the tests that do not set a mode, in write-back.
        step("write-back", || {
            // The command covers the workspace: for one package, dependencies would have other features and be built
            // again.
            let mut command = command("cargo", ["test", "--workspace", "--test", "nfs", "--no-fail-fast"]);
            tests(command.env("FOREBAY_TEST_MODE", "write-back"))
        }),
        step("fuzz", fuzz),
        // The step has a number of worlds, not a time, so that it has one meaning on every machine.
        step("sim", || one(&mut sim(&["--seeds", "800"]))),
        step("sim: all", || {
            one(&mut sim(&["--exhaustive", "2", "--stride", "4"]))?;
            one(&mut sim(&["--exhaustive", "3", "--stride", "40"]))
        }),
        step("sim: names", || {
            one(&mut sim(&["--names", "--seeds", "10000"]))?;
            one(&mut sim(&["--names", "--exhaustive", "3", "--stride", "40"]))
        }),
        step("sim: joined", || one(&mut sim(&["--joined", "--seeds", "1000"]))),
        step("sim: bugs", || {
            let scenarios = ["test", "--quiet", "--profile", "sim", "--package", "forebay-sim", "--features"];
            one(command("cargo", scenarios).args(["plant", "--lib", "planted"]))?;
            let engine = ["test", "--quiet", "--package", "forebay-engine", "--features", "plant", "--lib"];
            one(command("cargo", engine).arg("planted"))?;
            let features =
                ["run", "--quiet", "--profile", "sim", "--package", "forebay-sim", "--features", "plant"];
            one(command("cargo", features).args(["--", "--plants", "--seeds", "800"]))?;
            one(command("cargo", features).args(["--", "--names", "--plants", "--seeds", "800"]))?;
            one(command("cargo", features).args(["--", "--joined", "--plants", "--seeds", "4000"]))
        }),
        // The step has a number of orders, not a time, so that it has one meaning on every machine.
        step("threads", || {
            let arguments = ["test", "--package", "forebay-threads", "--features", "shuttle"];
            tests(&mut command("cargo", arguments))
        }),
        step("release", || {
            one(&mut command("cargo", ["build", "--release", "--bin", "forebay"]))?;
            dist::split(&target_dir().join("release/forebay"), &target_dir().join("dist"))?;
            Ok(Counts { passed: 2, ..Counts::default() })
        }),
        // Sends real requests through FUSE and a loop device. The ratios between loads must be those of the model.
        step("array", || {
            let arguments =
                ["bench", "array", "calibrate", "--check", "--model", "nl-sas-8", "--seconds", "4"];
            one(Command::new(target_dir().join("release/forebay")).args(arguments))
        }),
        step("readme", || readme::check(false)),
    ]);
    steps.extend(SUITES.iter().map(|suite| {
        step(suite.name, move || {
            suites::run(suite, Kind::Forebay, Target::Own(Server::start(Kind::Forebay, None)?))
        })
    }));
    // Cuts the power under a kernel client that unpacks a tree.
    steps.push(step("untar", untar::check));
    // This machine's kernel may have no quotas, but the guest's has.
    steps.push(step("quota", quota::check));
    // Tests the shipped unit under systemd.
    steps.push(step("boot", boot::check));
    steps
}

/// Runs the steps and prints the table. Returns true if no step failed.
pub(crate) fn run_steps(steps: &[Step]) -> bool {
    let start = Instant::now();
    let mut table = Vec::new();
    let mut total = Counts::default();
    for Step { name, check } in steps {
        eprintln!("\n== {name}");
        let start = Instant::now();
        let counts = check().unwrap_or_else(|error| {
            println!("FAILED {name}: {error:#}");
            Counts { failed: 1, ..Counts::default() }
        });
        total.passed += counts.passed;
        total.failed += counts.failed;
        total.expected += counts.expected;
        total.skipped += counts.skipped;
        table.push((*name, counts, start.elapsed()));
    }
    table.push(("all", total, start.elapsed()));
    println!(
        "\n{:<14} {:>7} {:>7} {:>9} {:>8} {:>8}",
        "step", "passed", "failed", "expected", "skipped", "seconds"
    );
    for (name, Counts { passed, failed, expected, skipped }, time) in table {
        println!("{name:<14} {passed:>7} {failed:>7} {expected:>9} {skipped:>8} {:>8.1}", time.as_secs_f64());
    }
    println!("{} passed, {} failed", total.passed, total.failed);
    total.failed == 0
}

/// Returns the command of the simulator with `arguments`.
pub(crate) fn sim<S: AsRef<std::ffi::OsStr>>(arguments: &[S]) -> Command {
    let mut command =
        command("cargo", ["run", "--quiet", "--profile", "sim", "--package", "forebay-sim", "--"]);
    command.args(arguments);
    command
}

/// Runs a step that is one command.
fn one(command: &mut Command) -> Result<Counts> {
    run(&mut within(LIMIT, command))?;
    Ok(Counts { passed: 1, ..Counts::default() })
}

/// Runs `cargo test`, forwards its output, and adds up the results of its binaries.
fn tests(command: &mut Command) -> Result<Counts> {
    let mut counts = Counts::default();
    let status = lines(&mut within(LIMIT, command), |line| {
        let _ = std::io::stdout().write_all(line);
        if let Some((passed, failed, ignored)) = summary(&String::from_utf8_lossy(line)) {
            counts.passed += passed;
            counts.failed += failed;
            counts.skipped += ignored;
        }
    })?;
    ensure!(status.success() || counts.failed > 0, "{} ended with {status}", line(command));
    Ok(counts)
}

/// Parses `test result: ok. 3 passed; 0 failed; 1 ignored; ...`.
fn summary(line: &str) -> Option<(usize, usize, usize)> {
    let counts = line.strip_prefix("test result: ")?;
    let count = |word: &str| {
        let (number, _) = counts.split_once(word)?;
        number.trim_end().rsplit(' ').next()?.parse().ok()
    };
    Some((count(" passed")?, count(" failed")?, count(" ignored")?))
}

/// Runs every fuzz target for a short time.
fn fuzz() -> Result<Counts> {
    if !root().join("fuzz/Cargo.toml").is_file() {
        eprintln!("skipped: no fuzz targets");
        return Ok(Counts { skipped: 1, ..Counts::default() });
    }
    if !setup::has_nightly() {
        eprintln!("skipped: no nightly toolchain");
        return Ok(Counts { skipped: 1, ..Counts::default() });
    }
    // From valid messages the fuzzer gets further in a minute than without seeds.
    let seeds = ["run", "--quiet", "--manifest-path", "fuzz/Cargo.toml", "--example", "seeds", "fuzz/corpus"];
    run(&mut command("cargo", seeds))?;
    let listed = output(&mut command("cargo", ["+nightly", "fuzz", "list"]))?;
    let targets: Vec<_> = listed.lines().collect();
    ensure!(!targets.is_empty(), "fuzz/ has no targets");
    let each = (FUZZING.as_secs() / targets.len() as u64).max(1);
    let mut counts = Counts::default();
    for target in targets {
        let limit = format!("-max_total_time={each}");
        let fuzz = ["+nightly", "fuzz", "run", target, "--", &limit, "-rss_limit_mb=2048", "-timeout=10"];
        match run(&mut command("cargo", fuzz)) {
            Ok(()) => counts.passed += 1,
            Err(error) => {
                println!("FAILED fuzz target {target}: {error:#}");
                counts.failed += 1;
            }
        }
    }
    Ok(counts)
}

#[cfg(test)]
mod tests {
    use super::summary;

    #[test]
    fn counts_are_read_from_the_test_summary() {
        let line = "test result: FAILED. 12 passed; 3 failed; 1 ignored; 0 measured; 2 filtered out; finished in 0.00s\n";
        assert_eq!(summary(line), Some((12, 3, 1)));
        assert_eq!(summary("running 3 tests"), None);
    }
}
