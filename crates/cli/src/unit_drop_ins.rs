//! `forebay unit-drop-ins`: writes for each configuration the mounts that its unit requires, and hides the home
//! directories from a unit that needs none. systemd calls it before it starts anything (systemd.generator(7)).

use std::ffi::OsStr;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::Context;
use forebay_config::{Hidden, NamedPaths};
use serde_json::Value;

use crate::args::UnitDropInsArgs;
use crate::{Exit, output};

/// The drop-in of a unit that needs no home directory.
const NO_HOMES: &str = "\
# Made by forebay-generator: the configuration names nothing below /home, /root and /run/user.
[Service]
ProtectHome=yes
";

/// A server that a unit of this host runs.
#[derive(Debug, PartialEq, Eq)]
struct Served {
    unit: String,
    /// Name of the state directory.
    state: String,
}

/// Writes the drop-ins of the unit of each configuration. A text that is not TOML is left out: the server of that unit
/// reports its mistakes.
pub(crate) fn unit_drop_ins(args: &UnitDropInsArgs) -> anyhow::Result<Exit> {
    let config = &args.config_dir;
    let entries = match fs::read_dir(config) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Exit::Done),
        Err(error) => return Err(error).with_context(|| format!("cannot list {}", config.display())),
    };
    for entry in entries.flatten() {
        let path = entry.path();
        let Some(Served { unit, state }) = served_by(&path) else { continue };
        let Some(named) = fs::read_to_string(&path).ok().as_deref().and_then(NamedPaths::in_text) else {
            let path = path.display();
            output::note(&format!(
                "{path} cannot be read (`forebay config check` says why), so {unit} requires no mounts for it."
            ));
            continue;
        };
        let dir = args.dir.join(format!("{unit}.d"));
        write(&dir, "50-mounts.conf", &mounts(&named))?;
        if needs_no_homes(&named, &args.state_base.join(state)) {
            write(&dir, "50-homes.conf", NO_HOMES)?;
        }
    }
    Ok(Exit::Done)
}

/// Returns the server of a configuration: `forebay.toml` is for `forebay.service`, and `NAME.toml` for
/// `forebay@NAME.service`. A name that no unit can have is for none: the template has the name as it is (`%i`).
fn served_by(path: &Path) -> Option<Served> {
    if path.extension() != Some(OsStr::new("toml")) {
        return None;
    }
    let name = path.file_stem()?.to_str()?;
    if name == "forebay" {
        return Some(Served { unit: "forebay.service".to_owned(), state: "main".to_owned() });
    }
    let is_in_units = |byte: u8| byte.is_ascii_alphanumeric() || b":_.\\-@".contains(&byte);
    let unit = || Served { unit: format!("forebay@{name}.service"), state: name.to_owned() };
    name.bytes().all(is_in_units).then(unit)
}

/// Returns the drop-in by which systemd mounts the directories and cache files of a server before its start.
fn mounts(named: &NamedPaths) -> String {
    let mut text = String::from("# Made from the configuration by forebay-generator.\n[Unit]\n");
    let cache = named.cache.iter().filter(|device| !device.starts_with("/dev"));
    for path in named.exports.iter().chain(cache).chain(&named.state_dir).filter_map(|path| path.to_str()) {
        // `%` begins a specifier of systemd, and white space ends a path.
        let quoted: String = path
            .chars()
            .flat_map(|c| match c {
                '%' => vec!['%', '%'],
                '"' | '\\' => vec!['\\', c],
                c => vec![c],
            })
            .collect();
        text += &format!("RequiresMountsFor=\"{quoted}\"\n");
    }
    text
}

/// Returns true if a server needs no file below the home directories: neither the configuration nor its record of
/// volumes names one. Programs may need files that nothing names. In doubt the answer is false.
fn needs_no_homes(named: &NamedPaths, state: &Path) -> bool {
    let Some(backings) = backings(state) else { return false };
    let homes = Hidden::homes();
    let paths = named.exports.iter().map(PathBuf::as_path).chain(named.beside_exports());
    let mut paths = paths.chain(backings.iter().map(PathBuf::as_path));
    !named.has_mistakes && !named.has_programs && !paths.any(|path| homes.have(path))
}

/// Returns the backing devices of the volumes in a state directory. Returns `None` if they are not known: the record
/// cannot be read, or the state directory may be on a file system that is not mounted yet.
fn backings(state: &Path) -> Option<Vec<PathBuf>> {
    match fs::read(state.join("volumes.json")) {
        Ok(text) => {
            let record: Value = serde_json::from_slice(&text).ok()?;
            let volumes = record.get("volumes")?.as_array()?.iter();
            volumes.map(|volume| Some(volume.get("backing")?.as_str()?.into())).collect()
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {
            // A mount point is an empty directory before the mount.
            let nearest = state.ancestors().find_map(|dir| fs::read_dir(dir).ok());
            let is_mounted = state.is_dir() || nearest?.next().is_some();
            is_mounted.then(Vec::new)
        }
        Err(_) => None,
    }
}

/// Writes a drop-in into the directory of a unit.
fn write(dir: &Path, name: &str, text: &str) -> anyhow::Result<()> {
    fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    let path = dir.join(name);
    fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests;
