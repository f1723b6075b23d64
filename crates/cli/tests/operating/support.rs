//! Tests of `forebay support`: its archive, with and without a server.

use std::collections::BTreeMap;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use tempfile::TempDir;

use crate::common::{forebay, text};
use crate::unattended::Unattended;

/// Returns the files of an archive by their names without the folder.
fn unpacked(archive: &Path) -> BTreeMap<String, String> {
    let file = std::fs::File::open(archive).unwrap();
    let mut files = BTreeMap::new();
    for entry in tar::Archive::new(flate2::read::GzDecoder::new(file)).entries().unwrap() {
        let mut entry = entry.unwrap();
        let name = entry.path().unwrap().file_name().unwrap().to_str().unwrap().to_owned();
        let mut contents = String::new();
        entry.read_to_string(&mut contents).unwrap();
        files.insert(name, contents);
    }
    files
}

#[test]
fn the_archive_of_a_server_has_its_state_and_a_list_of_its_files() {
    let server = Unattended::start(&["--mode", "pass-through"], std::process::Stdio::null());
    let archive = server.dir().join("s.tar.gz");
    // The server keeps figures of whole seconds only.
    server.wait_for(|server| {
        let first = server.dir().join("first.tar.gz");
        server.ask(&["support", "--output", first.to_str().unwrap()]);
        let rows = unpacked(&first)["history.csv"].lines().count();
        std::fs::remove_file(&first).unwrap();
        rows > 1
    });
    let output = server.ask(&["support", "--output", archive.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert_eq!(text(&output.stdout).trim(), archive.to_str().unwrap());
    assert_eq!(std::fs::metadata(&archive).unwrap().mode() & 0o7777, 0o600);
    let files = unpacked(&archive);
    let json = |name: &str| serde_json::from_str::<serde_json::Value>(&files[name]).unwrap();
    assert_eq!(json("status.json")["mode"], "pass-through");
    assert_eq!(json("samples.json").as_array().map(Vec::len), Some(2));
    let history = &files["history.csv"];
    assert!(history.starts_with("time_ms,seconds,reads"), "{history}");
    let row = history.lines().nth(1).unwrap();
    let columns = history.lines().next().unwrap().split(',').count();
    assert!(
        row.split(',').count() == columns && row.split(',').all(|value| value.parse::<f64>().is_ok()),
        "{row}"
    );
    assert!(json("profile.json")["files"].is_object(), "{}", files["profile.json"]);
    // Others than root may not read the messages of the kernel.
    if rustix::process::geteuid().is_root() {
        assert!(files.contains_key("kernel.txt"), "{}", files["README.txt"]);
    }
    assert_eq!(json("pool.json")["configured"], false);
    assert!(files["config.toml"].contains("mode = \"pass-through\""), "{}", files["config.toml"]);
    assert!(
        files["events.jsonl"].lines().any(|line| line.contains("\"started\"")),
        "{}",
        files["events.jsonl"]
    );
    assert!(files["versions.txt"].contains("kernel Linux") && files["mounts.txt"].contains("/proc"));
    for name in files.keys().filter(|name| *name != "README.txt") {
        assert!(files["README.txt"].contains(name.as_str()), "{name}: {}", files["README.txt"]);
    }
    // An archive that exists is not replaced.
    let output = server.ask(&["support", "--output", archive.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    server.stop();
}

#[test]
fn without_a_server_the_archive_says_what_is_missing() {
    let dir = TempDir::new().unwrap();
    let event =
        "{\"sequence\":1,\"time_ns\":1,\"severity\":\"info\",\"kind\":\"started\",\"message\":\"x\"}\n";
    std::fs::write(dir.path().join("events.jsonl"), event).unwrap();
    let archive = dir.path().join("s.tar.gz");
    let (state, path) = (dir.path().to_str().unwrap(), archive.to_str().unwrap());
    let output = forebay(&["support", "--redact", "--output", path, "--state-dir", state]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let files = unpacked(&archive);
    assert!(files["README.txt"].contains("MISSING: state of the server"), "{}", files["README.txt"]);
    assert!(text(&output.stderr).contains("Missing: status.json"), "{}", text(&output.stderr));
    assert_eq!(files["events.jsonl"], event);
    assert!(!files.contains_key("status.json") && files.contains_key("versions.txt"));
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    assert!(files.values().all(|file| !file.split_whitespace().any(|word| word == host)));
}
