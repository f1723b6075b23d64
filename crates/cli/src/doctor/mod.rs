//! `forebay doctor`: checks this host against good practice.

mod device;
mod directory;
mod host;
pub(crate) mod mounts;
mod network;

use std::path::PathBuf;

use anyhow::bail;
use forebay_config::{Flags, Limits, Resolved, default_listen, parse_listen, resolve};
use serde::Serialize;

use crate::monitor_args::DoctorArgs;
use crate::output::{self, Align, BAD, GOOD, Table, WARN, paint};
use crate::{Exit, control, serve};

/// The result of one check.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Check {
    /// Subject of the check.
    subject: String,
    state: State,
    /// Finding; unless it is good, also its consequence.
    finding: String,
    /// Remedy.
    #[serde(skip_serializing_if = "Option::is_none")]
    fix: Option<Fix>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum State {
    Ok,
    Warn,
    Fail,
}

/// The remedy for a finding.
#[derive(Debug, Clone, Serialize)]
struct Fix {
    /// Command or instruction for the administrator.
    command: String,
    /// File and value that `--apply` writes. Present only if the change is safe in a running host and ends with its
    /// next start.
    #[serde(skip)]
    setting: Option<(PathBuf, String)>,
}

impl Check {
    fn new(state: State, subject: impl Into<String>, finding: impl Into<String>) -> Self {
        Self { subject: subject.into(), state, finding: finding.into(), fix: None }
    }

    fn ok(subject: impl Into<String>, finding: impl Into<String>) -> Self {
        Self::new(State::Ok, subject, finding)
    }

    fn warn(subject: impl Into<String>, finding: impl Into<String>) -> Self {
        Self::new(State::Warn, subject, finding)
    }

    fn fail(subject: impl Into<String>, finding: impl Into<String>) -> Self {
        Self::new(State::Fail, subject, finding)
    }

    /// Sets the instruction for the administrator.
    fn mend(mut self, command: impl Into<String>) -> Self {
        self.fix = Some(Fix { command: command.into(), setting: None });
        self
    }

    /// Sets a file of /proc or /sys, and the value that `--apply` may write to it.
    fn mend_by_writing(mut self, path: impl Into<PathBuf>, value: impl Into<String>) -> Self {
        let (path, value) = (path.into(), value.into());
        let command = match path.strip_prefix("/proc/sys") {
            Ok(name) => format!("sysctl -w {}='{value}'", name.to_string_lossy().replace('/', ".")),
            Err(_) => format!("echo {value} > {}", path.display()),
        };
        self.fix = Some(Fix { command, setting: Some((path, value)) });
        self
    }
}

/// The directories, addresses and limits to check.
struct Subject {
    directories: Vec<PathBuf>,
    listen: Vec<std::net::SocketAddr>,
    limits: Limits,
}

/// Runs the checks. With `--apply`, changes the settings that are safe to change and checks again.
pub(crate) fn doctor(args: &DoctorArgs) -> anyhow::Result<Exit> {
    let subject = match subject(args)? {
        Ok(subject) => subject,
        Err(exit) => return Ok(exit),
    };
    let mut checks = check(&subject);
    if args.apply {
        if !rustix::process::geteuid().is_root() {
            bail!(
                "--apply changes settings of the host; run it as root, or leave it out to see the commands"
            );
        }
        apply(&checks);
        checks = check(&subject);
    }
    if args.json {
        output::json(&checks)?;
    } else {
        output::result(&describe(&checks))?;
    }
    let failed = checks.iter().any(|check| check.state == State::Fail);
    Ok(if failed { Exit::Failed } else { Exit::Done })
}

/// Returns the directories and addresses from the arguments, or those of the running server, or neither. The inner
/// error is a wrong configuration, which has been reported.
fn subject(args: &DoctorArgs) -> anyhow::Result<Result<Subject, Exit>> {
    let listen: Result<Vec<_>, String> = args.listen.iter().map(|text| parse_listen(text)).collect();
    let listen = match listen {
        Ok(listen) => listen,
        Err(message) => {
            output::error(&format!("--listen: {message}"));
            return Ok(Err(Exit::Usage));
        }
    };
    let or_default = |default| if listen.is_empty() { default } else { listen.clone() };
    if args.config.is_some() {
        let flags = Flags { config: args.config.clone(), dir: args.dir.clone(), ..Flags::default() };
        return Ok(match resolve(&flags) {
            Ok(Resolved { settings, .. }) => Ok(Subject {
                directories: settings.exports.into_iter().map(|export| export.path).collect(),
                listen: or_default(settings.listen),
                limits: settings.limits,
            }),
            Err(problems) => Err(serve::refuse(&problems)),
        });
    }
    let running = control::find(&args.target).and_then(|client| Ok(client.status()?)).ok();
    let (served, used) = running.map_or((Vec::new(), default_listen()), |status| {
        (status.exports.into_iter().map(|export| export.path).collect(), status.listen)
    });
    let directories = match &args.dir {
        Some(dir) => vec![dir.clone()],
        None => served,
    };
    if directories.is_empty() {
        output::note("No directory was named and no server runs: checking the host only.");
    }
    Ok(Ok(Subject { directories, listen: or_default(used), limits: Limits::default() }))
}

fn check(subject: &Subject) -> Vec<Check> {
    let mut checks = Vec::new();
    for path in &subject.directories {
        checks.extend(directory::check(path));
    }
    checks.extend(host::check(&subject.limits));
    checks.extend(network::check(&subject.listen));
    checks
}

/// Writes every setting that a finding proposes, and prints each change.
fn apply(checks: &[Check]) {
    let settings = checks.iter().filter_map(|check| check.fix.as_ref()?.setting.as_ref());
    let mut changed = 0;
    for (path, value) in settings {
        let shown = path.display();
        let before = std::fs::read_to_string(path).unwrap_or_default();
        match std::fs::write(path, value) {
            Ok(()) => {
                changed += 1;
                output::note(&format!(
                    "Changed {shown} from `{}` to `{value}` until the next start of the host.",
                    before.trim()
                ));
            }
            Err(error) => output::error(&format!("cannot change {shown} to `{value}`: {error}")),
        }
    }
    if changed == 0 {
        output::note("Nothing was changed: no finding can be corrected safely while the host runs.");
    }
}

fn describe(checks: &[Check]) -> String {
    let mut table = Table::new(&[("CHECK", Align::Left), ("", Align::Left), ("FINDING", Align::Left)]);
    for check in checks {
        let state = match check.state {
            State::Ok => paint(GOOD, "ok"),
            State::Warn => paint(WARN, "warn"),
            State::Fail => paint(BAD, "fail"),
        };
        table.row([output::printable(&check.subject), state, output::printable(&check.finding)]);
        if let Some(fix) = &check.fix {
            table.row([String::new(), String::new(), format!("  mend: {}", output::printable(&fix.command))]);
        }
    }
    let count = |state| checks.iter().filter(|check| check.state == state).count();
    let (ok, warn, fail) = (count(State::Ok), count(State::Warn), count(State::Fail));
    format!("{}\n{ok} ok, {warn} warn, {fail} fail\n", table.render(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_mended_by_the_command_an_administrator_knows() {
        let command =
            |path: &str, value: &str| Check::warn("x", "y").mend_by_writing(path, value).fix.unwrap().command;
        assert_eq!(command("/proc/sys/net/ipv4/tcp_rmem", "1 2 3"), "sysctl -w net.ipv4.tcp_rmem='1 2 3'");
        assert_eq!(
            command("/sys/block/sda/queue/scheduler", "bfq"),
            "echo bfq > /sys/block/sda/queue/scheduler"
        );
    }

    #[test]
    fn apply_writes_what_a_finding_proposes_and_nothing_else() {
        let dir = tempfile::TempDir::new().unwrap();
        let (wrong, right) = (dir.path().join("wrong"), dir.path().join("right"));
        std::fs::write(&wrong, "1\n").unwrap();
        std::fs::write(&right, "2\n").unwrap();
        apply(&[
            Check::ok("right", "good as it is"),
            Check::warn("wrong", "bad").mend_by_writing(&wrong, "3"),
            Check::warn("other", "bad").mend("ask somebody"),
            Check::warn("absent", "bad").mend_by_writing(dir.path().join("absent/file"), "3"),
        ]);
        assert_eq!(std::fs::read_to_string(&wrong).unwrap(), "3");
        assert_eq!(std::fs::read_to_string(&right).unwrap(), "2\n");
    }
}
