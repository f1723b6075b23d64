//! Runs steps: side by side, each in a process of its own with its output in a file, or in turn.

use std::{
    ffi::OsStr,
    fs::{self, File},
    path::{Path, PathBuf},
    sync::mpsc::channel,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};

use super::{
    Step, all, failures,
    record::{self, Ended},
    schedule::{Schedule, Share},
};
use crate::{process::bounded, suites::Counts};

/// The added niceness of background steps: on a busy processor a prompt step gets nine times as much time.
const NICE: &str = "10";

/// The verb by which [`side_by_side`] starts this program for one step.
const VERB: &str = "ci-step";

/// Runs the steps and prints the table. Returns true if no step failed.
pub(crate) fn run_steps(steps: &[Step], in_turn: bool) -> Result<bool> {
    let start = Instant::now();
    let results = if in_turn || steps.len() == 1 { one_by_one(steps) } else { side_by_side(steps)? };
    print_table(&results, start.elapsed());
    Ok(results.iter().all(|(_, ended)| ended.counts.failed == 0))
}

/// Runs the steps in this process. Their output appears as it is written.
fn one_by_one(steps: &[Step]) -> Vec<(&'static str, Ended)> {
    let run = |step: &Step| {
        eprintln!("\n== {}", step.name);
        let start = Instant::now();
        let (counts, busy) = measured(step);
        (step.name, keep(step.name, counts, start.elapsed(), busy))
    };
    steps.iter().map(run).collect()
}

/// Runs the steps as [`Schedule`] decides. The output of a step stays in `target/ci`; that of a failed one is also
/// printed, and its failures once more at the end of the run.
fn side_by_side(steps: &[Step]) -> Result<Vec<(&'static str, Ended)>> {
    let directory = record::directory()?;
    let work = tempfile::tempdir_in(&directory)?;
    // A step may build this program again, so the steps run a copy.
    let program = work.path().join("xtask");
    fs::copy("/proc/self/exe", &program).context("cannot copy this program")?;
    let mut schedule = Schedule::new(steps, thread::available_parallelism().map_or(1, usize::from));
    let (mut results, mut failed) = (Vec::new(), Vec::new());
    let (sender, receiver) = channel();
    thread::scope(|scope| -> Result<_> {
        loop {
            while let Some(index) = schedule.begin() {
                let step = &steps[index];
                let (sender, program) = (sender.clone(), &program);
                let log = directory.join(format!("{}.log", step.name.replace(": ", "-").replace(' ', "-")));
                eprintln!("== {} begins; its output is in {}", step.name, log.display());
                scope.spawn(move || {
                    let start = Instant::now();
                    let (counts, busy) = in_own_process(step, program, &log).unwrap_or_else(|error| {
                        println!("FAILED {}: {error:#}", step.name);
                        (Counts { failed: 1, ..Counts::default() }, Duration::ZERO)
                    });
                    // The receiver lives as long as this scope.
                    let _ = sender.send((index, counts, start.elapsed(), busy, log));
                });
            }
            if results.len() == steps.len() {
                print_failures(&failed);
                return Ok(results);
            }
            let (index, counts, time, busy, log) = receiver.recv()?;
            schedule.end(index);
            let name = steps[index].name;
            let Counts { passed, failed: failures, .. } = counts;
            println!("== {name} ends after {:.1} s: {passed} passed, {failures} failed", time.as_secs_f64());
            if failures > 0 {
                print_log(&log);
                failed.push((name, log));
            }
            results.push((name, keep(name, counts, time, busy)));
        }
    })
}

/// Prints the output of a step. A step that could not begin has none, and its error is printed already.
fn print_log(log: &Path) {
    if let Ok(text) = fs::read(log) {
        println!("{}", String::from_utf8_lossy(&text));
    }
}

/// Prints the failures of the failed steps, each with its log.
fn print_failures(failed: &[(&str, PathBuf)]) {
    for (name, log) in failed {
        println!("\n== {name} failed; its output is in {}", log.display());
        let text = fs::read(log).unwrap_or_default();
        for line in failures::extract(&String::from_utf8_lossy(&text)) {
            println!("{line}");
        }
    }
}

/// Runs a step in a process of its own, which ends when this process dies. The output goes to the file `log`.
fn in_own_process(step: &Step, program: &Path, log: &Path) -> Result<(Counts, Duration)> {
    let output = File::create(log).with_context(|| format!("cannot make {}", log.display()))?;
    let result = program.with_file_name(format!("{}.result", step.name));
    let words = [program.as_os_str(), OsStr::new(VERB), OsStr::new(step.name), result.as_os_str()];
    let mut command = match step.share {
        Share::Background => {
            bounded(None, "nice", [OsStr::new("-n"), OsStr::new(NICE)].into_iter().chain(words))
        }
        Share::Prompt | Share::Alone => bounded(None, program, &words[1..]),
    };
    let status =
        command.stdin(std::process::Stdio::null()).stdout(output.try_clone()?).stderr(output).status()?;
    let text = fs::read_to_string(&result).with_context(|| format!("the step ended with {status}"))?;
    parse(&text).with_context(|| format!("the step's result is {text:?}"))
}

/// Runs the step `name` for the process that has [`in_own_process`] called, and writes its counts to the file `result`.
pub(crate) fn run_for_parent(name: &str, result: &Path) -> Result<()> {
    let steps = all();
    let step =
        steps.iter().find(|step| step.name == name).with_context(|| format!("there is no step {name}"))?;
    let (Counts { passed, failed, expected, skipped }, busy) = measured(step);
    fs::write(result, format!("{passed} {failed} {expected} {skipped} {}", busy.as_millis()))?;
    Ok(())
}

/// Reads the counts and the processor time that a step has left for this process.
fn parse(text: &str) -> Option<(Counts, Duration)> {
    let mut words = text.split(' ');
    let mut next = || words.next()?.parse().ok();
    let counts = Counts { passed: next()?, failed: next()?, expected: next()?, skipped: next()? };
    Some((counts, Duration::from_millis(words.next()?.parse().ok()?)))
}

/// Runs a step, and returns its counts and the processor time of its programs.
fn measured(step: &Step) -> (Counts, Duration) {
    let before = children_time();
    let counts = counts(step);
    (counts, children_time().saturating_sub(before))
}

/// Returns the processor time of all children that have ended, with their own children; zero if it is not known.
fn children_time() -> Duration {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // proc(5): the name, field 2, is in parentheses. Fields 16 and 17 are the children's times, in ticks.
    let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_ascii_whitespace();
    let ticks: u64 = fields.skip(13).take(2).filter_map(|field| field.parse::<u64>().ok()).sum();
    Duration::from_millis(1000 * ticks / rustix::param::clock_ticks_per_second().max(1))
}

/// Runs a step. An error is a failure and is printed.
fn counts(step: &Step) -> Counts {
    (step.check)().unwrap_or_else(|error| {
        println!("FAILED {}: {error:#}", step.name);
        Counts { failed: 1, ..Counts::default() }
    })
}

/// Keeps the result of a step for `cargo x ci --list`.
fn keep(name: &str, counts: Counts, time: Duration, busy: Duration) -> Ended {
    let ended = Ended::now(counts, time, busy);
    if let Err(error) = record::write(name, ended) {
        eprintln!("the result of {name} is not kept: {error:#}");
    }
    ended
}

/// Prints a line for each step, and the sums with the time of the whole run. `busy` are the processor seconds.
fn print_table(results: &[(&str, Ended)], time: Duration) {
    let mut total = Counts::default();
    for (_, Ended { counts, .. }) in results {
        total.passed += counts.passed;
        total.failed += counts.failed;
        total.expected += counts.expected;
        total.skipped += counts.skipped;
    }
    println!(
        "\n{:<14} {:>7} {:>7} {:>9} {:>8} {:>8} {:>8}",
        "step", "passed", "failed", "expected", "skipped", "seconds", "busy"
    );
    let busy = results.iter().map(|(_, ended)| ended.busy).sum();
    let steps = results.iter().map(|(name, ended)| (*name, ended.counts, ended.time, ended.busy));
    for (name, counts, time, busy) in steps.chain([("all", total, time, busy)]) {
        let Counts { passed, failed, expected, skipped } = counts;
        let (time, busy) = (time.as_secs_f64(), busy.as_secs_f64());
        println!("{name:<14} {passed:>7} {failed:>7} {expected:>9} {skipped:>8} {time:>8.1} {busy:>8.1}");
    }
    println!("{} passed, {} failed", total.passed, total.failed);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ci::step;

    #[test]
    fn counts_of_a_child_are_read() {
        let (Counts { passed, failed, expected, skipped }, busy) = parse("1 2 3 4 5000").unwrap();
        assert_eq!((passed, failed, expected, skipped), (1, 2, 3, 4));
        assert_eq!(busy, Duration::from_secs(5));
        assert!(parse("1 2 3 4").is_none());
    }

    #[test]
    fn the_processor_time_of_a_step_is_that_of_its_programs() {
        let script = "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done";
        let busy = step("busy", "", move || {
            assert!(std::process::Command::new("sh").args(["-c", script]).status()?.success());
            Ok(Counts::default())
        });
        assert!(measured(&busy).1 > Duration::ZERO);
    }

    /// A program that writes no result, as a step that was killed.
    #[test]
    fn a_step_without_a_result_is_an_error_that_names_its_status() {
        let home = tempfile::tempdir().unwrap();
        let program = home.path().join("program");
        std::os::unix::fs::symlink("/bin/false", &program).unwrap();
        let step = step("gone", "", || Ok(Counts::default()));
        let error = in_own_process(&step, &program, &home.path().join("log")).err().unwrap();
        assert!(error.to_string().contains("exit status: 1"), "{error:#}");
    }
}
