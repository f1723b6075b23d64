//! Tests of starts whose settings name a file or directory of the wrong kind: the start ends, with the name and the
//! remedy, and leaves everything as it was.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::harness::*;

/// A directory for starts that fail.
struct Rig(tempfile::TempDir);

impl Rig {
    fn new() -> Self {
        // A directory of other users' files, as /tmp is.
        let rig = Rig(tempfile::Builder::new().tempdir_in("/var/tmp").unwrap());
        std::fs::set_permissions(rig.0.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        std::fs::create_dir(rig.path("data")).unwrap();
        rig
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Returns the message of a start that is refused, with `state` as its state directory.
    #[track_caller]
    fn refusal(&self, state: &Path, words: &[&str]) -> String {
        let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
        command.arg("serve").arg(self.path("data")).args(["--listen", "127.0.0.1:0", "--state-dir"]);
        let output = command.arg(state).args(words).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{said}");
        said
    }
}

#[test]
fn a_pipe_in_place_of_a_file_holds_up_no_start() {
    let rig = Rig::new();
    let pipe = rig.path("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let pipe = pipe.to_str().unwrap();
    let cases: [&[&str]; 4] = [
        &["--cache", pipe],
        &["--mode", "pass-through", "--tls-cert", pipe, "--tls-key", pipe],
        &["--mode", "pass-through", "--keytab", pipe, "--sec", "krb5p"],
        &["--mode", "pass-through", "--tls-cert", "/dev/zero", "--tls-key", pipe],
    ];
    for words in cases {
        let said = rig.refusal(&rig.path("state"), words);
        // A host without the library of Kerberos says so.
        let named =
            said.contains(pipe) || said.contains("/dev/zero") || said.contains("the library of Kerberos");
        assert!(
            named && (said.contains("pipe") || said.contains("device") || said.contains("library")),
            "{said}"
        );
        assert!(!rig.path("state").exists());
    }
}

#[test]
fn a_state_directory_of_other_programs_keeps_its_rights() {
    let rig = Rig::new();
    let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o7777;
    let said = rig.refusal(rig.0.path(), &[]);
    assert!(said.contains("files of other programs") && said.contains("--state-dir"), "{said}");
    assert_eq!(mode(rig.0.path()), 0o755);
    assert_eq!(std::fs::read_dir(rig.0.path()).unwrap().count(), 1);
    std::fs::write(rig.path("file"), "").unwrap();
    let said = rig.refusal(&rig.path("file"), &[]);
    assert!(said.contains("it is not a directory"), "{said}");
    // An empty directory, and one with a key that the administrator has restored, become the server's.
    let server = Serve::new().start();
    let state = rig.path("state");
    std::fs::create_dir(&state).unwrap();
    std::fs::set_permissions(&state, std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::copy(server.state.join("handle.key"), state.join("handle.key")).unwrap();
    let said = rig.refusal(&state, &["--cache", "/dev/null"]);
    assert!(said.contains("/dev/null"), "{said}");
    assert_eq!(mode(&state), 0o700);
}

#[test]
fn a_state_directory_is_not_served() {
    let (rig, server) = (Rig::new(), Serve::new().start());
    std::fs::remove_dir(rig.path("data")).unwrap();
    std::os::unix::fs::symlink(&server.state, rig.path("data")).unwrap();
    let said = rig.refusal(&rig.path("state"), &[]);
    assert!(said.contains("is the state directory of a server") && said.contains("elsewhere"), "{said}");
}

#[test]
fn a_recording_that_is_refused_leaves_an_older_file_as_it_was() {
    let rig = Rig::new();
    let (file, nobody) = (rig.path("trace"), rig.path("none"));
    std::fs::write(&file, "older").unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
    command.args(["profile", "record"]).arg(&file).arg("--state-dir").arg(nobody);
    assert_eq!(command.output().unwrap().status.code(), Some(1));
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "older");
}

#[test]
fn a_file_in_place_of_the_socket_of_nbd_is_not_in_use() {
    let rig = Rig::new();
    std::fs::write(rig.path("file"), "").unwrap();
    let file = rig.path("file");
    let server = Serve::new().cached().flags(&["--nbd", file.to_str().unwrap()]).start();
    let health = server.status()["health"].to_string();
    assert!(
        health.contains("is not a socket; remove it") && health.contains(file.to_str().unwrap()),
        "{health}"
    );
}
