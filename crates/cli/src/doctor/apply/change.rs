//! One change of `--apply`: how it is made, and how it is taken back.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::super::machine::{Machine, UnitState};
use super::super::step::{HEADER, Step};

/// A change, with what `--undo` needs to know.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub(super) enum Change {
    /// A file of /proc or /sys got `value`. `undo` brings `before` back. It is another file where two files stand for
    /// one setting.
    Write { path: PathBuf, value: String, before: String, undo: Setting },
    /// A file was made with this text. `before` is the text of an older file of Forebay.
    Keep { path: PathBuf, text: String, before: Option<String> },
    /// A receive ring got another size.
    Ring { interface: String, size: u64, before: u64 },
    /// A unit of systemd was started, now and with the host.
    Unit { name: String, before: UnitState },
    /// A module of the kernel was loaded.
    Module { name: String },
}

/// A file of /proc or /sys, and a value for it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Setting {
    path: PathBuf,
    value: String,
}

impl Change {
    /// Returns the change that a step makes; `None` if the host is so already.
    ///
    /// # Errors
    /// The state before the change cannot be read, or a file that is not Forebay's is in the way.
    pub(super) fn of(step: &Step, host: &Machine) -> io::Result<Option<Self>> {
        Ok(match step.clone() {
            Step::Write { path, value } => {
                let before = host.value(&path)?;
                let undo = undo_of(host, &path, &before)?;
                (before != value).then_some(Self::Write { path, value, before, undo })
            }
            Step::Keep { path, text } => match fs::read_to_string(host.at(&path)) {
                Ok(before) if before == text => None,
                Ok(before) if before.starts_with(HEADER) => {
                    Some(Self::Keep { path, text, before: Some(before) })
                }
                Ok(_) => return Err(io::Error::other("it exists, and Forebay has not made it")),
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    Some(Self::Keep { path, text, before: None })
                }
                Err(error) => return Err(error),
            },
            Step::Ring { interface, size } => {
                let ring =
                    host.ring(&interface).ok_or_else(|| io::Error::other("ethtool -g shows no ring"))?;
                (ring.now != size).then_some(Self::Ring { interface, size, before: ring.now })
            }
            Step::Unit { name } => {
                let before = host.unit(&name).ok_or_else(|| io::Error::other("it is not installed"))?;
                let is_done = before.is_enabled && before.is_active;
                (!is_done).then_some(Self::Unit { name, before })
            }
            Step::Module { name } => (!is_loaded(host, &name)).then_some(Self::Module { name }),
        })
    }

    /// Makes the change, and returns a sentence about it.
    pub(super) fn make(&self, host: &Machine) -> io::Result<String> {
        Ok(match self {
            Self::Write { path, value, before, .. } => {
                fs::write(host.at(path), value)?;
                format!("Changed {} from `{before}` to `{value}`.", path.display())
            }
            Self::Keep { path, text, .. } => {
                replace(&host.at(path), text)?;
                format!("Made {}, which sets that at each start of the host.", path.display())
            }
            Self::Ring { interface, size, before } => {
                host.run("ethtool", &["-G", interface, "rx", &size.to_string()])?;
                format!("Changed the receive ring of {interface} from {before} to {size} frames.")
            }
            Self::Unit { name, .. } => {
                host.run("systemctl", &["enable", "--now", name])?;
                format!("Started {name}, now and with the host.")
            }
            Self::Module { name } => {
                host.run("modprobe", &[name])?;
                format!("Loaded the kernel's module {name}.")
            }
        })
    }

    /// Takes the change back, unless somebody has changed its subject since, and returns a sentence. `is_this_start` is
    /// false if the host has started since the change. `is_kept` is true if a file has set the value again at that
    /// start.
    pub(super) fn undo(&self, host: &Machine, is_this_start: bool, is_kept: bool) -> io::Result<String> {
        match self {
            Self::Write { path, .. } if !host.at(path).exists() => {
                Ok(format!("{} is gone, and its change with it.", path.display()))
            }
            Self::Write { path, .. } if !(is_this_start || is_kept && path.starts_with("/proc/sys")) => {
                let path = path.display();
                Ok(format!("The change of {path} ends with a start of the host, once no file repeats it."))
            }
            Self::Write { path, value, before, undo } => undo_write(host, path, (value, before), undo),
            Self::Keep { path, text, before } => undo_keep(host, path, text, before.as_deref()),
            Self::Ring { .. } | Self::Module { .. } if !is_this_start => {
                Ok(format!("{} has ended with the start of the host.", self.name()))
            }
            Self::Ring { interface, size, before } => undo_ring(host, interface, *size, *before),
            Self::Unit { name, before } => undo_unit(host, name, *before),
            Self::Module { name } => Ok(undo_module(host, name)),
        }
    }

    /// Returns the subject of the change, for a sentence.
    pub(super) fn name(&self) -> String {
        match self {
            Self::Write { path, .. } | Self::Keep { path, .. } => path.display().to_string(),
            Self::Ring { interface, .. } => format!("the receive ring of {interface}"),
            Self::Unit { name, .. } => name.clone(),
            Self::Module { name } => format!("the kernel's module {name}"),
        }
    }

    /// Returns the file that this change has made, for the host's next starts.
    pub(super) fn kept(&self) -> Option<&Path> {
        if let Self::Keep { path, .. } = self { Some(path) } else { None }
    }

    /// Returns the file that would set this change's value at each start.
    pub(super) fn keeper(&self) -> Option<PathBuf> {
        let Self::Write { path, value, .. } = self else { return None };
        if let Step::Keep { path, .. } = Step::sysctl(path, value)? { Some(path) } else { None }
    }
}

/// Returns the setting that brings a value back. `vm.dirty_background_bytes` is 0 while `vm.dirty_background_ratio` is
/// in force, and writing 0 would switch both off.
fn undo_of(host: &Machine, path: &Path, before: &str) -> io::Result<Setting> {
    let is_ratio = path.ends_with("vm/dirty_background_bytes") && before == "0";
    let path = if is_ratio { path.with_file_name("dirty_background_ratio") } else { path.to_owned() };
    let value = if is_ratio { host.value(&path)? } else { before.to_owned() };
    Ok(Setting { path, value })
}

fn is_loaded(host: &Machine, module: &str) -> bool {
    host.at(&Path::new("/sys/module").join(module)).exists()
}

/// Replaces a file, durably. A crash leaves the old file or the new one.
fn replace(path: &Path, text: &str) -> io::Result<()> {
    let beside = beside(path);
    let mut file = File::create(&beside)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(&beside, path)?;
    sync_parent(path)
}

/// Returns the name of a file while it is being written. No program that reads the directory takes that name.
fn beside(path: &Path) -> PathBuf {
    path.with_extension("new")
}

fn sync_parent(path: &Path) -> io::Result<()> {
    File::open(path.parent().unwrap_or(Path::new("/")))?.sync_all()
}

/// Writes the earlier value of a file if the file has the value of the change.
fn undo_write(
    host: &Machine,
    path: &Path,
    (value, before): (&str, &str),
    undo: &Setting,
) -> io::Result<String> {
    let now = host.value(path)?;
    let shown = path.display();
    if now == before {
        return Ok(format!("{shown} is `{now}` already."));
    }
    if now != value {
        return Ok(format!("{shown} is `{now}`, which somebody else has set: it stays."));
    }
    fs::write(host.at(&undo.path), &undo.value)?;
    Ok(match undo.path == path {
        true => format!("Changed {shown} from `{now}` back to `{}`.", undo.value),
        false => format!("Changed {} back to `{}`; it replaces {shown}.", undo.path.display(), undo.value),
    })
}

/// Removes a file that `--apply` has made, or brings the older file back.
fn undo_keep(host: &Machine, path: &Path, text: &str, before: Option<&str>) -> io::Result<String> {
    let (file, shown) = (host.at(path), path.display());
    // A crash may have left it.
    let _ = fs::remove_file(beside(&file));
    let now = match fs::read_to_string(&file) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(format!("{shown} is gone already.")),
        now => now?,
    };
    if now != text {
        let is_before = before == Some(&now);
        let why = if is_before { "is as it was already." } else { "was changed by somebody else: it stays." };
        return Ok(format!("{shown} {why}"));
    }
    match before {
        Some(before) => replace(&file, before)?,
        None => fs::remove_file(&file).and_then(|()| sync_parent(&file))?,
    }
    Ok(if before.is_some() {
        format!("Brought the older {shown} back.")
    } else {
        format!("Removed {shown}.")
    })
}

/// Gives a receive ring its earlier size if it has the size of the change.
fn undo_ring(host: &Machine, interface: &str, size: u64, before: u64) -> io::Result<String> {
    let subject = format!("The receive ring of {interface}");
    match host.ring(interface).map(|ring| ring.now) {
        None => Ok(format!("{subject} is gone, and its change with it.")),
        Some(now) if now == before => Ok(format!("{subject} has {now} frames already.")),
        Some(now) if now != size => {
            Ok(format!("{subject} has {now} frames, which somebody else has set: it stays."))
        }
        Some(_) => {
            host.run("ethtool", &["-G", interface, "rx", &before.to_string()])?;
            Ok(format!("{subject} has {before} frames again."))
        }
    }
}

/// Stops and disables a unit as far as it was before. What somebody has stopped or disabled since stays so.
fn undo_unit(host: &Machine, name: &str, before: UnitState) -> io::Result<String> {
    let Some(now) = host.unit(name) else { return Ok(format!("{name} is gone, and its change with it.")) };
    let (disable, stop) = (now.is_enabled && !before.is_enabled, now.is_active && !before.is_active);
    let (verb, done) = match (disable, stop) {
        (true, true) => (&["disable", "--now"][..], "Stopped and disabled"),
        (true, false) => (&["disable"][..], "Disabled"),
        (false, true) => (&["stop"][..], "Stopped"),
        (false, false) => return Ok(format!("{name} is as it was already.")),
    };
    host.run("systemctl", &[verb, &[name]].concat())?;
    Ok(format!("{done} {name}."))
}

/// Unloads a module. One that is in use stays until the next start.
fn undo_module(host: &Machine, name: &str) -> String {
    if !is_loaded(host, name) {
        return format!("The kernel's module {name} is not loaded.");
    }
    match host.run("modprobe", &["-r", name]) {
        Ok(_) => format!("Unloaded the kernel's module {name}."),
        Err(_) => format!("The kernel's module {name} is in use: it stays until the next start of the host."),
    }
}
