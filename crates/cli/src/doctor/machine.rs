//! The host that `--apply` changes: its files below a root, and its programs.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A host. Tests have one in a directory, with programs of their own.
#[derive(Debug, Clone)]
pub(super) struct Machine {
    root: PathBuf,
    /// The directories with the programs, as in `PATH`; `None` for those of this process.
    programs: Option<OsString>,
}

/// The state of a unit of systemd.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(super) struct UnitState {
    /// True if the unit starts with the host.
    pub(super) is_enabled: bool,
    pub(super) is_active: bool,
}

/// The sizes of the receive ring of a network interface, in frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ring {
    pub(super) now: u64,
    pub(super) largest: u64,
}

impl Machine {
    /// Returns the host that runs this process.
    pub(super) fn this() -> Self {
        Self { root: PathBuf::from("/"), programs: None }
    }

    /// Returns a host whose files are below `root`, with its programs in `bin`.
    #[cfg(test)]
    pub(super) fn below(root: &Path) -> Self {
        Self { root: root.to_owned(), programs: Some(root.join("bin").into()) }
    }

    /// Returns the place of a file of the host. `path` is absolute.
    pub(super) fn at(&self, path: &Path) -> PathBuf {
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// Returns the trimmed text of a file.
    pub(super) fn text(&self, path: impl AsRef<Path>) -> io::Result<String> {
        Ok(fs::read_to_string(self.at(path.as_ref()))?.trim().to_owned())
    }

    /// Returns the value of a file of /proc or /sys. The kernel marks the chosen value of several: `none
    /// [mq-deadline]`.
    pub(super) fn value(&self, path: &Path) -> io::Result<String> {
        let text = self.text(path)?;
        let chosen =
            text.split_once('[').and_then(|(_, rest)| rest.split_once(']')).map(|(chosen, _)| chosen);
        Ok(chosen.unwrap_or(&text).split_whitespace().collect::<Vec<_>>().join(" "))
    }

    /// Runs a program, and returns what it prints.
    ///
    /// # Errors
    /// The program is not installed, or has failed. The error has its last line.
    pub(super) fn run(&self, program: &str, arguments: &[&str]) -> io::Result<String> {
        let output = self.command(program)?.args(arguments).stdin(Stdio::null()).output()?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let told = String::from_utf8_lossy(&output.stderr);
        let told =
            told.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("it gives no reason").to_owned();
        Err(io::Error::other(format!("`{program} {}` has failed: {}", arguments.join(" "), told.trim())))
    }

    /// Returns a command with a program of the host.
    fn command(&self, program: &str) -> io::Result<Command> {
        let missing = || io::Error::new(io::ErrorKind::NotFound, format!("{program} is not installed"));
        Ok(Command::new(self.program(program).ok_or_else(missing)?))
    }

    /// Returns the path of a program; `None` if it is not installed.
    pub(super) fn program(&self, name: &str) -> Option<PathBuf> {
        let directories = self.programs.clone().or_else(|| std::env::var_os("PATH")).unwrap_or_default();
        // An administrator without a login shell may lack the directories of root's programs.
        let more = match self.programs {
            None => vec![PathBuf::from("/usr/sbin"), PathBuf::from("/sbin")],
            Some(_) => Vec::new(),
        };
        let mut places =
            std::env::split_paths(&directories).chain(more).map(|directory| directory.join(name));
        places.find(|path| path.is_file())
    }

    /// Returns the state of a unit; `None` if it is not installed, or systemd does not run the host.
    pub(super) fn unit(&self, name: &str) -> Option<UnitState> {
        // sd_booted(3)
        self.at(Path::new("/run/systemd/system")).is_dir().then_some(())?;
        let load = self.run("systemctl", &["show", "--property=LoadState", "--value", name]).ok()?;
        (load.trim() == "loaded").then_some(())?;
        Some(UnitState {
            is_enabled: self.run("systemctl", &["is-enabled", "--quiet", name]).is_ok(),
            is_active: self.run("systemctl", &["is-active", "--quiet", name]).is_ok(),
        })
    }

    /// Returns the receive ring of an interface; `None` if ethtool is not installed, or the driver has no such size.
    pub(super) fn ring(&self, interface: &str) -> Option<Ring> {
        ring_of(&self.run("ethtool", &["-g", interface]).ok()?)
    }
}

/// Parses what `ethtool -g` prints: the largest sizes, and then those in force.
fn ring_of(text: &str) -> Option<Ring> {
    let mut sizes = text.lines().filter_map(|line| line.trim().strip_prefix("RX:")).map(str::trim);
    let largest = sizes.next()?.parse().ok()?;
    Some(Ring { now: sizes.next()?.parse().ok()?, largest })
}

#[cfg(test)]
mod tests {
    use super::*;

    const RINGS: &str = "\
Ring parameters for eth0:
Pre-set maximums:
RX:             4096
RX Mini:        n/a
RX Jumbo:       n/a
TX:             4096
Current hardware settings:
RX:             256
RX Mini:        n/a
RX Jumbo:       n/a
TX:             512
";

    #[test]
    fn rings_are_read_from_what_ethtool_prints() {
        assert_eq!(ring_of(RINGS), Some(Ring { now: 256, largest: 4096 }));
        assert_eq!(ring_of("Ring parameters for eth0:\nPre-set maximums:\nRX:\t\tn/a\n"), None);
        assert_eq!(ring_of(""), None);
    }

    #[test]
    fn a_program_that_is_missing_or_fails_says_why() {
        let dir = tempfile::TempDir::new().unwrap();
        let machine = Machine::below(dir.path());
        assert_eq!(machine.run("ethtool", &[]).unwrap_err().to_string(), "ethtool is not installed");
        super::super::apply::tests::program(dir.path(), "ethtool", "echo one >&2; echo two >&2; exit 75");
        let error = machine.run("ethtool", &["-g", "eth0"]).unwrap_err();
        assert_eq!(error.to_string(), "`ethtool -g eth0` has failed: two");
    }
}
