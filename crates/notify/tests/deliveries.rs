//! Tests of notifications with real programs, sockets and HTTP servers.

// A panic in a test or its helpers is a failed assertion, so `unwrap` is allowed here.
#![allow(clippy::unwrap_used)]

mod receiver;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::Path;
use std::thread::JoinHandle;
use std::time::Duration;

use forebay_config::{Notify, NotifyKind, NotifySeverity};
use forebay_control::{Delivery, Event, Severity};
use forebay_notify::{Order, Policy, Report, run};
use receiver::Receiver;
use tempfile::TempDir;

/// Two attempts without a pause.
const POLICY: Policy =
    Policy { attempts: 2, first_delay: Duration::from_millis(1), last: Duration::from_secs(60) };

fn target(name: &str, kind: NotifyKind) -> Notify {
    Notify {
        name: name.to_owned(),
        kind,
        severity: NotifySeverity::Info,
        per_minute: 10,
        timeout: Duration::from_secs(30),
        command: Vec::new(),
        url: String::new(),
        token_file: None,
        ca_file: None,
        socket: None,
    }
}

fn shell(name: &str, script: &str) -> Notify {
    let command = ["/bin/sh", "-c", script].map(str::to_owned).to_vec();
    Notify { command, ..target(name, NotifyKind::Program) }
}

fn event(sequence: u64, severity: Severity, kind: &str) -> Event {
    let message = format!("number {sequence}\nof \"all\"");
    Event { sequence, time_ns: 9, severity, kind: kind.to_owned(), message, fields: BTreeMap::new() }
}

/// The process that sends notifications, as threads of the test.
struct Sender {
    orders: UnixStream,
    reports: BufReader<UnixStream>,
    running: JoinHandle<std::io::Result<()>>,
}

impl Sender {
    fn start(targets: &[Notify], policy: Policy) -> Self {
        let (orders, theirs) = UnixStream::pair().unwrap();
        let reports = BufReader::new(orders.try_clone().unwrap());
        let running = std::thread::spawn(move || run(theirs.try_clone().unwrap(), theirs, policy, 4711));
        let mut sender = Sender { orders, reports, running };
        sender.order(&Order::Targets { targets: targets.to_vec() });
        sender
    }

    fn order(&mut self, order: &Order) {
        let mut line = serde_json::to_vec(order).unwrap();
        line.push(b'\n');
        self.orders.write_all(&line).unwrap();
    }

    fn send(&mut self, number: u64, severity: Severity, kind: &str) {
        self.order(&Order::Event(event(number, severity, kind)));
    }

    fn report(&mut self) -> Report {
        let mut line = String::new();
        self.reports.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap()
    }

    /// Returns the kind and the message of the next report.
    fn happened(&mut self) -> (String, String) {
        match self.report() {
            Report::Happened { kind, message, .. } => (kind, message),
            tested => panic!("{tested:?}"),
        }
    }

    fn test(&mut self, target: Option<&str>) -> Vec<Delivery> {
        self.order(&Order::Test { number: 5, target: target.map(str::to_owned) });
        loop {
            match self.report() {
                Report::Tested { number, deliveries } => {
                    assert_eq!(number, 5);
                    return deliveries;
                }
                Report::Happened { .. } => {}
            }
        }
    }

    /// Ends the orders and waits until everything is sent.
    fn end(mut self, is_clean: bool) {
        if is_clean {
            self.order(&Order::Stop);
        }
        self.orders.shutdown(std::net::Shutdown::Write).unwrap();
        self.running.join().unwrap().unwrap();
    }
}

fn lines(path: &Path) -> Vec<String> {
    std::fs::read_to_string(path).unwrap().lines().map(str::to_owned).collect()
}

#[test]
fn a_program_gets_each_event_that_is_severe_enough() {
    let dir = TempDir::new().unwrap();
    let script = format!(
        "cd {}; cat >> in; echo >> in; echo $FOREBAY_KIND $FOREBAY_SEVERITY $# >> env",
        dir.path().display()
    );
    let severe = Notify { severity: NotifySeverity::Warning, ..shell("p", &script) };
    let mut sender = Sender::start(&[severe], POLICY);
    sender.send(1, Severity::Error, "device-lost");
    sender.send(2, Severity::Info, "warm");
    sender.send(3, Severity::Warning, "late; rm -rf /");
    sender.end(true);
    let told: Vec<serde_json::Value> =
        lines(&dir.path().join("in")).iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(told.iter().map(|one| one["sequence"].as_u64().unwrap()).collect::<Vec<_>>(), [1, 3]);
    assert_eq!(
        (&told[0]["kind"], &told[0]["message"]),
        (&"device-lost".into(), &"number 1\nof \"all\"".into())
    );
    assert_eq!(lines(&dir.path().join("env")), ["device-lost error 0", "late; rm -rf / warning 0"]);
}

#[test]
fn a_program_that_fails_hangs_or_is_missing_is_told_once() {
    let fails = shell("p", "echo no such pager >&2; exit 3");
    let hangs = Notify { timeout: Duration::from_millis(200), ..shell("p", "sleep 1000 & sleep 1000") };
    let missing = Notify { command: vec!["/no/such/program".into()], ..shell("p", "") };
    for (target, told) in [
        (fails, "/bin/sh ended with exit status: 3: no such pager; tried 2 times"),
        (hangs, "/bin/sh did not end within 200ms, and was killed; tried 2 times"),
        (missing, "/no/such/program cannot be run: No such file or directory (os error 2)"),
    ] {
        let mut sender = Sender::start(&[target], POLICY);
        sender.send(1, Severity::Info, "a");
        let (mut kind, mut message) = sender.happened();
        if kind == "notify-config" {
            // A missing program is told at the start as well.
            assert!(message.contains(told), "{message}");
            (kind, message) = sender.happened();
        }
        assert_eq!(kind, "notify-failed");
        assert!(message.contains(told), "{message}");
        sender.send(2, Severity::Info, "b");
        let tested = sender.test(Some("p"));
        assert!(tested[0].error.is_some(), "{tested:?}");
        sender.end(true);
    }
}

#[test]
fn a_target_that_fails_gets_what_it_missed_in_one_notification_at_the_stop() {
    let dir = TempDir::new().unwrap();
    let script = format!("cd {}; test -e well && cat >> in", dir.path().display());
    let mut sender = Sender::start(&[shell("p", &script)], POLICY);
    sender.send(1, Severity::Error, "lost");
    assert_eq!(sender.happened().0, "notify-failed");
    sender.send(2, Severity::Info, "late");
    sender.order(&Order::Missed { count: 7 });
    std::fs::write(dir.path().join("well"), "").unwrap();
    sender.order(&Order::Stop);
    sender.orders.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(sender.happened(), ("notify-restored".into(), "notifications to p work again".into()));
    sender.running.join().unwrap().unwrap();
    let told = lines(&dir.path().join("in"));
    assert_eq!(told.len(), 1);
    assert!(told[0].contains("9 events in one notification: 1 late, 1 lost, 7 of other kinds"), "{told:?}");
}

#[test]
fn events_beyond_the_rate_are_one_notification() {
    let receiver = Receiver::answering(&["200"]);
    let url = receiver.url("/hook");
    let mut sender =
        Sender::start(&[Notify { url, per_minute: 2, ..target("w", NotifyKind::Webhook) }], POLICY);
    (1..=100).for_each(|number| sender.send(number, Severity::Info, "many"));
    let first: Vec<_> = (0..2).map(|_| receiver.next().json()).collect();
    assert_eq!(first[1]["alerts"][0]["labels"]["event"], "2");
    sender.end(true);
    let sum = receiver.next().json();
    let summary = sum["commonAnnotations"]["summary"].as_str().unwrap();
    assert!(summary.starts_with("98 events in one notification: 98 many"), "{summary}");
    assert!(receiver.is_idle());
}

#[test]
fn a_webhook_that_fails_at_first_is_tried_again() {
    let receiver = Receiver::answering(&["500", "200"]);
    let mut sender =
        Sender::start(&[Notify { url: receiver.url("/"), ..target("w", NotifyKind::Alertmanager) }], POLICY);
    sender.send(8, Severity::Error, "device-lost");
    let (first, second) = (receiver.next(), receiver.next());
    assert_eq!(first.body, second.body);
    assert_eq!(second.json()[0]["labels"]["alertname"], "ForebayDeviceLost");
    sender.end(true);
    assert!(receiver.is_idle());
}

#[test]
fn a_webhook_that_refuses_is_not_tried_again_and_its_secrets_are_in_no_report() {
    let dir = TempDir::new().unwrap();
    let receiver = Receiver::answering(&["403"]);
    let (url, token) = (dir.path().join("url"), dir.path().join("token"));
    std::fs::write(&url, receiver.url("/services/SECRET-PATH\n")).unwrap();
    std::fs::write(&token, "SECRET-TOKEN\n").unwrap();
    let slack = Notify {
        url: url.to_str().unwrap().to_owned(),
        token_file: Some(token),
        ..target("chat", NotifyKind::Slack)
    };
    let mut sender = Sender::start(&[slack], POLICY);
    sender.send(1, Severity::Warning, "late");
    let request = receiver.next();
    assert_eq!(request.path, "/services/SECRET-PATH");
    assert_eq!(request.field("authorization"), Some("Bearer SECRET-TOKEN"));
    assert!(request.json()["text"].as_str().unwrap().starts_with("*warning* on "));
    let (kind, message) = sender.happened();
    assert_eq!(kind, "notify-failed");
    // The answer of the receiver repeats the path and the token.
    assert!(message.contains("status 403") && message.contains("tried once"), "{message}");
    assert!(!message.contains("SECRET"), "{message}");
    assert!(receiver.is_idle());
    sender.end(true);
}

#[test]
fn a_webhook_that_hangs_delays_no_other_target() {
    let (hanging, sound) = (Receiver::hanging(), Receiver::answering(&["200"]));
    let timeout = Duration::from_millis(300);
    let slow = Notify { url: hanging.url("/"), timeout, ..target("slow", NotifyKind::Webhook) };
    let good = Notify { url: sound.url("/"), ..target("good", NotifyKind::Webhook) };
    let mut sender = Sender::start(&[slow, good], POLICY);
    sender.send(1, Severity::Info, "a");
    assert_eq!(sound.next().json()["alerts"][0]["labels"]["event"], "1");
    let (kind, message) = sender.happened();
    assert!(
        kind == "notify-failed" && message.contains("slow fail: the webhook did not answer within 300ms"),
        "{message}"
    );
    let tested = sender.test(None);
    let errors: Vec<_> = tested.iter().map(|one| (one.target.as_str(), one.error.is_some())).collect();
    assert_eq!(errors, [("good", false), ("slow", true)]);
    assert!(sender.test(Some("nobody")).is_empty());
    sender.end(true);
}

#[test]
fn a_connection_that_is_refused_is_named() {
    let url = Receiver::answering(&[]).url("/");
    let mut sender = Sender::start(&[Notify { url, ..target("w", NotifyKind::Webhook) }], POLICY);
    let tested = sender.test(Some("w"));
    let error = tested[0].error.as_deref().unwrap();
    assert!(error.contains("connection to the webhook failed") && error.contains("refused"), "{error}");
    sender.end(true);
}

#[test]
fn a_webhook_over_tls_needs_a_trusted_certificate() {
    let dir = TempDir::new().unwrap();
    let (receiver, authority) = Receiver::over_tls();
    let ca_file = Some(dir.path().join("ca.pem"));
    std::fs::write(dir.path().join("ca.pem"), authority).unwrap();
    let (_, other) = Receiver::over_tls();
    std::fs::write(dir.path().join("other.pem"), other).unwrap();
    let good = Notify { url: receiver.url("/"), ca_file, ..target("good", NotifyKind::Webhook) };
    let bad = Notify { name: "bad".into(), ca_file: Some(dir.path().join("other.pem")), ..good.clone() };
    let mut sender = Sender::start(&[good, bad], POLICY);
    let tested = sender.test(Some("bad"));
    assert!(tested[0].error.as_deref().unwrap().contains("TLS with the webhook failed"), "{tested:?}");
    let tested = sender.test(Some("good"));
    assert_eq!(tested[0].error, None);
    assert_eq!(receiver.next().json()["alerts"][0]["labels"]["alertname"], "ForebayNotifyTest");
    sender.end(true);
}

#[test]
fn the_logs_of_the_host_get_datagrams() {
    let dir = TempDir::new().unwrap();
    let sockets = ["log", "journal"].map(|name| dir.path().join(name));
    let [log, journal] = [&sockets[0], &sockets[1]].map(|path| UnixDatagram::bind(path).unwrap());
    let [to_log, to_journal] =
        [NotifyKind::Syslog, NotifyKind::Journal].map(|kind| target(kind.as_str(), kind));
    let to_log = Notify { socket: Some(sockets[0].clone()), ..to_log };
    let to_journal = Notify { socket: Some(sockets[1].clone()), ..to_journal };
    let mut sender = Sender::start(&[to_log, to_journal], POLICY);
    sender.send(6, Severity::Warning, "late");
    let mut datagram = [0; 4096];
    let received = log.recv(&mut datagram).unwrap();
    let line = String::from_utf8_lossy(&datagram[..received]).into_owned();
    assert!(line.starts_with("<28>") && line.ends_with(": late: number 6 of \"all\""), "{line}");
    let received = journal.recv(&mut datagram).unwrap();
    let fields = String::from_utf8_lossy(&datagram[..received]).into_owned();
    assert!(fields.contains("PRIORITY=4\n") && fields.contains("FOREBAY_KIND=late\n"), "{fields}");
    drop(log);
    let tested = sender.test(Some("syslog"));
    assert!(tested[0].error.as_deref().unwrap().contains("takes no message"), "{tested:?}");
    sender.end(true);
}

#[test]
fn the_death_of_the_server_is_told_and_its_stop_is_not() {
    let dir = TempDir::new().unwrap();
    for (is_clean, told) in [(true, 0), (false, 1)] {
        let file = dir.path().join(is_clean.to_string());
        let script = format!("echo $FOREBAY_KIND $FOREBAY_MESSAGE >> {}", file.display());
        let sender = Sender::start(&[shell("p", &script)], POLICY);
        sender.end(is_clean);
        let found = if file.exists() { lines(&file) } else { Vec::new() };
        assert_eq!(found.len(), told, "{found:?}");
        assert!(found.iter().all(|line| line.starts_with("server-died the server (process 4711) has ended")));
    }
}

#[test]
fn targets_change_in_service() {
    let dir = TempDir::new().unwrap();
    let into = |name: &str| format!("echo $FOREBAY_KIND >> {}", dir.path().join(name).display());
    let mut sender = Sender::start(&[shell("a", &into("a")), shell("b", &into("b"))], POLICY);
    sender.send(1, Severity::Info, "first");
    // A test of both is answered after their first notifications were begun, and says that all threads run.
    sender.test(None);
    let quiet = Notify { severity: NotifySeverity::Error, ..shell("a", &into("a2")) };
    sender.order(&Order::Targets { targets: vec![quiet, shell("c", &into("c"))] });
    sender.send(2, Severity::Info, "second");
    sender.send(3, Severity::Error, "third");
    sender.end(true);
    assert_eq!(lines(&dir.path().join("c")), ["second", "third"]);
    let a2 = lines(&dir.path().join("a2"));
    assert_eq!(a2.last().map(String::as_str), Some("third"), "{a2:?}");
    assert!(!a2.contains(&"second".to_owned()));
}
