//! A state directory whose file system is full: service goes on, nothing is lost, and the administrator is told.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::process::Signal;
use tempfile::TempDir;

use crate::common::{forebay, text};
use crate::unattended::Unattended;

/// The size of the file system of the state directory, in bytes.
const SIZE: u64 = 2 << 20;

/// A small file system of its own at a directory, until the value is dropped.
struct Small {
    at: PathBuf,
}

impl Small {
    /// Mounts the file system. Returns none without the privilege.
    fn mount(at: PathBuf) -> Option<Self> {
        std::fs::create_dir_all(&at).unwrap();
        let options = format!("size={SIZE},mode=0700");
        let mount =
            Command::new("mount").args(["-t", "tmpfs", "-o", &options, "none"]).arg(&at).output().unwrap();
        mount.status.success().then_some(Self { at })
    }

    /// Takes every free byte.
    fn fill(&self) {
        let mut file = OpenOptions::new().append(true).create(true).open(self.ballast()).unwrap();
        while file.write_all(&[1; 4096]).is_ok() {}
    }

    /// Gives the room back.
    fn empty(&self) {
        std::fs::remove_file(self.ballast()).unwrap();
    }

    fn ballast(&self) -> PathBuf {
        self.at.join("ballast")
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.at).status();
    }
}

/// Returns the flags of a server with caches beside the state directory.
fn flags(dir: &Path) -> Vec<String> {
    let caches = ["a", "b"].map(|name| dir.join(name).to_str().unwrap().to_owned());
    let flags = [
        "--squash",
        "none",
        "--cache-size",
        "64MiB",
        "--cache-in-memory",
        "--cache",
        &caches[0],
        "--cache",
        &caches[1],
    ];
    flags.map(str::to_owned).to_vec()
}

fn start(dir: TempDir) -> Unattended {
    let flags = flags(dir.path());
    Unattended::start_in(dir, &flags.iter().map(String::as_str).collect::<Vec<_>>(), Stdio::inherit())
}

/// Runs a load of changes with verification against the server.
fn serves(server: &Unattended) {
    let url = format!("nfs://{}/", server.json(&["status"])["listen"][0].as_str().unwrap());
    let load = [
        "bench",
        "run",
        "--url",
        &url,
        "meta",
        "smallfile",
        "--verify",
        "-n",
        "2",
        "-d",
        "2",
        "--items",
        "20",
    ];
    let output = forebay(&[&load[..], &["--count", "20", "-t", "0.3"]].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
}

/// Runs a verb that has to fail because the state directory is full. Returns its message.
fn refused(server: &Unattended, args: &[&str]) -> String {
    let output = server.ask(args);
    assert_eq!(output.status.code(), Some(1), "{args:?}: {}", text(&output.stdout));
    text(&output.stderr)
}

/// Returns the paths of the policies and the names of the volumes.
fn remembered(server: &Unattended) -> (Vec<String>, Vec<String>) {
    let list = |value: &serde_json::Value, key: &str| {
        let list = value.as_array().unwrap().iter();
        list.map(|one| one[key].as_str().unwrap().to_owned()).collect()
    };
    let policies = server.json(&["policy", "show"]);
    (list(&policies["rules"], "path"), list(&server.json(&["volume", "list"]), "name"))
}

#[test]
fn a_full_state_directory_stops_nobody_and_loses_nothing() {
    let dir = TempDir::new().unwrap();
    let Some(small) = Small::mount(dir.path().join("state")) else {
        eprintln!("skipped: no privilege to mount a file system");
        return;
    };
    for name in ["data/first", "data/second"] {
        std::fs::create_dir_all(dir.path().join(name)).unwrap();
    }
    for name in ["disk1", "disk2"] {
        std::fs::File::create(dir.path().join(name)).unwrap().set_len(8 << 20).unwrap();
    }
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let [first, second, disk1, disk2] = ["data/first", "data/second", "disk1", "disk2"].map(at);
    let server = start(dir);
    server.json(&["policy", "set", &first, "--cache", "never"]);
    server.json(&["volume", "create", "one", "--backing", &disk1]);
    let before = remembered(&server);
    assert_eq!((before.0.len(), before.1.len()), (1, 1), "{before:?}");

    small.fill();
    serves(&server);
    let told = refused(&server, &["policy", "set", &second, "--cache", "never"]);
    assert!(told.contains("policies.json") && told.contains("No space left"), "{told}");
    let told = refused(&server, &["volume", "create", "two", "--backing", &disk2]);
    assert!(told.contains("state directory") && told.contains("No space left"), "{told}");
    assert_eq!(remembered(&server), before);
    server.json(&["mode", "write-through"]);
    server.json(&["mode", "write-back"]);
    server.wait_for(|server| {
        // Events keep coming, until one does not fit.
        server.json(&["mode", "write-through"]);
        server.json(&["mode", "write-back"]);
        small.fill();
        text(&server.ask(&["status"]).stdout).contains("events cannot be kept in the state directory")
    });
    let events = text(&server.ask(&["events", "-n", "10000"]).stdout);
    assert_eq!(events.matches("state-directory").count(), 1, "{events}");
    serves(&server);

    server.signal(Signal::KILL);
    let server = server.abandon();
    small.empty();
    let server = start(server);
    assert_eq!(remembered(&server), before);
    serves(&server);
    server.json(&["policy", "set", &second, "--cache", "never"]);
    server.json(&["volume", "create", "two", "--backing", &disk2]);
    let after = remembered(&server);
    assert_eq!((after.0.len(), after.1.len()), (2, 2), "{after:?}");

    small.fill();
    let dir = server.stop();
    // The stop has removed files.
    small.fill();
    let refusal = Command::new(env!("CARGO_BIN_EXE_forebay"))
        .arg("serve")
        .arg(dir.path().join("data"))
        .args(["--listen", "127.0.0.1:0", "--state-dir"])
        .arg(dir.path().join("state"))
        .args(flags(dir.path()))
        .output();
    let told = text(&refusal.unwrap().stderr);
    assert!(told.contains("state directory") && told.contains("No space left"), "{told}");
    small.empty();
    let server = start(dir);
    assert_eq!(remembered(&server), after);
    serves(&server);
    let dir = server.stop();
    drop(small);
    drop(dir);
}
