//! The last result of each step, kept in `target/ci/results` for `cargo x ci --list`.

use std::{
    collections::BTreeMap,
    fs,
    path::PathBuf,
    time::{Duration, SystemTime},
};

use anyhow::{Context, Result};

use super::Step;
use crate::{process::target_dir, suites::Counts};

/// The result of one step. As a line of the file: seconds, processor seconds, end in seconds of the Unix epoch, counts.
#[derive(Clone, Copy)]
pub(super) struct Ended {
    pub(super) counts: Counts,
    pub(super) time: Duration,
    /// The processor time of the step's programs.
    pub(super) busy: Duration,
    /// The end.
    at: u64,
}

impl Ended {
    /// Makes the result of a step that has ended now.
    pub(super) fn now(counts: Counts, time: Duration, busy: Duration) -> Self {
        let at = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
        Self { counts, time, busy, at }
    }

    /// Returns the line that records this result: seconds, busy seconds, the time of day, and the counts.
    fn line(&self) -> String {
        let Counts { passed, failed, expected, skipped } = self.counts;
        let (time, busy, at) = (self.time.as_secs_f64(), self.busy.as_secs_f64(), self.at);
        format!("{time:.1} {busy:.1} {at} {passed} {failed} {expected} {skipped}")
    }

    /// Reads a line that [`Ended::line`] wrote. `None` if another version of this program wrote the file.
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split(' ');
        let mut seconds = || Duration::try_from_secs_f64(words.next()?.parse().ok()?).ok();
        let (time, busy) = (seconds()?, seconds()?);
        let at = words.next()?.parse().ok()?;
        let mut count = || words.next()?.parse().ok();
        let counts = Counts { passed: count()?, failed: count()?, expected: count()?, skipped: count()? };
        Some(Self { counts, time, busy, at })
    }
}

/// Returns the directory for logs and results of steps. It is made if missing.
pub(super) fn directory() -> Result<PathBuf> {
    let dir = target_dir().join("ci");
    fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
    Ok(dir)
}

/// Returns the last result of each step; none if a file of them does not exist or cannot be read.
fn read() -> BTreeMap<String, Ended> {
    let text = directory().and_then(|dir| Ok(fs::read_to_string(dir.join("results"))?)).unwrap_or_default();
    parse(&text)
}

/// Reads the recorded results by the name of the step. Skips lines that cannot be read.
fn parse(text: &str) -> BTreeMap<String, Ended> {
    let parse = |line: &str| {
        let (name, rest) = line.split_once('\t')?;
        Some((name.to_owned(), Ended::parse(rest)?))
    };
    text.lines().filter_map(parse).collect()
}

/// Replaces the result of the step `name`.
pub(super) fn write(name: &str, ended: Ended) -> Result<()> {
    let mut results = read();
    results.insert(name.to_owned(), ended);
    let text: String = results.iter().map(|(name, ended)| format!("{name}\t{}\n", ended.line())).collect();
    // The file is replaced as a whole: a second run may read it.
    let (path, new) = (directory()?.join("results"), directory()?.join("results.new"));
    fs::write(&new, text)
        .and_then(|()| fs::rename(&new, &path))
        .with_context(|| format!("cannot write {}", path.display()))
}

/// Prints every step with the time, the processor time and the result of its last run.
pub(crate) fn list(steps: &[Step]) {
    let results = read();
    let now = Ended::now(Counts::default(), Duration::ZERO, Duration::ZERO).at;
    println!("{:<12} {:>8} {:>8}  {:<10} {:<12} contents", "step", "seconds", "busy", "result", "ended");
    for Step { name, about, .. } in steps {
        let Some(ended) = results.get(*name) else {
            println!("{name:<12} {:>8} {:>8}  {:<10} {:<12} {about}", "-", "-", "never run", "");
            continue;
        };
        let (time, busy) = (ended.time.as_secs_f64(), ended.busy.as_secs_f64());
        let (result, age) = (result(&ended.counts), age(now.saturating_sub(ended.at)));
        println!("{name:<12} {time:>8.1} {busy:>8.1}  {result:<10} {age:<12} {about}");
    }
}

/// Returns the word for the result of a step. A step that passed nothing was skipped.
fn result(counts: &Counts) -> &'static str {
    match counts {
        Counts { failed: 1.., .. } => "failed",
        Counts { passed: 0, .. } => "skipped",
        Counts { .. } => "passed",
    }
}

/// Returns the time since an event as a person says it.
fn age(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s ago"),
        120..7200 => format!("{} min ago", seconds / 60),
        7200..172_800 => format!("{} h ago", seconds / 3600),
        _ => format!("{} days ago", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_is_read_as_it_was_written() {
        let counts = Counts { passed: 12, failed: 1, expected: 2, skipped: 3 };
        let ended = Ended::now(counts, Duration::from_millis(12_300), Duration::from_secs(20));
        let read = parse(&format!("sim: names\t{}\nnonsense\nx\t1 2 3\n", ended.line()));
        assert_eq!(read.len(), 1);
        assert_eq!(read["sim: names"].line(), ended.line());
    }

    #[test]
    fn times_are_said_in_the_unit_that_fits() {
        assert_eq!([5, 600, 7200, 200_000].map(age), ["5 s ago", "10 min ago", "2 h ago", "2 days ago"]);
    }
}
