//! Tests of events, which must survive restarts.

use std::io::Write;
use std::process::Stdio;

use crate::unattended::Unattended;

fn kinds(server: &Unattended, args: &[&str]) -> Vec<(u64, String)> {
    let output = server.ask(&[&["events", "--json"], args].concat());
    let text = String::from_utf8(output.stdout).unwrap();
    let events = text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    events
        .map(|event| (event["sequence"].as_u64().unwrap(), event["kind"].as_str().unwrap().to_owned()))
        .collect()
}

#[test]
fn events_of_earlier_starts_are_there_and_numbers_go_on() {
    let server = Unattended::start(&["--mode", "pass-through"], Stdio::null());
    let first = kinds(&server, &[]);
    let dir = server.stop();
    // A power cut may leave such a part of a line.
    let path = dir.path().join("state/events.jsonl");
    std::fs::OpenOptions::new().append(true).open(&path).unwrap().write_all(b"{\"sequ\xff").unwrap();

    let server = Unattended::start_in(dir, &["--mode", "pass-through"], Stdio::null());
    let all = kinds(&server, &[]);
    assert_eq!(all[..first.len()], first);
    let named = |kind: &str| all.iter().filter(|(_, found)| found == kind).count();
    assert_eq!((named("started"), named("stopping")), (2, 1), "{all:?}");
    let numbers: Vec<u64> = all.iter().map(|(number, _)| *number).collect();
    assert_eq!(numbers, (1..=all.len() as u64).collect::<Vec<_>>());
    assert_eq!(kinds(&server, &["-n", "1"]).len(), 1);
    assert_eq!(kinds(&server, &["--since", "1 day ago"]), all);
    assert_eq!(kinds(&server, &["--since", "2999-01-01"]), []);

    let dir = server.stop();
    let server = Unattended::start_in(dir, &["--mode", "pass-through"], Stdio::null());
    assert_eq!(kinds(&server, &[])[..all.len()], all, "what is behind a spoilt line is read as well");
    server.stop();
}

/// `top` and `status` show the time of the start, so it must be equal in all answers.
#[test]
fn a_start_has_one_time() {
    let server = Unattended::start(&["--mode", "pass-through"], Stdio::null());
    let started = || server.json(&["status"])["started_ns"].as_u64().unwrap();
    let first = started();
    assert!((0..5).all(|_| started() == first));
    server.stop();
}

#[test]
fn stat_waits_for_a_server_that_is_started_anew() {
    let server = Unattended::start(&["--mode", "pass-through"], Stdio::null());
    let state = server.state();
    let mut stat = std::process::Command::new(env!("CARGO_BIN_EXE_forebay"))
        .args(["stat", "0.02", "--json", "--state-dir"])
        .arg(&state)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(stat.stdout.take().unwrap()));
    assert!(lines.next().unwrap().is_ok());
    let dir = server.stop();
    // `stat` has noticed that the server does not answer.
    let mut told = String::new();
    let mut stderr = std::io::BufReader::new(stat.stderr.take().unwrap());
    std::io::BufRead::read_line(&mut stderr, &mut told).unwrap();
    assert!(told.contains("Waiting for the server"), "{told}");
    let server = Unattended::start_in(dir, &["--mode", "pass-through"], Stdio::null());
    // A line that is read now may come from before the restart.
    assert!((0..200).all(|_| lines.next().unwrap().is_ok()));
    stat.kill().unwrap();
    stat.wait().unwrap();
    server.stop();
}
