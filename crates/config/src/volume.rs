//! Block volumes in the configuration: `[[volume]]`.

use std::path::PathBuf;

use crate::problem::{Collector, Origin};
use crate::settings::Mode;
use crate::table::{Located, TableReader};

/// The longest name in bytes.
const LONGEST: usize = 64;

/// A block volume in the settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Volume {
    /// Name, unique among volumes.
    pub name: String,
    /// The absolute path of the backing block device or file, or the URL of an NBD export.
    pub backing: PathBuf,
    /// The volume's own mode; `None` means the server's.
    pub mode: Option<Mode>,
    /// True if every change is refused.
    pub read_only: bool,
}

/// Checks the name of a volume.
///
/// # Errors
/// A sentence: the name is empty, too long, or has other characters than letters, digits, `.`, `_` and `-`.
pub fn check_volume_name(name: &str) -> Result<(), String> {
    check_name("volume", name)
}

/// Checks a name. `subject` says what has it, such as "volume".
pub(crate) fn check_name(subject: &str, name: &str) -> Result<(), String> {
    let is_good = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    let starts_well = name.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
    if starts_well && name.len() <= LONGEST && name.bytes().all(is_good) {
        return Ok(());
    }
    Err(format!(
        "`{name}` is no name of a {subject}; write 1 to {LONGEST} letters, digits, `.`, `_` and `-`, a letter or digit first"
    ))
}

/// Reads one `[[volume]]`. Returns `None` if it has no name or no backing device.
pub(crate) fn read_volume(
    table: Located<TableReader<'_, '_>>,
    problems: &mut Collector<'_>,
    device_path: fn(&str) -> Result<PathBuf, String>,
) -> Option<(Origin, Volume)> {
    let Located { value: mut table, origin } = table;
    let name = table.parsed("name", problems, |name| check_volume_name(name).map(|()| name.to_owned()));
    let backing = table.parsed("backing", problems, device_path);
    for (key, example) in [("name", "scratch"), ("backing", "/dev/sdx")] {
        if !table.has(key) {
            problems.add(&origin, format!("[[volume]] has no `{key}`; add {key} = \"{example}\""));
        }
    }
    let mode = table.parsed("mode", problems, str::parse).map(|mode| mode.value);
    let read_only = table.boolean("read_only", problems).is_some_and(|flag| flag.value);
    table.finish(problems);
    let volume = Volume { name: name?.value, backing: backing?.value, mode, read_only };
    Some((origin, volume))
}

/// Checks that names and backing devices are unique.
pub(crate) fn check_volumes(volumes: &[(Origin, Volume)], problems: &mut Collector<'_>) {
    for (at, (origin, volume)) in volumes.iter().enumerate() {
        let before = &volumes[..at];
        if before.iter().any(|(_, other)| other.name == volume.name) {
            problems.add(origin, format!("there are two volumes {}; give each its own name", volume.name));
        }
        if let Some((_, other)) = before.iter().find(|(_, other)| other.backing == volume.backing) {
            let backing = volume.backing.display();
            let message =
                format!("{backing} is the backing device of volume {} already; name another", other.name);
            problems.add(origin, message);
        }
    }
}
