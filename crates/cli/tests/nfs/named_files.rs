//! Tests of `forebay config check` with the files that the configuration names: it reports what a start or a reload
//! would report.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use crate::authority::Authority;
use crate::harness::*;

/// Returns the exit status of `forebay config check` with this text, and everything said.
fn check(home: &Path, text: &str) -> (Option<i32>, String) {
    let data = home.join("data");
    std::fs::create_dir_all(&data).unwrap();
    let file = home.join("forebay.toml");
    std::fs::write(&file, format!("{text}\n[[export]]\npath = {data:?}\nname = \"/\"\n")).unwrap();
    let output =
        Command::new(env!("CARGO_BIN_EXE_forebay")).args(["config", "check"]).arg(&file).output().unwrap();
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

fn write(path: &Path, text: &str, mode: u32) {
    std::fs::write(path, text).unwrap();
    std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
}

#[test]
fn mistakes_in_files_that_are_named_are_reported_without_a_server() {
    let home = tempfile::tempdir().unwrap();
    let at = |name: &str| home.path().join(name);
    let authority = Authority::new();
    let [own, other] = ["own", "other"].map(|name| authority.issue(name, &["server.example"]));
    write(&at("short"), "word\n", 0o600);
    write(&at("open"), "0123456789abcdef\n", 0o644);
    write(&at("plain"), "no certificate\n", 0o644);
    let tls =
        |certificate: &Path, key: &Path| format!("[tls]\ncertificate = {certificate:?}\nkey = {key:?}\n");
    let token = |name: &str| format!("[http]\ntoken_file = {:?}\n", at(name));
    let program =
        |path: &Path| format!("[[notify]]\nname = 'page'\nkind = 'program'\ncommand = [{path:?}]\n");
    let cases = [
        (tls(&at("none"), &own.key), "cannot serve TLS: cannot read"),
        (tls(&at("plain"), &own.key), "plain has no certificate in PEM form"),
        (tls(&own.certificate, &other.key), "cannot be used with the key"),
        (token("none"), "none cannot be read"),
        (token("open"), "run `chmod o="),
        (token("short"), "does not hold one word"),
        (program(&at("none")), "notifications to page will fail:"),
        (program(&at("plain")), "cannot be run: Permission denied"),
        (program(home.path()), "cannot be run: it is not a file"),
    ];
    for (text, says) in cases {
        let (code, told) = check(home.path(), &text);
        assert!(code == Some(2) && told.contains(says), "{text}: {told}");
        assert_eq!(told.lines().count(), 1, "{told}");
    }
    write(&at("token"), "0123456789abcdef\n", 0o600);
    let sound = tls(&own.certificate, &own.key) + &token("token") + &program(Path::new("/bin/true"));
    let (code, told) = check(home.path(), &sound);
    assert!(code == Some(0) && told.contains("No mistakes found"), "{told}");
    let all = tls(&own.certificate, &other.key) + &token("open") + &program(&at("none"));
    assert_eq!(check(home.path(), &all).1.lines().count(), 3, "every mistake is reported");
}

#[test]
fn a_check_a_start_and_a_reload_report_one_sentence() {
    let home = tempfile::tempdir().unwrap();
    let authority = Authority::new();
    let [own, other] = ["own", "other"].map(|name| authority.issue(name, &["server.example"]));
    let tls = |key: &Path| format!("[tls]\ncertificate = {:?}\nkey = {key:?}\n", own.certificate);
    let (_, told) = check(home.path(), &tls(&other.key));
    let sentence = told.lines().next().unwrap().to_owned();
    let export = "[[export]]\npath = '@/data'\nname = '/'\n";
    let mut server = Serve::new().exports(&(tls(&other.key) + export)).prepared();
    assert!(server.refusal().lines().any(|line| line == sentence), "{sentence}");
    server.configure(&(tls(&own.key) + export));
    server.start();
    server.configure(&(tls(&other.key) + export));
    let reload = server.try_ask(&["reload"]);
    let told = String::from_utf8(reload.stderr).unwrap();
    assert!(told.lines().any(|line| line == sentence), "{told}");
}
