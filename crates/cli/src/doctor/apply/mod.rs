//! The changes that `--apply` makes, and `--undo`.
//!
//! A change is written to the list of changes and synced before it is made. So a crash leaves no change that `--undo`
//! does not know.

mod change;

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};

use super::Check;
use super::machine::Machine;
use super::step::Step;
use crate::output;
use change::Change;

/// The name of the list of changes.
pub(super) const LIST: &str = "doctor-changes.jsonl";
/// Text that is new at each start of the host.
const BOOT: &str = "/proc/sys/kernel/random/boot_id";

/// A line of the list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Entry {
    /// The host's start in which the change was made.
    boot: String,
    #[serde(flatten)]
    change: Change,
}

fn boot() -> String {
    fs::read_to_string(BOOT).unwrap_or_default().trim().to_owned()
}

/// Makes every change that a finding proposes, and prints each. Returns false if one could not be made.
///
/// # Errors
/// The list of changes cannot be written; nothing was changed since.
pub(super) fn apply(checks: &[Check], host: &Machine, list: &Path) -> anyhow::Result<bool> {
    let fixes: Vec<_> = checks.iter().filter_map(|check| check.fix.as_ref()).collect();
    if fixes.iter().all(|fix| fix.steps.is_empty()) {
        output::note("Nothing was changed: no finding can be corrected safely while the host runs.");
    }
    let mut has_failed = false;
    for fix in fixes {
        for step in &fix.steps {
            // What the kernel has refused is not kept for the next start either.
            if !take(step, host, list)? {
                has_failed = true;
                break;
            }
        }
    }
    Ok(!has_failed)
}

/// Takes a step, and prints what it has changed. Returns false if the step failed.
fn take(step: &Step, host: &Machine, list: &Path) -> anyhow::Result<bool> {
    if let Some(directory) = missing_directory(step, host) {
        output::note(&format!(
            "This host has no {}: the change before lasts until its next start.",
            directory.display()
        ));
        return Ok(true);
    }
    let subject = subject(step);
    let change = match Change::of(step, host) {
        Ok(Some(change)) => change,
        Ok(None) => return Ok(true),
        Err(error) => {
            output::error(&format!("{subject} is not changed: {error}"));
            return Ok(false);
        }
    };
    let entry = Entry { boot: boot(), change };
    add(list, &entry)
        .with_context(|| format!("{subject} is not changed: cannot write {}", list.display()))?;
    match entry.change.make(host) {
        Ok(sentence) => output::note(&sentence),
        Err(error) => {
            output::error(&format!("cannot change {subject}: {error}"));
            return Ok(false);
        }
    }
    Ok(true)
}

/// Returns the directory that a step needs and this host lacks: it has no systemd, or no udev.
fn missing_directory<'a>(step: &'a Step, host: &Machine) -> Option<&'a Path> {
    let Step::Keep { path, .. } = step else { return None };
    path.parent().filter(|directory| !host.at(directory).is_dir())
}

/// Returns what a step changes, for a sentence.
fn subject(step: &Step) -> String {
    match step {
        Step::Write { path, .. } | Step::Keep { path, .. } => path.display().to_string(),
        Step::Ring { interface, .. } => format!("the receive ring of {interface}"),
        Step::Unit { name } => name.clone(),
        Step::Module { name } => format!("the kernel's module {name}"),
    }
}

/// Adds a change to the list, durably. Cuts off a part of a line that an earlier attempt left: a line behind it would
/// be damaged.
fn add(list: &Path, entry: &Entry) -> io::Result<()> {
    let parent = list.parent().unwrap_or(Path::new("/"));
    fs::create_dir_all(parent)?;
    let mut file = OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(list)?;
    let mut text = Vec::new();
    file.read_to_end(&mut text)?;
    let whole = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
    file.set_len(whole as u64)?;
    let mut line = serde_json::to_vec(entry)?;
    line.push(b'\n');
    file.write_all(&line)?;
    file.sync_all()?;
    File::open(parent)?.sync_all()
}

/// Returns the changes of a list. The last line may be cut short by a crash: its change was not made.
fn read(list: &Path) -> anyhow::Result<Vec<Entry>> {
    let text = match fs::read_to_string(list) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        text => text.with_context(|| format!("cannot read {}", list.display()))?,
    };
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    let parse = |line: &str| {
        serde_json::from_str(line).with_context(|| {
            format!(
                "{} is damaged; settings end with the next start of the host, and files named 90-forebay-* in /etc keep \
                 theirs",
                list.display()
            )
        })
    };
    whole.lines().map(parse).collect()
}

/// Undoes all changes of a list, newest first, and prints each. Returns false if one could not be undone; it stays on
/// the list. A setting that somebody changed since is left alone.
///
/// # Errors
/// The list cannot be read or written.
pub(super) fn undo(host: &Machine, list: &Path) -> anyhow::Result<bool> {
    let mut entries = read(list)?;
    if entries.is_empty() {
        output::note("Nothing to undo: `forebay doctor --apply` has changed nothing here.");
    }
    let kept: BTreeSet<PathBuf> =
        entries.iter().filter_map(|entry| entry.change.kept()).map(Path::to_owned).collect();
    let (boot, mut left) = (boot(), Vec::new());
    while let Some(entry) = entries.pop() {
        let is_kept = entry.change.keeper().is_some_and(|file| kept.contains(&file));
        match entry.change.undo(host, entry.boot == boot, is_kept) {
            Ok(sentence) => output::note(&sentence),
            Err(error) => {
                output::error(&format!("cannot undo the change of {}: {error}", entry.change.name()));
                left.insert(0, entry);
            }
        }
    }
    write(list, &left).with_context(|| format!("cannot write {}", list.display()))?;
    Ok(left.is_empty())
}

/// Replaces the list, or removes it if it is empty.
fn write(list: &Path, entries: &[Entry]) -> io::Result<()> {
    if entries.is_empty() {
        return match fs::remove_file(list) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        };
    }
    let beside = list.with_extension("new");
    let _ = fs::remove_file(&beside);
    entries.iter().try_for_each(|entry| add(&beside, entry))?;
    fs::rename(beside, list)
}

/// Returns an error unless this process may change settings.
pub(super) fn require_root(flag: &str) -> anyhow::Result<()> {
    if !rustix::process::geteuid().is_root() {
        bail!("{flag} changes settings of the host; run it as root, or leave it out to see the commands");
    }
    Ok(())
}

#[cfg(test)]
pub(super) mod tests;
