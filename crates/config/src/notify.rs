//! The targets that the server notifies of events: `[[notify]]`.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::problem::{Collector, Origin};
use crate::settings::named;
use crate::table::{Located, TableReader};
use crate::units::{format_duration, parse_duration};
use crate::volume;

/// The largest number of notifications in a minute that a target may ask for.
const MOST_PER_MINUTE: u32 = 600;
/// The bounds of the time for one notification.
const TIMEOUTS: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(300));

/// A target of notifications.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Notify {
    /// Name, unique among targets.
    pub name: String,
    /// Kind of the target.
    pub kind: NotifyKind,
    /// Severity of the least severe events that the target gets.
    pub severity: NotifySeverity,
    /// Most notifications in a minute; further events are summed up in one.
    pub per_minute: u32,
    /// Longest time for one notification.
    pub timeout: Duration,
    /// Program, as an absolute path, and its arguments; empty for other kinds.
    pub command: Vec<String>,
    /// URL, or the absolute path of a file that has the URL; empty for kinds without a URL.
    pub url: String,
    /// File with the token that a request bears.
    pub token_file: Option<PathBuf>,
    /// Certificates of the authorities that sign the certificate of the URL's host, in PEM form; `None` stands for
    /// those of this host.
    pub ca_file: Option<PathBuf>,
    /// Socket of the log; `None` stands for the usual one of its kind.
    pub socket: Option<PathBuf>,
}

/// The kind of a target of notifications.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NotifyKind {
    /// A program that is run for each notification.
    Program,
    /// A webhook that takes messages of Slack.
    Slack,
    /// An Alertmanager, which gets alerts by its API.
    Alertmanager,
    /// A webhook that takes the messages that an Alertmanager sends to its receivers.
    Webhook,
    /// The socket of syslog.
    Syslog,
    /// The journal of systemd.
    Journal,
}

/// The severity of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NotifySeverity {
    /// A normal occurrence.
    Info,
    /// A condition that needs the administrator's attention.
    Warning,
    /// A failure.
    Error,
}

named!(NotifyKind {
    Program = "program",
    Slack = "slack",
    Alertmanager = "alertmanager",
    Webhook = "webhook",
    Syslog = "syslog",
    Journal = "journal",
});
named!(NotifySeverity { Info = "info", Warning = "warning", Error = "error" });

/// The way in which a kind of target is reached, which decides about its keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotifyWay {
    /// A program, with the key `command`.
    Program,
    /// HTTP, with the keys `url`, `token_file` and `ca_file`.
    Http,
    /// A socket of this host, with the key `socket`.
    Socket,
}

impl NotifyKind {
    /// Returns the way in which targets of this kind are reached.
    pub fn way(self) -> NotifyWay {
        match self {
            Self::Program => NotifyWay::Program,
            Self::Slack | Self::Alertmanager | Self::Webhook => NotifyWay::Http,
            Self::Syslog | Self::Journal => NotifyWay::Socket,
        }
    }
}

impl NotifyWay {
    /// Returns the keys that only targets reached in this way have.
    fn keys(self) -> &'static [&'static str] {
        match self {
            Self::Program => &["command"],
            Self::Http => &["url", "token_file", "ca_file"],
            Self::Socket => &["socket"],
        }
    }
}

/// Reads one `[[notify]]`. Returns `None` if it has no name, no kind, or not what its kind needs.
pub(crate) fn read_notify(
    table: Located<TableReader<'_, '_>>,
    problems: &mut Collector<'_>,
    absolute_path: fn(&str) -> Result<PathBuf, String>,
) -> Option<(Origin, Notify)> {
    let Located { value: mut table, origin } = table;
    let name = table.parsed("name", problems, check_name).map(|name| name.value);
    let kind = table.parsed("kind", problems, str::parse::<NotifyKind>).map(|kind| kind.value);
    for (key, example) in [("name", "chat"), ("kind", "slack")] {
        if !table.has(key) {
            problems.add(&origin, format!("[[notify]] has no `{key}`; add {key} = \"{example}\""));
        }
    }
    let severity = table.parsed("severity", problems, str::parse).map(|severity| severity.value);
    let per_minute = table.parsed("per_minute", problems, parse_rate).map(|rate| rate.value);
    let timeout = table.parsed("timeout", problems, parse_timeout).map(|timeout| timeout.value);
    let command = table.list("command", problems, parse_word).map_or(Vec::new(), |list| list.value);
    let command: Vec<_> = command.into_iter().map(|word| word.value).collect();
    let url = table.parsed("url", problems, |text| Ok(text.to_owned()));
    let mut path = |key| table.parsed(key, problems, absolute_path).map(|path| path.value);
    let [token_file, ca_file, socket] = ["token_file", "ca_file", "socket"].map(&mut path);
    let kind = kind?;
    for key in ["command", "url", "token_file", "ca_file", "socket"] {
        if table.has(key) && !kind.way().keys().contains(&key) {
            let keys = kind.way().keys().join(", ");
            problems.add(&origin, format!("kind `{kind}` has no `{key}`; its keys are: {keys}"));
        }
    }
    let lacks = match kind.way() {
        NotifyWay::Program if !table.has("command") => Some("command = [\"/usr/local/bin/on-event\"]"),
        NotifyWay::Http if !table.has("url") => Some("url = \"/etc/forebay/url\", a file with the URL"),
        NotifyWay::Program | NotifyWay::Http | NotifyWay::Socket => None,
    };
    if let Some(lacks) = lacks {
        problems.add(&origin, format!("[[notify]] of kind `{kind}` lacks a key; add {lacks}"));
    }
    if let (Some(program), false) = (command.first(), command.first().is_some_and(|it| it.starts_with('/'))) {
        problems.add(&origin, format!("`command`: `{program}` is not an absolute path; write it from / on"));
    }
    if let Some(Located { value, origin }) = &url
        && let Err(message) = check_place(kind, value, token_file.is_some())
    {
        problems.add(origin, format!("`url`: {message}"));
    }
    table.finish(problems);
    let notify = Notify {
        name: name?,
        kind,
        severity: severity.unwrap_or(NotifySeverity::Warning),
        per_minute: per_minute.unwrap_or(10),
        timeout: timeout.unwrap_or(Duration::from_secs(10)),
        command,
        url: url.map(|url| url.value).unwrap_or_default(),
        token_file,
        ca_file,
        socket,
    };
    Some((origin, notify))
}

/// Checks that names are unique.
pub(crate) fn check_notify(targets: &[(Origin, Notify)], problems: &mut Collector<'_>) {
    for (at, (origin, target)) in targets.iter().enumerate() {
        if targets[..at].iter().any(|(_, other)| other.name == target.name) {
            let message = format!("there are two [[notify]] {}; give each its own name", target.name);
            problems.add(origin, message);
        }
    }
}

/// Returns the name of a target if it has a valid form, which is that of a volume's name.
fn check_name(text: &str) -> Result<String, String> {
    volume::check_name("target", text).map(|()| text.to_owned())
}

/// Parses a word of a command. A NUL cannot be passed to a program.
fn parse_word(text: &str) -> Result<String, String> {
    if text.contains('\0') {
        return Err("a word of a command has no NUL; remove it".to_owned());
    }
    Ok(text.to_owned())
}

/// Parses the most notifications of a target in a minute.
fn parse_rate(text: &str) -> Result<u32, String> {
    let rate = text.parse().ok().filter(|rate| (1..=MOST_PER_MINUTE).contains(rate));
    rate.ok_or_else(|| format!("`{text}` is no rate; write a whole number from 1 to {MOST_PER_MINUTE}"))
}

/// Parses the time for a notification, within `TIMEOUTS`.
fn parse_timeout(text: &str) -> Result<Duration, String> {
    let timeout = parse_duration(text)?;
    match (TIMEOUTS.0..=TIMEOUTS.1).contains(&timeout) {
        true => Ok(timeout),
        false => Err(format!(
            "{} is out of range; write a time from {} to {}",
            format_duration(timeout),
            format_duration(TIMEOUTS.0),
            format_duration(TIMEOUTS.1)
        )),
    }
}

/// Checks the value of `url` in the configuration: a URL without secrets, or the path of a file.
fn check_place(kind: NotifyKind, text: &str, has_token: bool) -> Result<(), String> {
    if text.starts_with('/') {
        return Ok(());
    }
    if kind == NotifyKind::Slack || text.contains('?') {
        let why = if text.contains('?') {
            "a URL with `?` may have a secret"
        } else {
            "a URL of Slack is a secret"
        };
        return Err(format!(
            "{why}, and the configuration can be shown; write the URL to a file that only root reads, and name the file"
        ));
    }
    check_webhook_url(text, has_token)
}

/// Checks a URL that requests are posted to. The error never has a part of the URL, which may be a secret.
///
/// # Errors
/// One sentence: the URL is not one of HTTP, has a user or a fragment, or would send a token in plain text.
pub fn check_webhook_url(url: &str, has_token: bool) -> Result<(), String> {
    let example = "such as https://alerts.example.org/hook";
    let (is_secure, rest) = match (url.strip_prefix("https://"), url.strip_prefix("http://")) {
        (Some(rest), _) => (true, rest),
        (None, Some(rest)) => (false, rest),
        (None, None) => {
            return Err(format!(
                "the URL begins neither with https:// nor with http://; write one {example}"
            ));
        }
    };
    if url.contains(|c: char| c.is_whitespace() || c.is_control() || !c.is_ascii()) {
        return Err("the URL has a space or a character outside of ASCII; encode it with %".to_owned());
    }
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    if authority.contains('@') || rest.contains('#') {
        return Err(
            "the URL has a user or a fragment; remove it, and put a token into a `token_file`".to_owned()
        );
    }
    let (host, port) =
        split_port(authority).ok_or_else(|| format!("the URL has no host; write one {example}"))?;
    if port.is_some_and(|port| port.parse::<u16>().is_err()) {
        return Err("the URL has a port that is no number from 0 to 65535; correct it".to_owned());
    }
    let is_here = host.eq_ignore_ascii_case("localhost")
        || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
    if has_token && !is_secure && !is_here {
        return Err("the token would be sent in plain text; use https://".to_owned());
    }
    Ok(())
}

/// Splits `host:port`; the host may be an IPv6 address in brackets. Returns `None` without a host.
fn split_port(authority: &str) -> Option<(&str, Option<&str>)> {
    if let Some((host, rest)) = authority.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        host.parse::<IpAddr>().ok()?;
        return Some((host, rest.strip_prefix(':')));
    }
    let (host, port) = match authority.split_once(':') {
        Some((host, port)) => (host, Some(port)),
        None => (authority, None),
    };
    (!host.is_empty()).then_some((host, port))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resolve::resolved_from;

    /// Returns the targets of a file with this text, or its mistakes.
    fn resolved(text: &str) -> Result<Vec<Notify>, String> {
        resolved_from(text).map(|settings| settings.notify)
    }

    #[test]
    fn a_target_has_defaults() {
        let text = "[[notify]]\nname = \"page\"\nkind = \"program\"\ncommand = [\"/bin/page\", \"-q\"]\n";
        let target = resolved(text).unwrap().remove(0);
        assert_eq!((target.severity, target.per_minute), (NotifySeverity::Warning, 10));
        assert_eq!((target.command.len(), target.timeout), (2, Duration::from_secs(10)));
        assert_eq!(resolved("").unwrap(), []);
    }

    #[test]
    fn mistakes_in_targets_name_the_remedy() {
        let slack = |url: &str| format!("[[notify]]\nname = \"a\"\nkind = \"slack\"\nurl = {url:?}\n");
        assert!(resolved(&slack("/etc/forebay/url")).is_ok());
        for (text, told) in [
            (slack("https://hooks.slack.com/services/T0/B0/xyz"), "is a secret"),
            ("[[notify]]\nkind = \"syslog\"\n".to_owned(), "has no `name`"),
            ("[[notify]]\nname = \"a\"\nkind = \"fax\"\n".to_owned(), "is not one of program, slack"),
            ("[[notify]]\nname = \"a\"\nkind = \"program\"\n".to_owned(), "lacks a key; add command"),
            ("[[notify]]\nname = \"a\"\nkind = \"program\"\ncommand = [\"x\"]\n".to_owned(), "absolute path"),
            ("[[notify]]\nname = \"a\"\nkind = \"syslog\"\nurl = \"/x\"\n".to_owned(), "has no `url`"),
            ("[[notify]]\nname = \"a\"\nkind = \"journal\"\nper_minute = 0\n".to_owned(), "no rate"),
            ("[[notify]]\nname = \"a\"\nkind = \"journal\"\ntimeout = \"1h\"\n".to_owned(), "out of range"),
            (slack("/a").replace("\"a\"", "\"-\""), "`-` is no name of a target"),
            (slack("/a") + &slack("/b"), "two [[notify]] a"),
        ] {
            let problems = resolved(&text).unwrap_err();
            assert!(problems.contains(told) && !problems.contains("xyz"), "{told}: {problems}");
        }
    }

    #[test]
    fn a_url_is_checked_and_never_repeated() {
        for url in
            ["https://h", "https://h.example:9093/api/v2/alerts", "http://[::1]:80/x?y=z", "http://10.0.0.1/"]
        {
            assert_eq!(check_webhook_url(url, false), Ok(()), "{url}");
        }
        for url in [
            "ftp://secret",
            "https://",
            "https://jo:secret@h",
            "https://h/se cret",
            "https://h:secret/",
            "https://h/#s",
        ] {
            let told = check_webhook_url(url, false).unwrap_err();
            assert!(!told.contains("secret"), "{told}");
        }
        assert!(check_webhook_url("http://h/", true).unwrap_err().contains("plain text"));
        for url in ["https://h/", "http://localhost:1/", "http://127.0.0.1:1/", "http://[::1]/"] {
            assert_eq!(check_webhook_url(url, true), Ok(()), "{url}");
        }
    }
}
