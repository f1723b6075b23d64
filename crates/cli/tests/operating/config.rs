//! Tests of `forebay config`: what it shows, finds and changes.

use std::os::unix::fs::{MetadataExt, PermissionsExt};

use rustix::process::Signal;
use tempfile::TempDir;

use crate::common::{forebay, text};
use crate::unattended::Unattended;

/// Returns a directory with `data` and a configuration that serves it.
fn configured(more: &str) -> (TempDir, String) {
    let dir = TempDir::new().unwrap();
    std::fs::create_dir(dir.path().join("data")).unwrap();
    let path = dir.path().join("forebay.toml");
    let head = "# Kept.\nmode = \"pass-through\" # no SSDs\n";
    let data = dir.path().canonicalize().unwrap().join("data");
    std::fs::write(&path, format!("{head}{more}\n[[export]]\npath = {data:?}\nname = \"/data\"\n")).unwrap();
    let path = path.to_str().unwrap().to_owned();
    (dir, path)
}

#[test]
fn a_file_is_judged_with_the_place_of_each_mistake() {
    let (_dir, file) = configured("[limits]\nthreads = 0");
    for args in [["config", "check", &file], ["config", "show", &file]] {
        let output = forebay(&args);
        assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0));
        assert!(text(&output.stderr).contains("forebay.toml:4:11: `threads`: 0 is out of range"), "{args:?}");
    }
    let output = forebay(&["config", "check", &file, "--json"]);
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((output.status.code(), report["mistakes"].as_array().map(Vec::len)), (Some(2), Some(1)));
    let (_dir, file) = configured("");
    assert_eq!(forebay(&["config", "check", &file]).status.code(), Some(0));
    let missing = forebay(&["config", "check", "/nonexistent/forebay.toml"]);
    assert_eq!(missing.status.code(), Some(2), "{}", text(&missing.stderr));
}

#[test]
fn settings_are_shown_with_their_sources() {
    let (dir, file) = configured("nfs4_delegations = false");
    let shown = text(&forebay(&["config", "show", &file]).stdout);
    let line = |key: &str| shown.lines().find(|line| line.starts_with(key)).unwrap().to_owned();
    assert!(line("nfs4_delegations = false").ends_with("# file"), "{shown}");
    assert!(line("lease = \"90s\"").ends_with("# default"), "{shown}");
    let server = Unattended::start_configured(dir, &["--config", &file, "--lease", "20s"]);
    let entries = server.json(&["config", "show"]);
    let entry = |key: &str| entries.as_array().unwrap().iter().find(|it| it["key"] == key).unwrap().clone();
    assert_eq!((&entry("lease")["source"], &entry("lease")["value"]), (&"flag".into(), &"\"20s\"".into()));
    assert_eq!(entry("mode")["source"], "file");
    assert_eq!(entry("locks")["change"], "needs-restart");
    server.signal(Signal::TERM);
}

#[test]
fn one_setting_changes_in_the_file_and_in_service() {
    let (dir, file) = configured("");
    let server = Unattended::start_configured(dir, &["--config", &file]);
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o640)).unwrap();
    let output = server.ask(&["config", "set", "limits.connections", "2048", "--file", &file, "--reload"]);
    let told = text(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{told}");
    assert!(told.contains("In force now: [limits] connections: 16384 -> 2048."), "{told}");
    assert_eq!(server.json(&["status"])["connections_limit"], 2048);
    let written = std::fs::read_to_string(&file).unwrap();
    assert!(written.starts_with("# Kept.\nmode = \"pass-through\" # no SSDs\n"), "{written}");
    assert_eq!(std::fs::metadata(&file).unwrap().mode() & 0o7777, 0o640);
    let output = server.ask(&["config", "set", "limits.lease", "30s", "--file", &file]);
    assert!(text(&output.stderr).contains("(from the next start on)"), "{}", text(&output.stderr));
    server.stop();
}

#[test]
fn a_setting_that_is_wrong_changes_nothing() {
    let (dir, file) = configured("");
    let before = std::fs::read(&file).unwrap();
    for (key, value, says) in [
        ("limits.connections", "0", "`connections`: 0 is out of range"),
        ("limits.connection", "5", "did you mean `connections`?"),
        ("nonsense", "5", "unknown key `nonsense`"),
        ("mode", "fast", "`fast` is not one of"),
        ("export[/x].tls", "off", "no [[export]] of the file is /x"),
        ("export[/data].path", "/nonexistent/x", "does not exist"),
    ] {
        let output = forebay(&["config", "set", key, value, "--file", &file]);
        let told = text(&output.stderr);
        assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0), "{key}: {told}");
        assert!(told.contains(says), "{key}: {told}");
        assert_eq!(std::fs::read(&file).unwrap(), before, "{key}");
    }
    let names = std::fs::read_dir(dir.path()).unwrap().count();
    assert_eq!(names, 2, "no other file is left");
}
