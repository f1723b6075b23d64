//! Tests of notifications of a real server: webhooks, programs, changes in service, and the server's end.

use std::path::Path;

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::common::text;
use crate::receiver::Receiver;
use crate::unattended::Unattended;

/// Returns a directory with an export and a configuration.
fn configured(more: &str) -> TempDir {
    let dir = TempDir::new().unwrap();
    std::fs::create_dir(dir.path().join("data")).unwrap();
    write(dir.path(), more);
    dir
}

fn write(dir: &Path, more: &str) {
    let text = format!("[[export]]\npath = {:?}\nname = \"/\"\n{more}", dir.join("data"));
    std::fs::write(dir.join("forebay.toml"), text).unwrap();
}

fn start(dir: TempDir, flags: &[&str]) -> Unattended {
    let config = dir.path().join("forebay.toml");
    let flags = [&["--config", config.to_str().unwrap(), "--sandbox", "strict"], flags].concat();
    Unattended::start_configured(dir, &flags)
}

fn webhook(name: &str, url: &str) -> String {
    format!(
        "[[notify]]\nname = {name:?}\nkind = \"webhook\"\nseverity = \"info\"\nper_minute = 600\nurl = {url:?}\n"
    )
}

/// Returns the names of the alerts that come until the last one is `last`.
fn alerts(receiver: &Receiver, last: &str) -> Vec<String> {
    let mut names = Vec::new();
    while names.last().is_none_or(|name| name != last) {
        names.push(receiver.next().json()["alerts"][0]["labels"]["alertname"].as_str().unwrap().to_owned());
    }
    names
}

fn kinds(server: &Unattended) -> Vec<String> {
    let events = text(&server.ask(&["events", "--json"]).stdout);
    let kind = |line: &str| serde_json::from_str::<serde_json::Value>(line).unwrap()["kind"].clone();
    events.lines().map(|line| kind(line).as_str().unwrap().to_owned()).collect()
}

#[test]
fn the_removal_of_a_device_reaches_a_webhook_and_so_do_the_start_and_the_stop() {
    let receiver = Receiver::answering(&["200"]);
    let dir = configured(&webhook("chat", &receiver.url("/hook")));
    let cache = ["a", "b"].map(|name| dir.path().join(name).to_str().unwrap().to_owned());
    let size = ["--cache-size", "64MiB", "--cache-in-memory"];
    let server = start(dir, &[&["--cache", &cache[0], "--cache", &cache[1]][..], &size].concat());
    alerts(&receiver, "ForebayStarted");
    let output = server.ask(&["pool", "remove", &cache[1], "--wait"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    alerts(&receiver, "ForebayDeviceRemoved");
    server.stop();
    let last = alerts(&receiver, "ForebayStopping");
    assert!(!last.contains(&"ForebayServerDied".to_owned()), "{last:?}");
}

#[test]
fn a_test_says_what_each_target_did() {
    let (good, bad) = (Receiver::answering(&["200"]), Receiver::answering(&["503"]));
    let dir = TempDir::new().unwrap();
    let secret = dir.path().join("url");
    std::fs::write(&secret, bad.url("/services/SECRET-PATH")).unwrap();
    let slack =
        format!("[[notify]]\nname = \"chat\"\nkind = \"slack\"\nurl = {secret:?}\nseverity = \"error\"\n");
    let server = start(configured(&(webhook("page", &good.url("/")) + &slack)), &["--mode", "pass-through"]);
    let output = server.ask(&["notify", "test", "--target", "page"]);
    let shown = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{shown}");
    assert!(shown.starts_with("TARGET") && shown.contains("delivered"), "{shown}");
    alerts(&good, "ForebayNotifyTest");

    let output = server.ask(&["notify", "test", "--json"]);
    assert_eq!(output.status.code(), Some(1));
    let results: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&results[0]["target"], &results[1]["target"]), (&"chat".into(), &"page".into()));
    assert!(results[0]["error"].as_str().unwrap().contains("status 503") && results[1]["error"].is_null());
    assert!(results[1]["elapsed_ns"].as_u64().unwrap() > 0);

    let output = server.ask(&["notify", "test", "--target", "nobody"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("no target nobody"), "{}", text(&output.stderr));
    // The secret is in nothing that is shown.
    let shown = [&["config", "show"][..], &["events"], &["notify", "test"]].map(|verb| server.ask(verb));
    assert!(shown.iter().all(|output| !text(&output.stdout).contains("SECRET")));
    let archive = server.dir().join("s.tar");
    server.ask(&["support", "--output", archive.to_str().unwrap()]);
    let mut unpacked = String::new();
    let archive = flate2::read::GzDecoder::new(std::fs::File::open(archive).unwrap());
    std::io::Read::read_to_string(&mut std::io::BufReader::new(archive), &mut unpacked).unwrap();
    assert!(unpacked.contains("notify") && !unpacked.contains("SECRET"));
    server.stop();
}

#[test]
fn a_failed_notification_is_one_event_that_nobody_is_notified_of() {
    let (refusing, good) = (Receiver::answering(&["403"]), Receiver::answering(&["200"]));
    let targets = webhook("refusing", &refusing.url("/")) + &webhook("good", &good.url("/"));
    let server = start(configured(&targets), &["--mode", "pass-through"]);
    server.wait_for(|server| kinds(server).contains(&"notify-failed".to_owned()));
    // The event that the log has next is told; the event about the notification is not.
    server.ask(&["reload"]);
    let told = alerts(&good, "ForebayReload");
    assert!(told.iter().all(|name| !name.contains("Notify")), "{told:?}");
    assert_eq!(kinds(&server).iter().filter(|kind| kind.starts_with("notify-")).count(), 1);
    server.stop();
}

#[test]
fn a_program_runs_without_any_privilege() {
    let dir = TempDir::new().unwrap();
    let out = dir.path().join("out");
    let script = format!(
        "grep -h -e CapEff -e CapPrm -e NoNewPrivs /proc/self/status > {0}.new; mv {0}.new {0}",
        out.display()
    );
    let target = format!(
        "[[notify]]\nname = \"p\"\nkind = \"program\"\nseverity = \"info\"\nper_minute = 1\ncommand = [\"/bin/sh\", \"-c\", {script:?}]\n"
    );
    let server = start(configured(&target), &["--mode", "pass-through"]);
    server.wait_for(|_| out.exists());
    let status = std::fs::read_to_string(&out).unwrap();
    let values: Vec<_> = status.split_whitespace().collect();
    assert_eq!(values, ["CapPrm:", "0000000000000000", "CapEff:", "0000000000000000", "NoNewPrivs:", "1"]);
    server.stop();
}

#[test]
fn targets_change_at_a_reload_of_a_server_that_has_some() {
    let (first, second) = (Receiver::answering(&["200"]), Receiver::answering(&["200"]));
    let server = start(configured(&webhook("a", &first.url("/"))), &["--mode", "pass-through"]);
    alerts(&first, "ForebayStarted");
    write(server.dir(), &webhook("b", &second.url("/")));
    let report = server.json(&["reload"]);
    assert_eq!(report["changed"][0], "[[notify]] a: removed, it had name = \"a\"");
    assert_eq!(report["changed"][1], "[[notify]] b: added with name = \"b\"");
    alerts(&second, "ForebayReload");
    server.stop();
}

#[test]
fn a_server_without_targets_gets_them_at_the_next_start() {
    let server = start(configured(""), &["--mode", "pass-through"]);
    let output = server.ask(&["notify", "test"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("[[notify]]"), "{}", text(&output.stderr));
    write(server.dir(), &webhook("b", "http://127.0.0.1:9/"));
    let report = server.json(&["reload"]);
    assert_eq!(report["at_next_start"][0], "[[notify]] b: added with name = \"b\"");
    server.stop();
}

#[test]
fn the_death_of_a_server_is_told() {
    let receiver = Receiver::answering(&["200"]);
    let server = start(configured(&webhook("a", &receiver.url("/"))), &["--mode", "pass-through"]);
    alerts(&receiver, "ForebayStarted");
    server.signal(Signal::KILL);
    assert_eq!(alerts(&receiver, "ForebayServerDied").len(), 1);
}

/// Returns the process that sends the notifications of a server.
fn helper(server: &Unattended) -> Pid {
    let parent = server.json(&["status"])["pid"].as_u64().unwrap();
    let is_helper = |process: &i32| {
        let read =
            |file: &str| std::fs::read_to_string(format!("/proc/{process}/{file}")).unwrap_or_default();
        read("cmdline").contains("send-notifications")
            && read("status").contains(&format!("PPid:\t{parent}\n"))
    };
    let names = std::fs::read_dir("/proc").unwrap().map(|entry| entry.unwrap().file_name());
    let mut processes = names.filter_map(|name| name.to_str()?.parse().ok());
    Pid::from_raw(processes.find(is_helper).unwrap()).unwrap()
}

#[test]
fn signals_of_a_service_manager_do_not_end_notifications_and_their_end_is_told() {
    let receiver = Receiver::answering(&["200"]);
    let server = start(configured(&webhook("a", &receiver.url("/"))), &["--mode", "pass-through"]);
    let helper = helper(&server);
    [Signal::TERM, Signal::INT, Signal::HUP].iter().for_each(|signal| kill_process(helper, *signal).unwrap());
    assert_eq!(server.ask(&["notify", "test"]).status.code(), Some(0));
    kill_process(helper, Signal::KILL).unwrap();
    server.wait_for(|server| kinds(server).contains(&"notify-ended".to_owned()));
    assert!(server.json(&["status"])["health"].to_string().contains("nobody is notified"));
    let output = server.ask(&["notify", "test"]);
    assert!(text(&output.stderr).contains("restart the server"), "{}", text(&output.stderr));
    server.stop();
}
