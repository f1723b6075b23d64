//! Tests of `forebay support --redact` without a server: events name files of clients.

use std::io::Read as _;
use std::path::Path;

use crate::harness::*;

/// Returns the files of a new redacted archive of the stopped server, one after the other, and README.txt.
fn redacted(server: &Server, more: &[&str]) -> (String, String) {
    let archive = server.home().join("archive.tar.gz");
    let words = [&["support", "--redact", "--output", archive.to_str().unwrap()], more].concat();
    server.ask(&words);
    let file = std::fs::File::open(&archive).unwrap();
    let (mut all, mut readme) = (String::new(), String::new());
    for entry in tar::Archive::new(flate2::read::GzDecoder::new(file)).entries().unwrap() {
        let mut entry = entry.unwrap();
        let is_readme = entry.path().unwrap().ends_with("README.txt");
        entry.read_to_string(if is_readme { &mut readme } else { &mut all }).unwrap();
    }
    std::fs::remove_file(&archive).unwrap();
    (all, readme)
}

/// Removes the events that name the served directory.
fn forget_exports(state: &Path) {
    let file = state.join("events.jsonl");
    let events = std::fs::read_to_string(&file).unwrap();
    let others: String =
        events.lines().filter(|line| !line.contains("\"started\"")).map(|line| format!("{line}\n")).collect();
    assert_ne!(events, others);
    std::fs::write(&file, others).unwrap();
}

#[test]
fn names_of_files_in_events_are_replaced_when_the_server_has_stopped() {
    needs_root!();
    let mut server = Serve::unsquashed().cached().start();
    let mut c = server.connect();
    let root = c.root();
    c.new_file(&root, b"secretplan", 0o644);
    let path = server.data.join("secretplan");
    server.ask(&["policy", "set", path.to_str().unwrap(), "--cache", "pin"]);
    let events = server.ask(&["events", "-n", "100"]);
    assert!(events.contains("/secretplan"), "no event names the file: {events}");
    drop(c);
    server.stop();
    let shown = server.data.to_str().unwrap().to_owned();
    // The events of the state directory have the export.
    let (all, readme) = redacted(&server, &[]);
    assert!(!all.contains("secretplan") && all.contains(&format!("{shown}/name-")), "{all}");
    assert!(readme.contains("Paths of exports"), "{readme}");
    // The configuration has it.
    forget_exports(&server.state);
    let config = server.home().join("forebay.toml");
    std::fs::write(&config, format!("[[export]]\npath = {shown:?}\nname = \"/\"\n")).unwrap();
    let (all, _) = redacted(&server, &["--config", config.to_str().unwrap()]);
    assert!(!all.contains("secretplan") && all.contains(&format!("{shown}/name-")), "{all}");
    // Nothing has it.
    let (all, readme) = redacted(&server, &["--config", "/nonexistent.toml"]);
    assert!(!all.contains("secretplan") && readme.contains("not known"), "{readme} {all}");
}
