//! Tests of the shipped units with systemd's own tools. On a machine without these tools the tests check nothing, and
//! say so.

#![allow(clippy::unwrap_used, reason = "a panic is the assertion")]

use std::process::{Command, Output};

const UNIT: &str = include_str!("../../../packaging/forebay.service");
const HELPER: &str = include_str!("../../../packaging/forebay-privileged@.service");

/// Runs `systemd-analyze` on a copy of a unit whose program exists on this machine; `None` where the tool is missing.
fn analyze(unit: &str, words: &[&str]) -> Option<Output> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("forebay.service");
    let lines = unit.lines().filter(|line| !line.starts_with("Documentation="));
    let lines = lines.map(|line| line.replace("/usr/bin/forebay ", "/bin/true "));
    std::fs::write(&path, lines.collect::<Vec<_>>().join("\n")).unwrap();
    let output = Command::new("systemd-analyze").args(words).arg(&path).output();
    if output.is_err() {
        eprintln!("not run: it needs systemd-analyze");
    }
    output.ok()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr].concat()).into_owned()
}

#[test]
fn systemd_understands_every_line_of_the_units() {
    for unit in [UNIT, HELPER] {
        let Some(output) = analyze(unit, &["verify", "--man=no", "--recursive-errors=no"]) else { return };
        let said = said(&output);
        assert!(output.status.success() && !said.contains("forebay.service:"), "{said}");
    }
}

#[test]
fn the_units_are_not_less_protected_than_the_manual_says() {
    let configured = format!("{UNIT}\n[Service]\nProtectHome=yes\n");
    for (unit, threshold) in [(UNIT, 32), (&configured, 30), (HELPER, 18)] {
        let threshold = format!("--threshold={threshold}");
        let Some(output) = analyze(unit, &["security", "--offline=yes", &threshold, "--no-pager"]) else {
            return;
        };
        assert!(output.status.success(), "{}", said(&output));
    }
}
