//! Tests of the real binary with a real server: its start, every verb, its end.

// A panic in a test or its helpers is a failed assertion, so `unwrap` is allowed here.
#![allow(clippy::unwrap_used)]

mod common;

use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::process::Command;
use std::time::Duration;

use common::{Running, Serving, Unprivileged, exists, forebay, text};
use rustix::process::Signal;

#[test]
fn serve_makes_the_directory_and_says_how_to_mount_it() {
    let server = Serving::start(&["--export", "/data"]);
    assert!(server.running.announced.starts_with("Made the directory "), "{}", server.running.announced);
    let port = server.address().rsplit_once(':').unwrap().1;
    let mount = format!("mount -t nfs -o port={port} 127.0.0.1:/ /mnt");
    assert!(server.running.announced.contains(&mount), "{}", server.running.announced);
    assert!(server.running.announced.contains("as / and /data\n"), "{}", server.running.announced);
    let socket = server.state().join("control.sock");
    assert!(exists(&socket));
    let (status, _) = server.running.end(Signal::TERM);
    assert_eq!((status.code(), exists(&socket)), (Some(0), false));
}

#[test]
fn the_printed_libnfs_command_works() {
    let server = Serving::start(&[]);
    std::fs::write(server.data().join("greeting"), "hello").unwrap();
    let command = server.running.announced.lines().find(|line| line.contains("nfs-ls")).unwrap().trim();
    if Command::new("nfs-ls").output().is_err() {
        // Libnfs-utils is not installed; `cargo x setup` installs it.
        assert!(std::env::var_os("CI").is_none(), "libnfs-utils is missing");
        return;
    }
    let output = Command::new("sh").arg("-c").arg(command).output().unwrap();
    assert!(text(&output.stdout).contains("greeting"), "{command}: {}", text(&output.stderr));
}

#[test]
fn every_verb_is_answered() {
    let server = Serving::start(&[]);
    let ask = |args: &[&str]| {
        let output = server.ask(args);
        assert_eq!(output.status.code(), Some(0), "{args:?}: {}", text(&output.stderr));
        text(&output.stdout)
    };
    let json = |args: &[&str]| -> serde_json::Value {
        let shown = ask(args);
        serde_json::from_str(&shown).unwrap_or_else(|error| panic!("{args:?}: {error}: {shown}"))
    };
    let status = json(&["status", "--json"]);
    assert_eq!(status["mode"], "pass-through");
    assert_eq!(status["health"]["state"], "OK");
    assert_eq!(status["exports"][0]["path"], server.data().canonicalize().unwrap().to_str().unwrap());
    assert_eq!(status["listen"][0], server.address());
    let shown = ask(&["status"]);
    assert!(shown.contains("EXPORT") && shown.contains("reply cache") && !shown.contains('\x1b'), "{shown}");

    let lines = ask(&["stat", "0.01", "3"]);
    assert!(lines.starts_with("TIME ") && lines.lines().count() == 4, "{lines}");
    let lines = ask(&["stat", "0.01", "2", "--json"]);
    assert!(
        lines
            .lines()
            .all(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()["seconds"].is_f64())
    );
    assert_eq!(ask(&["stat"]).lines().count(), 2, "one line since the start");

    assert_eq!(ask(&["mode"]), "pass-through\n");
    assert_eq!(json(&["mode", "pass-through", "--json"])["mode"], "pass-through");
    assert_eq!(json(&["flush", "--wait", "--json"])["dirty_bytes"], 0);
    assert_eq!(json(&["flush", "--json"])["started"], true);
    assert!(ask(&["pool", "status"]).contains("no cache is configured"));
    assert_eq!(json(&["pool", "status", "--json"])["configured"], false);
    assert_eq!(
        json(&["events", "--json", "-n", "1"])["sequence"].as_u64().map(|number| number > 0),
        Some(true)
    );
    assert!(ask(&["events"]).contains("started"));
    for refused in
        [&["mode", "write-back"][..], &["pool", "add", "/dev/x"], &["pool", "remove", "/dev/x", "--wait"]]
    {
        let output = server.ask(refused);
        assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0), "{refused:?}");
        assert_eq!(text(&output.stderr).lines().count(), 1, "{refused:?}");
    }
}

#[test]
fn a_killed_servers_state_is_taken_over_and_a_stop_removes_the_socket() {
    let server = Serving::start(&[]);
    let (data, state) = (server.data(), server.state());
    let paths = [data.to_str().unwrap(), "--state-dir", state.to_str().unwrap()];
    let refused = forebay(&[&["serve", "--listen", "127.0.0.1:0"], &paths[..]].concat());
    let told = text(&refused.stderr);
    assert_eq!((refused.status.code(), told.lines().count()), (Some(1), 1), "{told}");
    assert_eq!(server.ask(&["mode"]).status.code(), Some(0), "the first one goes on");

    let server = server.restart(Signal::KILL);
    assert_eq!(server.ask(&["mode"]).status.code(), Some(0));
    let server = server.restart(Signal::TERM);
    assert_eq!(server.ask(&["mode"]).status.code(), Some(0));
    assert!(!server.running.announced.contains("Made the directory"));
}

#[test]
fn a_taken_port_is_one_sentence() {
    let server = Serving::start(&[]);
    let other = tempfile::TempDir::new().unwrap();
    let (data, state) = (other.path().join("data"), other.path().join("state"));
    let output = forebay(&[
        "serve",
        data.to_str().unwrap(),
        "--state-dir",
        state.to_str().unwrap(),
        "--listen",
        server.address(),
    ]);
    let told = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{told}");
    let port = server.address().rsplit_once(':').unwrap().1;
    let error = told.lines().last().unwrap();
    assert!(error.starts_with("error: ") && error.contains("in use") && error.contains(port), "{told}");
}

#[test]
fn an_unprivileged_user_serves_and_finds_the_newest_server() {
    let user = Unprivileged::new();
    let first = user.serve("first");
    let second = user.serve("second");
    assert!(first.announced.contains("State is kept in ") && !first.announced.contains("--state-dir"));
    let output = user.command(&["status", "--json"]).output().unwrap();
    let status: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(status["exports"][0]["path"].as_str().unwrap().ends_with("/second"), "{status}");
    let told = text(&output.stderr);
    assert!(told.contains("also running") && told.contains("state/forebay/first-"), "{told}");
    assert_eq!(second.end(Signal::TERM).0.code(), Some(0));
    let output = user.command(&["status", "--json"]).output().unwrap();
    assert!(output.stderr.is_empty() && text(&output.stdout).contains("/first"), "{}", text(&output.stderr));
    let (_, rest) = first.end(Signal::TERM);
    assert!(rest.contains("Not running as root"), "{rest}");
}

#[test]
fn the_service_manager_is_told_when_clients_are_accepted() {
    let dir = tempfile::TempDir::new().unwrap();
    let socket = UnixDatagram::bind(dir.path().join("notify")).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let user = Unprivileged::new();
    std::os::unix::fs::chown(dir.path().join("notify"), Some(user.uid()), None).unwrap();
    let mut permissions = dir.path().metadata().unwrap().permissions();
    permissions.set_mode(0o711);
    std::fs::set_permissions(dir.path(), permissions).unwrap();
    let mut command = user.command(&["serve", "data", "--listen", "127.0.0.1:0", "--mode", "pass-through"]);
    let server = Running::start(command.env("NOTIFY_SOCKET", dir.path().join("notify")));
    let mut message = [0; 64];
    let mut next = || {
        let length = socket.recv(&mut message).unwrap();
        message[..length].to_vec()
    };
    // The manager keeps the listening socket over a restart.
    let kept = next();
    assert!(kept.starts_with(b"FDSTORE=1\nFDNAME=nfs-127.0.0.1_"), "{:?}", text(&kept));
    let ready = next();
    assert!(ready.starts_with(b"READY=1\n"), "{:?}", text(&ready));
    assert_eq!(server.end(Signal::TERM).0.code(), Some(0));
}
