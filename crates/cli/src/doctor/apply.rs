//! The changes that `--apply` makes, and `--undo`.
//!
//! A change is written to the list of changes and synced before it is made. So a crash leaves no change that `--undo`
//! does not know. All settings end with the host's next start, so changes of an earlier start are only forgotten.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};

use super::Check;
use crate::output;

/// The name of the list of changes.
pub(super) const LIST: &str = "doctor-changes.jsonl";
/// Text that is new at each start of the host.
const BOOT: &str = "/proc/sys/kernel/random/boot_id";

/// A file and a value for it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Setting {
    path: PathBuf,
    value: String,
}

/// One change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Change {
    /// The host's start, in which the change was made.
    boot: String,
    /// The file, and its value after the change.
    after: Setting,
    /// The value of the file before the change.
    before: String,
    /// The setting that brings `before` back. It differs from `before` where two files stand for one setting.
    undo: Setting,
}

fn boot() -> String {
    fs::read_to_string(BOOT).unwrap_or_default().trim().to_owned()
}

/// Returns the value of a file of /proc or /sys. The kernel marks the chosen value of several: `none [mq-deadline]`.
fn value(path: &Path) -> io::Result<String> {
    let text = fs::read_to_string(path)?;
    let chosen = text.split_once('[').and_then(|(_, rest)| rest.split_once(']')).map(|(chosen, _)| chosen);
    Ok(chosen.unwrap_or(&text).split_whitespace().collect::<Vec<_>>().join(" "))
}

/// Returns the setting that brings a value back. `vm.dirty_background_bytes` is 0 while `vm.dirty_background_ratio` is
/// in force, and writing 0 would switch both off.
fn undo_of(path: &Path, before: &str) -> io::Result<Setting> {
    let is_ratio = path.ends_with("vm/dirty_background_bytes") && before == "0";
    let path = if is_ratio { path.with_file_name("dirty_background_ratio") } else { path.to_owned() };
    let value = if is_ratio { value(&path)? } else { before.to_owned() };
    Ok(Setting { path, value })
}

/// Makes every change that a finding proposes, and prints each. Returns false if one could not be made.
///
/// # Errors
/// The list of changes cannot be written; nothing was changed since.
pub(super) fn apply(checks: &[Check], list: &Path) -> anyhow::Result<bool> {
    let settings = checks.iter().filter_map(|check| check.fix.as_ref()?.setting.as_ref());
    let settings: Vec<_> = settings.collect();
    if settings.is_empty() {
        output::note("Nothing was changed: no finding can be corrected safely while the host runs.");
    }
    let mut has_failed = false;
    for (path, wanted) in settings {
        let shown = path.display();
        let prepared = value(path).and_then(|before| Ok((undo_of(path, &before)?, before)));
        let (undo, before) = match prepared {
            Ok(prepared) => prepared,
            Err(error) => {
                output::error(&format!("cannot read {shown}, so it is not changed: {error}"));
                has_failed = true;
                continue;
            }
        };
        let after = Setting { path: path.clone(), value: wanted.clone() };
        let change = Change { boot: boot(), after, before, undo };
        add(list, &change)
            .with_context(|| format!("{shown} is not changed: cannot write {}", list.display()))?;
        match fs::write(path, wanted) {
            Ok(()) => output::note(&format!(
                "Changed {shown} from `{}` to `{wanted}` until the next start of the host.",
                change.before
            )),
            Err(error) => {
                output::error(&format!("cannot change {shown} to `{wanted}`: {error}"));
                has_failed = true;
            }
        }
    }
    Ok(!has_failed)
}

/// Adds a change to the list, durably. Cuts off a part of a line that an earlier attempt left: a line behind it would
/// be damaged.
fn add(list: &Path, change: &Change) -> io::Result<()> {
    let parent = list.parent().unwrap_or(Path::new("/"));
    fs::create_dir_all(parent)?;
    let mut file = OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(list)?;
    let mut text = Vec::new();
    file.read_to_end(&mut text)?;
    let whole = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
    file.set_len(whole as u64)?;
    let mut line = serde_json::to_vec(change)?;
    line.push(b'\n');
    file.write_all(&line)?;
    file.sync_all()?;
    File::open(parent)?.sync_all()
}

/// Returns the changes of a list. The last line may be cut short by a crash: its change was not made.
fn read(list: &Path) -> anyhow::Result<Vec<Change>> {
    let text = match fs::read_to_string(list) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        text => text.with_context(|| format!("cannot read {}", list.display()))?,
    };
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    let parse = |line: &str| {
        serde_json::from_str(line).with_context(|| {
            format!("{} is damaged; the settings end with the next start of the host", list.display())
        })
    };
    whole.lines().map(parse).collect()
}

/// Undoes all changes of a list, newest first, and prints each. Returns false if one could not be undone; it stays on
/// the list. A setting that somebody changed since is left alone.
///
/// # Errors
/// The list cannot be read or written.
pub(super) fn undo(list: &Path) -> anyhow::Result<bool> {
    let mut changes = read(list)?;
    if changes.is_empty() {
        output::note("Nothing to undo: `forebay doctor --apply` has changed nothing here.");
    }
    let (boot, mut left) = (boot(), Vec::new());
    while let Some(change) = changes.pop() {
        if let Err(error) = undo_one(&change, &boot) {
            output::error(&format!("cannot undo the change of {}: {error}", change.after.path.display()));
            left.insert(0, change);
        }
    }
    write(list, &left).with_context(|| format!("cannot write {}", list.display()))?;
    Ok(left.is_empty())
}

/// Brings the earlier value of a setting back, and prints the change. Leaves the setting if the host has restarted
/// since, or if somebody has changed it.
fn undo_one(change: &Change, boot: &str) -> io::Result<()> {
    let Change { after, before, undo, .. } = change;
    let path = after.path.display();
    if change.boot != boot {
        output::note(&format!("The change of {path} has ended with the start of the host."));
        return Ok(());
    }
    let now = match value(&after.path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            output::note(&format!("{path} is gone, and its change with it."));
            return Ok(());
        }
        now => now?,
    };
    if now == *after.value {
        fs::write(&undo.path, &undo.value)?;
        let back = match undo.path == after.path {
            true => format!("Changed {path} from `{now}` back to `{}`.", undo.value),
            false => format!("Changed {} back to `{}`; it replaces {path}.", undo.path.display(), undo.value),
        };
        output::note(&back);
    } else if now == *before {
        output::note(&format!("{path} is `{now}` already."));
    } else {
        output::note(&format!("{path} is `{now}`, which somebody else has set: it stays."));
    }
    Ok(())
}

/// Replaces the list, or removes it if it is empty.
fn write(list: &Path, changes: &[Change]) -> io::Result<()> {
    if changes.is_empty() {
        return match fs::remove_file(list) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        };
    }
    let beside = list.with_extension("new");
    let _ = fs::remove_file(&beside);
    changes.iter().try_for_each(|change| add(&beside, change))?;
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
mod tests {
    use super::*;

    struct Host(tempfile::TempDir);

    impl Host {
        fn new() -> Self {
            let host = Host(tempfile::TempDir::new().unwrap());
            std::fs::create_dir(host.path("vm")).unwrap();
            host
        }

        fn path(&self, name: &str) -> PathBuf {
            self.0.path().join(name)
        }

        fn set(&self, name: &str, value: &str) {
            fs::write(self.path(name), value).unwrap();
        }

        fn get(&self, name: &str) -> String {
            fs::read_to_string(self.path(name)).unwrap()
        }

        fn apply(&self, changes: &[(&str, &str)]) -> bool {
            let check =
                |(name, value): &(&str, &str)| Check::warn("x", "y").mend_by_writing(self.path(name), *value);
            let checks: Vec<_> = changes.iter().map(check).collect();
            apply(&checks, &self.path("state/list")).unwrap()
        }

        fn undo(&self) -> bool {
            undo(&self.path("state/list")).unwrap()
        }
    }

    #[test]
    fn apply_writes_what_a_finding_proposes_and_undo_brings_it_back() {
        let host = Host::new();
        host.set("rmem", "1\t2\t3\n");
        host.set("scheduler", "[none] mq-deadline\n");
        host.set("other", "7\n");
        assert!(host.apply(&[("rmem", "4 5 6"), ("scheduler", "mq-deadline")]));
        assert_eq!((host.get("rmem"), host.get("other")), ("4 5 6".into(), "7\n".into()));
        assert!(host.undo());
        assert_eq!((host.get("rmem"), host.get("scheduler")), ("1 2 3".into(), "none".into()));
        assert!(!host.path("state/list").exists() && host.undo());
    }

    #[test]
    fn a_setting_that_was_changed_twice_gets_its_first_value() {
        let host = Host::new();
        host.set("a", "1");
        host.apply(&[("a", "2")]);
        host.apply(&[("a", "3")]);
        assert!(host.undo());
        assert_eq!(host.get("a"), "1");
    }

    #[test]
    fn what_somebody_else_has_set_stays() {
        let host = Host::new();
        host.set("a", "1");
        host.apply(&[("a", "2")]);
        host.set("a", "9");
        assert!(host.undo());
        assert_eq!(host.get("a"), "9");
    }

    #[test]
    fn a_crash_before_or_after_a_change_can_be_undone() {
        let host = Host::new();
        host.set("a", "1");
        host.apply(&[("a", "2")]);
        // The change was written down, and the crash came before it was made.
        host.set("a", "1");
        // The next change was being written down.
        let mut list = OpenOptions::new().append(true).open(host.path("state/list")).unwrap();
        list.write_all(b"{\"boot\":\"x\",\"aft").unwrap();
        host.set("b", "1");
        assert!(host.apply(&[("b", "2")]), "a further change is added behind");
        assert!(host.undo());
        assert_eq!((host.get("a"), host.get("b")), ("1".into(), "1".into()));
    }

    #[test]
    fn a_change_of_an_earlier_start_of_the_host_is_forgotten() {
        let host = Host::new();
        host.set("a", "1");
        host.apply(&[("a", "2")]);
        let list = host.path("state/list");
        fs::write(&list, fs::read_to_string(&list).unwrap().replace(&boot(), "an-earlier-start")).unwrap();
        assert!(host.undo());
        assert_eq!(host.get("a"), "2");
    }

    #[test]
    fn a_change_that_cannot_be_undone_stays_on_the_list() {
        let host = Host::new();
        host.set("a", "1");
        host.apply(&[("a", "2"), ("b", "2")]);
        let list = host.path("state/list");
        let text = fs::read_to_string(&list).unwrap();
        assert_eq!(text.lines().count(), 1, "what cannot be read is not changed");
        let elsewhere = r#""undo":{"path":"/no/such/directory/file""#;
        let there = format!(r#""undo":{{"path":{:?}"#, host.path("a"));
        fs::write(&list, text.replace(&there, elsewhere)).unwrap();
        assert!(!host.undo());
        assert_eq!(read(&list).unwrap().len(), 1);
    }

    #[test]
    fn dirty_background_bytes_is_undone_by_the_ratio() {
        let host = Host::new();
        host.set("vm/dirty_background_bytes", "0\n");
        host.set("vm/dirty_background_ratio", "10\n");
        host.apply(&[("vm/dirty_background_bytes", "512")]);
        host.set("vm/dirty_background_ratio", "0\n");
        assert!(host.undo());
        assert_eq!(host.get("vm/dirty_background_ratio"), "10");
        assert_eq!(host.get("vm/dirty_background_bytes"), "512", "the kernel sets it to 0 by itself");
    }
}
