//! Tests of the real binary without a server: exit codes, streams, generated files.

// A panic in a test or its helpers is a failed assertion, so `unwrap` is allowed here.
#![allow(clippy::unwrap_used)]

mod common;

use common::{forebay, text};
use tempfile::TempDir;

#[test]
fn usage_mistakes_exit_with_2_and_say_so_on_stderr() {
    for line in ["", "frobnicate", "serve", "mode fast", "stat 0", "serve x --anonuid many"] {
        let output = forebay(&line.split_whitespace().collect::<Vec<_>>());
        assert_eq!(output.status.code(), Some(2), "{line}");
        assert!(output.stdout.is_empty() && !output.stderr.is_empty(), "{line}");
    }
}

#[test]
fn a_cache_that_cannot_be_is_a_usage_mistake_in_one_sentence() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("data");
    let path = path.to_str().unwrap();
    for (flags, why) in [
        (&["--cache-size", "1MiB"][..], "64 MiB"),
        (&["--ram", "1KiB"], "16 MiB"),
        (&["--cache", "x", "--cache", "./x"], "twice"),
        (&["--format-cache"], "--cache"),
    ] {
        let output = forebay(&[&["serve", path], flags].concat());
        assert_eq!(output.status.code(), Some(2), "{flags:?}");
        let told = text(&output.stderr);
        assert!(told.starts_with("error: --") && told.lines().count() == 1, "{told}");
        assert!(told.contains(why), "{told}");
    }
    assert!(!dir.path().join("data").exists(), "nothing is made for a command that is refused");
}

#[test]
fn check_config_explains_every_mistake_or_shows_what_results() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("f.toml");
    let check = |flags: &[&str]| {
        forebay(&[&["serve", "--check-config", "--config", file.to_str().unwrap()], flags].concat())
    };
    std::fs::write(&file, "mod = 1\n[limits]\nthreads = 0\n").unwrap();
    let output = check(&["--listen", "here"]);
    assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0));
    let told = text(&output.stderr);
    let lines: Vec<&str> = told.lines().collect();
    assert!(lines[0].contains("f.toml:1:1: unknown key `mod`"), "{told}");
    assert!(lines[1].contains("f.toml:3:11: `threads`: 0 is out of range"), "{told}");
    assert!(lines[2].contains("--listen: `here` is not a listen address"), "{told}");

    let served = dir.path().canonicalize().unwrap();
    std::fs::write(&file, format!("[[export]]\npath = {served:?}\nname = \"/data\"\n")).unwrap();
    let flags = ["--state-dir", "/var/lib/elsewhere", "--busy-poll", "20us", "--memory", "1GiB"];
    let output = check(&flags);
    assert_eq!((output.status.code(), text(&output.stderr).as_str()), (Some(0), "No mistakes found.\n"));
    let shown = text(&output.stdout);
    assert!(shown.contains("busy_poll = \"20us\"\n") && shown.contains("memory = \"1 GiB\"\n"), "{shown}");
    // The output is itself a configuration, and yields equal settings.
    std::fs::write(&file, &shown).unwrap();
    assert_eq!(text(&check(&[]).stdout), shown);
}

#[test]
fn verbs_without_a_server_fail_with_one_sentence() {
    let dir = TempDir::new().unwrap();
    let state = dir.path().to_str().unwrap();
    for verb in [&["status"][..], &["stat"], &["events"], &["mode"], &["flush"], &["pool", "status"]] {
        let output = forebay(&[verb, &["--state-dir", state]].concat());
        assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0), "{verb:?}");
        let told = text(&output.stderr);
        assert!(told.contains("no server runs") && told.lines().count() == 1, "{told}");
    }
    let output = forebay(&["top"]);
    assert!(output.status.code() == Some(1) && text(&output.stderr).contains("needs a terminal"));
}

#[test]
fn completions_and_manual_pages_are_made_for_every_verb() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let output = forebay(&["completions", shell]);
        assert!(output.status.success() && text(&output.stdout).contains("check-config"), "{shell}");
    }
    let page = text(&forebay(&["man"]).stdout);
    assert!(page.contains(".TH") && page.contains("forebay serve ./data"), "{page}");
    let dir = TempDir::new().unwrap();
    assert!(forebay(&["man", dir.path().to_str().unwrap()]).status.success());
    for verb in [
        "",
        "-serve",
        "-pool",
        "-pool-add",
        "-mode",
        "-flush",
        "-status",
        "-stat",
        "-top",
        "-events",
        "-bench",
        "-bench-run",
        "-bench-array-up",
        "-doctor",
    ] {
        assert!(dir.path().join(format!("forebay{verb}.1")).exists(), "{verb}");
    }
    let output = forebay(&["man", "/nonexistent"]);
    assert!(output.status.code() == Some(1) && text(&output.stderr).contains("/nonexistent"));
}

#[test]
fn output_that_nobody_reads_is_no_failure() {
    use std::process::{Command, Stdio};
    let mut child = Command::new(env!("CARGO_BIN_EXE_forebay"))
        .args(["completions", "bash"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), text(&output.stderr).as_str()), (Some(0), ""));
}

#[test]
fn doctor_judges_a_directory_and_a_taken_port() {
    let dir = TempDir::new().unwrap();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let output = forebay(&["doctor", dir.path().to_str().unwrap(), "--listen", &address, "--json"]);
    assert_eq!(output.status.code(), Some(1), "a taken port fails");
    let checks: Vec<serde_json::Value> = serde_json::from_slice(&output.stdout).unwrap();
    let state = |part: &str| {
        let found = checks.iter().find(|check| check["subject"].as_str().unwrap().contains(part));
        found.unwrap_or_else(|| panic!("no check of {part}: {checks:#?}"))["state"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    assert_eq!(state(&address), "fail");
    for part in ["file system", "mount options", "privileges", "open files", "memory", "portmapper"] {
        assert!(["ok", "warn"].contains(&state(part).as_str()), "{part}");
    }
    let mended =
        checks.iter().filter(|check| check["state"] != "ok").all(|check| check["fix"]["command"].is_string());
    assert!(mended, "every finding says how to mend it: {checks:#?}");
    let taken = checks.iter().find(|check| check["subject"].as_str().unwrap().contains(&address)).unwrap();
    let reason = taken["fix"]["by_hand"].as_str().unwrap();
    assert!(reason.contains("only you know"), "{taken:#}");
    let buffers = checks.iter().filter(|check| check["subject"].as_str().unwrap().contains("tcp_rmem"));
    assert!(buffers.into_iter().all(|check| check["fix"]["by_hand"].is_null()), "--apply sets it");
    let output = forebay(&["doctor", "/nonexistent", "--listen", "127.0.0.1:0"]);
    assert!(output.status.code() == Some(1) && text(&output.stdout).contains("mkdir -p /nonexistent"));
    assert_eq!(forebay(&["doctor", "--listen", "here"]).status.code(), Some(2));
}

#[test]
fn doctor_takes_back_what_it_has_changed() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("not run: it needs root");
        return;
    }
    let dir = TempDir::new().unwrap();
    let (setting, other) = (dir.path().join("setting"), dir.path().join("other"));
    let state = dir.path().to_str().unwrap();
    std::fs::write(&setting, "3\n").unwrap();
    std::fs::write(&other, "9\n").unwrap();
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    let change = |path: &std::path::Path| {
        serde_json::json!({
            "boot": boot.trim(), "kind": "write", "path": path, "value": "3", "before": "1",
            "undo": { "path": path, "value": "1" },
        })
    };
    let list = dir.path().join("doctor-changes.jsonl");
    std::fs::write(&list, format!("{}\n{}\n", change(&setting), change(&other))).unwrap();
    let output = forebay(&["doctor", "--undo", "--state-dir", state]);
    let told = text(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{told}");
    assert!(
        told.contains("from `3` back to `1`") && told.contains("is `9`, which somebody else has set"),
        "{told}"
    );
    assert_eq!(std::fs::read_to_string(&setting).unwrap(), "1");
    assert!(!list.exists());
    let output = forebay(&["doctor", "--undo", "--state-dir", state]);
    assert!(output.status.success() && text(&output.stderr).contains("Nothing to undo"));
}

#[test]
fn doctor_judges_a_client() {
    let output = forebay(&["doctor", "--client", "--json"]);
    let checks: Vec<serde_json::Value> = serde_json::from_slice(&output.stdout).unwrap();
    let subject = |part: &str| checks.iter().any(|check| check["subject"].as_str().unwrap().contains(part));
    assert!(subject("mount") && subject("tcp_rmem"), "{checks:#?}");
    assert_eq!(forebay(&["doctor", "--client", "/srv"]).status.code(), Some(2));
}
