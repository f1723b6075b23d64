//! The configuration is read anew in service: by `forebay reload` and by SIGHUP.

use std::path::Path;

use rustix::process::Signal;
use tempfile::TempDir;

use crate::common::text;
use crate::unattended::Unattended;

/// A server whose settings are in a file.
fn configured(dir: TempDir, more: &str) -> Unattended {
    write(dir.path(), more);
    let config = dir.path().join("forebay.toml");
    let flags = ["--config", config.to_str().unwrap(), "--mode", "pass-through"];
    std::fs::create_dir(dir.path().join("data")).unwrap();
    Unattended::start_configured(dir, &flags)
}

fn write(dir: &Path, more: &str) {
    let text = format!("{more}\n[[export]]\npath = {:?}\nname = \"/\"\n", dir.join("data"));
    std::fs::write(dir.join("forebay.toml"), text).unwrap();
}

#[test]
fn sighup_reads_the_configuration_anew_and_ends_nobody() {
    let server = configured(TempDir::new().unwrap(), "");
    write(server.dir(), "[log]\nlevel = \"debug\"\n");
    server.signal(Signal::HUP);
    let reloads = |server: &Unattended| {
        let output = server.ask(&["events"]);
        let events = text(&output.stdout);
        events.lines().filter(|line| line.contains(" reload ")).map(str::to_owned).collect::<Vec<_>>()
    };
    server.wait_for(|server| !reloads(server).is_empty());
    assert!(reloads(&server)[0].contains("the log level debug"), "{:?}", reloads(&server));

    // A mistake changes nothing, and is said.
    write(server.dir(), "mod = 1\n[log]\nlevel = \"info\"\n");
    server.signal(Signal::HUP);
    server.wait_for(|server| reloads(server).len() == 2);
    let told = &reloads(&server)[1];
    assert!(told.contains("nothing has changed") && told.contains("unknown key `mod`"), "{told}");
    let output = server.ask(&["reload"]);
    assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0));
    assert!(text(&output.stderr).contains("unknown key `mod`"), "{}", text(&output.stderr));
    server.stop();
}

#[test]
fn what_cannot_change_in_service_is_named() {
    let server = configured(TempDir::new().unwrap(), "");
    assert_eq!(server.json(&["reload"])["changed"].as_array().map(Vec::len), Some(0));
    write(server.dir(), "listen = [\"127.0.0.1:1\"]\n[limits]\nconnections = 77\n");
    let report = server.json(&["reload"]);
    let later = report["at_next_start"].to_string();
    // The flag of this server overrides the addresses of the file.
    assert!(later.contains("`connections`") && !later.contains("`listen`"), "{report}");
    server.stop();
}
