//! Tests of every verb in every state of a server: a verb succeeds and exits with 0, or gives the reason in one
//! sentence.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;

use tempfile::TempDir;

use crate::common::{Unprivileged, exists, forebay, text};
use crate::unattended::Unattended;

/// Verbs that change a server, with arguments that no server accepts or that a server without a cache refuses.
const CHANGES: &[(&[&str], &str)] = &[
    (&["mode", "write-back"], "cache"),
    (&["pool", "add", "/dev/null/x"], "cache"),
    (&["pool", "remove", "/nope"], "cache"),
    (&["pool", "remove", "/nope", "--wait"], "cache"),
    (&["pool", "scrub"], "cache"),
    (&["pool", "scrub", "--wait"], "cache"),
    (&["volume", "create", "x", "--backing", "/nope"], "cache"),
    (&["volume", "flush", "x"], "cache"),
    (&["cached", "/"], "no cache"),
    (&["advise"], "no cache"),
    (&["invalidate", "/"], "serves"),
];

/// Verbs that every server answers.
const LOOKS: &[&[&str]] = &[
    &["status"],
    &["stat"],
    &["stat", "--by", "client"],
    &["stat", "--by", "device"],
    &["profile"],
    &["events"],
    &["mode"],
    &["flush"],
    &["flush", "--wait"],
    &["pool", "status"],
    &["volume", "list"],
    &["reload"],
];

#[track_caller]
fn refused(output: &std::process::Output, says: &str) {
    let told = text(&output.stderr);
    assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0), "{told}");
    assert!(told.starts_with("error: ") && told.lines().count() == 1 && told.contains(says), "{told}");
}

#[test]
fn what_a_server_without_a_cache_cannot_do_fails_with_a_sentence() {
    let server = Unattended::start(&["--mode", "pass-through"], std::process::Stdio::null());
    for (verb, says) in CHANGES {
        refused(&server.ask(verb), says);
        refused(&server.ask(&[*verb, &["--json"]].concat()), says);
    }
    for verb in LOOKS {
        let output = server.ask(verb);
        assert_eq!(output.status.code(), Some(0), "{verb:?}: {}", text(&output.stderr));
        let output = server.ask(&[*verb, &["--json"]].concat());
        assert_eq!(output.status.code(), Some(0), "{verb:?}: {}", text(&output.stderr));
        let lines = text(&output.stdout);
        let is_json = |line: &str| serde_json::from_str::<serde_json::Value>(line).is_ok();
        assert!(is_json(&lines) || lines.lines().all(is_json), "{verb:?}: {lines}");
    }
    server.stop();
}

#[test]
fn devices_that_are_not_there_are_refused_before_anything_begins() {
    let server = Unattended::start(&["--cache-size", "64MiB"], std::process::Stdio::null());
    let [a, b] = ["cache-a", "cache-b"].map(|name| server.state().join(name).display().to_string());
    for (verb, says) in [
        (&["pool", "remove", "/nope"][..], "/nope is not a device of this cache"),
        (&["pool", "remove", "/nope", "--wait"], "/nope is not a device of this cache"),
        (&["pool", "add", "/proc/version"], "/proc/version"),
        (&["pool", "add", "/nope/x"], "/nope/"),
        (&["pool", "add", &a], &a),
    ] {
        refused(&server.ask(verb), says);
    }
    let report = server.json(&["pool", "remove", &a]);
    assert!(report["devices"].is_array(), "{report}");
    server.wait_for(|server| server.json(&["pool", "status"])["devices"].as_array().unwrap().len() == 1);
    refused(&server.ask(&["pool", "remove", &b]), "cache-b");
    refused(&server.ask(&["pool", "remove", &a]), "is not a device of this cache");
    server.stop();
}

#[test]
fn without_a_server_every_verb_says_so() {
    let dir = TempDir::new().unwrap();
    let state = dir.path().to_str().unwrap();
    let changes = CHANGES.iter().map(|(verb, _)| *verb);
    for verb in changes.chain(LOOKS.iter().copied()) {
        refused(&forebay(&[verb, &["--state-dir", state]].concat()), "no server runs");
    }
}

/// The server runs, but this user may not ask it.
#[test]
fn where_permission_is_denied_that_is_what_is_said() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("not run: it needs root");
        return;
    }
    let server = Unattended::start(&["--mode", "pass-through"], std::process::Stdio::null());
    let user = Unprivileged::new();
    std::fs::set_permissions(server.dir(), Permissions::from_mode(0o755)).unwrap();
    let state = server.state().to_str().unwrap().to_owned();
    for verb in LOOKS {
        let asked = [*verb, &["--state-dir", &state]].concat();
        refused(&user.command(&asked).output().unwrap(), "belongs to another user");
    }
    // Without --state-dir the default directory is searched, which the user may be unable to read.
    let base = TempDir::new().unwrap();
    std::fs::set_permissions(base.path(), Permissions::from_mode(0o755)).unwrap();
    std::fs::create_dir(base.path().join("forebay")).unwrap();
    std::fs::set_permissions(base.path().join("forebay"), Permissions::from_mode(0o700)).unwrap();
    let output = user.command(&["status"]).env("XDG_STATE_HOME", base.path()).output().unwrap();
    refused(&output, "permission denied");
    std::fs::set_permissions(base.path().join("forebay"), Permissions::from_mode(0o755)).unwrap();
    std::os::unix::fs::symlink(server.state(), base.path().join("forebay/it")).unwrap();
    assert!(exists(&base.path().join("forebay/it")));
    let output = user.command(&["status"]).env("XDG_STATE_HOME", base.path()).output().unwrap();
    refused(&output, "belongs to another user");
    server.stop();
}

#[test]
fn mistakes_in_arguments_exit_with_2() {
    let dir = TempDir::new().unwrap();
    let state = dir.path().to_str().unwrap();
    for (line, says) in [
        ("serve x --anonuid joe-is-not-here", "is no user; write the name"),
        ("serve x --anongid joe-is-not-here", "is no group; write the name"),
        ("serve x --ram 999TiB", "not within"),
        ("serve x --ram 63TiB", "of memory that this host has"),
        ("events --since then", "write a date"),
        ("events -n x", "invalid"),
        ("pool remove", "required"),
        ("mode fast", "invalid value"),
        ("stat 0", "number of seconds"),
    ] {
        let words: Vec<&str> = line.split(' ').chain(["--state-dir", state]).collect();
        let output = forebay(&words);
        let told = text(&output.stderr);
        assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0), "{line}: {told}");
        assert!(told.contains(says), "{line}: {told}");
    }
}

#[test]
fn anonymous_users_are_numbers_or_names() {
    let dir = TempDir::new().unwrap();
    let output = forebay(&[
        "serve",
        dir.path().to_str().unwrap(),
        "--check-config",
        "--anonuid",
        "root",
        "--anongid",
        "7",
    ]);
    let shown = text(&output.stdout);
    assert!(shown.contains("anonuid = 0\nanongid = 7\n"), "{shown}{}", text(&output.stderr));
}
