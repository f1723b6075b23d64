//! `forebay doctor`: checks this host against good practice.

mod apply;
mod client;
mod device;
mod directory;
mod governor;
mod host;
mod interface;
mod interrupts;
mod machine;
mod memory;
pub(crate) mod mounts;
mod network;
mod placement;
mod ssd;
mod step;

use std::path::PathBuf;

use anyhow::Context;
use forebay_config::{
    Flags, Limits, Resolved, Settings, default_listen, describe as describe_settings, parse_listen, resolve,
    resolve_text, state_base,
};
use forebay_control::Client;
use serde::Serialize;

use self::machine::Machine;
use self::step::Step;
use crate::monitor_args::DoctorArgs;
use crate::output::{self, Align, BAD, GOOD, Table, WARN, paint};
use crate::{Exit, control, serve};

/// The configuration of the unit forebay.service.
const INSTALLED: &str = "/etc/forebay/forebay.toml";

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
    /// The steps of `--apply`. Each is taken only if the one before it succeeds.
    #[serde(skip)]
    steps: Vec<Step>,
    /// The reason why `--apply` leaves the remedy to the administrator; `None` if there are steps.
    #[serde(skip_serializing_if = "Option::is_none")]
    by_hand: Option<&'static str>,
}

impl Fix {
    /// Returns what `--apply` does about the finding.
    fn applied(&self) -> String {
        let keepers = self.steps.iter().filter_map(|step| match step {
            Step::Keep { path, .. } => Some(path.display().to_string()),
            Step::Unit { .. } => Some("systemd".to_owned()),
            _ => None,
        });
        match (self.by_hand, keepers.collect::<Vec<_>>()) {
            (Some(reason), _) => format!("by hand: {reason}"),
            (None, keepers) if keepers.is_empty() => {
                "--apply does that, until the next start of the host".to_owned()
            }
            (None, keepers) => format!("--apply does that; {} keeps it", keepers.join(", ")),
        }
    }
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

    /// Sets the instruction for the administrator, and the reason why `--apply` does not follow it.
    fn mend(mut self, command: impl Into<String>, by_hand: &'static str) -> Self {
        self.fix = Some(Fix { command: command.into(), steps: Vec::new(), by_hand: Some(by_hand) });
        self
    }

    /// Sets the steps of `--apply`, and a command that has the same effect until the next start.
    fn mend_by(mut self, command: impl Into<String>, steps: Vec<Step>) -> Self {
        self.fix = Some(Fix { command: command.into(), steps, by_hand: None });
        self
    }

    /// Sets a file of /proc or /sys, and the value that `--apply` may write to it. A value of /proc/sys is kept.
    fn mend_by_writing(self, path: impl Into<PathBuf>, value: impl Into<String>) -> Self {
        let (path, value) = (path.into(), value.into());
        let keep = Step::sysctl(&path, &value);
        self.mend_by_keeping(path, value, keep)
    }

    /// Sets a file of /proc or /sys, the value that `--apply` may write to it, and the step that keeps the value.
    fn mend_by_keeping(self, path: impl Into<PathBuf>, value: impl Into<String>, keep: Option<Step>) -> Self {
        let (path, value) = (path.into(), value.into());
        let command = match path.strip_prefix("/proc/sys") {
            Ok(name) => format!("sysctl -w {}='{value}'", name.to_string_lossy().replace('/', ".")),
            Err(_) => format!("echo {value} > {}", path.display()),
        };
        let steps = [Step::write(path, value)].into_iter().chain(keep).collect();
        self.mend_by(command, steps)
    }
}

/// The directories, addresses and limits to check.
struct Subject {
    directories: Vec<PathBuf>,
    /// Cache devices.
    cache: Vec<PathBuf>,
    listen: Vec<std::net::SocketAddr>,
    limits: Limits,
    /// True if the kernel should encrypt connections with TLS.
    kernel_tls: bool,
}

/// Runs the checks. With `--apply`, changes the settings that are safe to change and checks again.
pub(crate) fn doctor(args: &DoctorArgs) -> anyhow::Result<Exit> {
    let host = Machine::this();
    if args.undo {
        apply::require_root("--undo")?;
        return Ok(if apply::undo(&host, &list(args)?)? { Exit::Done } else { Exit::Failed });
    }
    let subject = match args.client {
        true => None,
        false => match subject(args)? {
            Ok(subject) => Some(subject),
            Err(exit) => return Ok(exit),
        },
    };
    let check = || subject.as_ref().map_or_else(|| client::check(&host), |subject| check(subject, &host));
    let mut checks = check();
    let mut has_failed = false;
    if args.apply {
        apply::require_root("--apply")?;
        has_failed = !apply::apply(&checks, &host, &list(args)?)?;
        checks = check();
    }
    if args.json {
        output::json(&checks)?;
    } else {
        output::result(&describe(&checks))?;
    }
    let failed = has_failed || checks.iter().any(|check| check.state == State::Fail);
    Ok(if failed { Exit::Failed } else { Exit::Done })
}

/// Returns the path of the list of changes that `--apply` has made: in the state directory that was named, or beside
/// the state directories of this user.
fn list(args: &DoctorArgs) -> anyhow::Result<PathBuf> {
    let base = args.target.state_dir.clone().or_else(state_base);
    let base = base.context("neither HOME nor XDG_STATE_HOME is set; name a directory with --state-dir")?;
    Ok(base.join(apply::LIST))
}

/// Returns the directories, addresses and limits of `--config`, or those of the running server, or those of the
/// installed configuration. A directory and addresses in the arguments replace them. The inner error is a wrong
/// configuration, which has been reported.
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
    let of_settings = |settings: Settings| Subject {
        directories: settings.exports.into_iter().map(|export| export.path).collect(),
        cache: settings.cache.devices,
        listen: or_default(settings.listen),
        limits: settings.limits,
        kernel_tls: settings.tls.is_some() && settings.kernel_tls,
    };
    if args.config.is_some() {
        let flags = Flags { config: args.config.clone(), dir: args.dir.clone(), ..Flags::default() };
        return Ok(match resolve(&flags) {
            Ok(Resolved { settings, .. }) => Ok(of_settings(settings)),
            Err(problems) => Err(serve::refuse(&problems)),
        });
    }
    let running = control::find(&args.target).and_then(|client| Ok((client.status()?, client))).ok();
    let settings = match &running {
        Some((_, client)) => in_force(client),
        None => installed(),
    };
    let mut subject = settings.map_or_else(
        || Subject {
            directories: Vec::new(),
            cache: Vec::new(),
            listen: or_default(default_listen()),
            limits: Limits::default(),
            kernel_tls: false,
        },
        of_settings,
    );
    if let Some((status, _)) = running {
        // The server knows its default devices, and those that were added in service.
        let devices = status.pool.into_iter().flat_map(|pool| pool.devices);
        subject.cache = devices.map(|device| device.path).collect();
        subject.directories = status.exports.into_iter().map(|export| export.path).collect();
        subject.listen = or_default(status.listen);
    }
    subject.directories = args.dir.clone().map_or(subject.directories, |dir| vec![dir]);
    if subject.directories.is_empty() {
        output::note("No directory was named and no server runs: checking the host only.");
    }
    Ok(Ok(subject))
}

/// Returns the settings of a running server; `None` if it does not tell them.
fn in_force(client: &Client) -> Option<Settings> {
    let entries = client.config().inspect_err(|error| output::note(&format!("Note: {error}."))).ok()?;
    let flags = Flags { config: Some("the server's settings".into()), ..Flags::default() };
    resolve_text(&flags, Some(&describe_settings(&entries, false))).ok().map(|resolved| resolved.settings)
}

/// Returns the settings of the installed configuration, if there is one without mistakes.
fn installed() -> Option<Settings> {
    let file = PathBuf::from(INSTALLED);
    let flags = Flags { config: file.exists().then_some(file), ..Flags::default() };
    flags.config.as_ref()?;
    match resolve(&flags) {
        Ok(Resolved { settings, .. }) => {
            output::note(&format!("No server runs: checking for the settings of {INSTALLED}."));
            Some(settings)
        }
        Err(_) => {
            output::note(&format!("Note: {INSTALLED} is not used: `forebay config check` says why."));
            None
        }
    }
}

/// Carries out all checks of a server: its directories, cache devices, host, network, and placement.
fn check(subject: &Subject, host: &Machine) -> Vec<Check> {
    let mut checks = Vec::new();
    for path in &subject.directories {
        checks.extend(directory::check(path));
    }
    checks.extend(subject.cache.iter().flat_map(|path| ssd::check(path)));
    checks.extend(host::check(&subject.limits, host));
    checks.extend(subject.kernel_tls.then(host::kernel_tls));
    checks.extend(network::check(&subject.listen));
    checks.extend(interface::check(&subject.listen, host));
    checks.extend(interrupts::check(host));
    checks.extend(placement::check(&subject.cache));
    checks
}

/// Returns the findings as a table, each with its remedy below it, and their numbers.
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
            for line in [format!("mend: {}", fix.command), fix.applied()] {
                table.row([String::new(), String::new(), format!("  {}", output::printable(&line))]);
            }
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
}
