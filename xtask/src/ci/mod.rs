//! `cargo x ci`: runs every check. Each is named and timed, and a table comes at the end.

mod failures;
mod modes;
mod record;
mod room;
mod run;
mod schedule;
mod steps;

use std::{io::Write as _, process::Command, time::Duration};

use anyhow::{Result, ensure};

pub(crate) use record::list;
pub(crate) use room::check as check_room;
pub(crate) use run::{run_for_parent, run_steps};
use schedule::Share;
pub(crate) use steps::{all, quick};

use crate::{
    process::{command, line, lines, output, root, run, target_dir, within},
    setup,
    suites::Counts,
};

/// Longest time of a command. A command that takes longer is ended, and the following steps still run.
const LIMIT: Duration = Duration::from_mins(25);

/// Leaves out the allocator of the installed binary, the only default feature of the workspace. Tests and checks do
/// without it, because its build takes a minute of processor time for each profile.
const WITHOUT_ALLOCATOR: &str = "--no-default-features";

/// Time of all fuzz targets together.
const FUZZING: Duration = Duration::from_secs(60);

/// A named check.
pub(crate) struct Step {
    pub(crate) name: &'static str,
    /// The contents, for `cargo x ci --list`.
    about: &'static str,
    share: Share,
    /// The steps that must end before this one begins.
    after: &'static [&'static str],
    check: Box<dyn Fn() -> Result<Counts> + Sync>,
}

/// Returns a background step that needs no other step.
fn step(
    name: &'static str,
    about: &'static str,
    check: impl Fn() -> Result<Counts> + Sync + 'static,
) -> Step {
    Step { name, about, share: Share::Background, after: &[], check: Box::new(check) }
}

impl Step {
    fn shared(self, share: Share) -> Self {
        Self { share, ..self }
    }

    fn after(self, after: &'static [&'static str]) -> Self {
        Self { after, ..self }
    }
}

/// Builds the simulator and returns its command with `arguments`. It is part of the build for tests, so nothing is
/// built twice. The planted bugs are in it, and only `--plants` switches them on.
pub(crate) fn sim<S: AsRef<std::ffi::OsStr>>(arguments: &[S]) -> Result<Command> {
    // Cargo builds the programs of a package for its integration tests.
    run(&mut cargo_test(&["--quiet", "--no-run", "--test", "worlds"]))?;
    let mut command = Command::new(target_dir().join("debug/forebay-sim"));
    command.args(arguments).current_dir(root());
    Ok(command)
}

/// Returns the command that tests the workspace with `arguments`. For a part of the workspace, dependencies would have
/// other features and be built again. The planted bugs are in this build, each switched off except in the test that
/// must find it.
pub(crate) fn cargo_test(arguments: &[&str]) -> Command {
    with_test_features("test", arguments)
}

/// Returns a command of cargo with the features of the tests. So each library is built once.
fn with_test_features(verb: &str, arguments: &[&str]) -> Command {
    let mut command =
        command("cargo", [verb, "--workspace", "--features", "forebay-sim/plant,forebay-clientstate/plant"]);
    command.arg(WITHOUT_ALLOCATOR).args(arguments);
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
    run(&mut with_test_features("build", &["--quiet", "--example", "fuzz-seeds"]))?;
    run(Command::new(target_dir().join("debug/examples/fuzz-seeds")).arg(root().join("fuzz/corpus")))?;
    let listed = output(&mut command("cargo", ["+nightly", "fuzz", "list"]))?;
    let targets: Vec<_> = listed.lines().collect();
    ensure!(!targets.is_empty(), "fuzz/ has no targets");
    let each = (FUZZING.as_secs() / targets.len() as u64).max(1);
    let mut counts = Counts::default();
    for target in targets {
        let limit = format!("-max_total_time={each}");
        // The decoders have no unsafe code, so AddressSanitizer would find nothing.
        let fuzz = [
            "+nightly",
            "fuzz",
            "run",
            "-s",
            "none",
            target,
            "--",
            &limit,
            "-rss_limit_mb=2048",
            "-timeout=10",
        ];
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
