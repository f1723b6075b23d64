//! `forebay required-mounts`: writes for each configuration the mounts that its unit requires. systemd calls it before
//! it starts anything (systemd.generator(7)).

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::Context;
use forebay_config::{Flags, NbdUrl, Settings, resolve};

use crate::args::RequiredMountsArgs;
use crate::{Exit, output};

/// Writes `UNIT.d/50-mounts.conf` for each configuration. A configuration with mistakes is left out: the server of that
/// unit then reports them at its start.
pub(crate) fn required_mounts(args: &RequiredMountsArgs) -> anyhow::Result<Exit> {
    let config = &args.config_dir;
    let entries = match fs::read_dir(config) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Exit::Done),
        Err(error) => return Err(error).with_context(|| format!("cannot list {}", config.display())),
    };
    for entry in entries.flatten() {
        let path = entry.path();
        let Some(unit) = unit_of(&path) else { continue };
        match resolve(&Flags { config: Some(path.clone()), ..Flags::default() }) {
            Ok(resolved) => write(&args.dir.join(format!("{unit}.d")), &resolved.settings)?,
            Err(_) => output::note(&format!(
                "{} has mistakes (forebay serve --check-config lists them), so {unit} requires no mounts for it.",
                path.display()
            )),
        }
    }
    Ok(Exit::Done)
}

/// Returns the unit that serves a configuration: `forebay.service` for `forebay.toml`, `forebay@NAME.service` for
/// `NAME.toml`.
fn unit_of(path: &Path) -> Option<String> {
    if path.extension() != Some(OsStr::new("toml")) {
        return None;
    }
    match path.file_stem()?.to_str()? {
        "forebay" => Some("forebay.service".to_owned()),
        name => Some(format!("forebay@{}.service", escaped(name))),
    }
}

/// Returns a name as it stands in the name of a unit (systemd.unit(5), "String escaping").
fn escaped(name: &str) -> String {
    let mut escaped = String::new();
    for (at, byte) in name.bytes().enumerate() {
        match byte {
            b'/' => escaped.push('-'),
            b'.' if at == 0 => escaped.push_str("\\x2e"),
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b':' | b'_' | b'.' => escaped.push(byte.into()),
            _ => _ = write!(escaped, "\\x{byte:02x}"),
        }
    }
    escaped
}

/// Writes the drop-in by which systemd mounts the directories and device files of a server before its start. White
/// space and specifiers in paths are quoted.
fn write(dir: &Path, settings: &Settings) -> anyhow::Result<()> {
    let exports = settings.exports.iter().map(|export| export.path.as_path());
    let devices = settings.cache.devices.iter().map(|device| device.as_path());
    let devices = devices.filter(|device| !device.starts_with("/dev") && !NbdUrl::is_meant(device));
    let mut text = String::from("# Made from the configuration by forebay-generator.\n[Unit]\n");
    for path in exports.chain(devices).chain([settings.state_dir.as_path()]) {
        let Some(path) = path.to_str() else { continue };
        // `%` begins a specifier of systemd, and white space ends a path.
        let quoted: String = path
            .chars()
            .flat_map(|c| match c {
                '%' => vec!['%', '%'],
                '"' | '\\' => vec!['\\', c],
                c => vec![c],
            })
            .collect();
        writeln!(text, "RequiresMountsFor=\"{quoted}\"")?;
    }
    fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    let path = dir.join("50-mounts.conf");
    fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::unit_of;

    #[test]
    fn each_configuration_has_a_unit() {
        let unit = |path: &str| unit_of(Path::new(path));
        assert_eq!(unit("/etc/forebay/forebay.toml").as_deref(), Some("forebay.service"));
        assert_eq!(unit("/etc/forebay/scratch.toml").as_deref(), Some("forebay@scratch.service"));
        assert_eq!(unit("/etc/forebay/a-b c.toml").as_deref(), Some("forebay@a\\x2db\\x20c.service"));
        assert_eq!(unit("/etc/forebay/forebay.toml.dpkg-new"), None);
    }
}
