//! Tests of the scripts of the packages at a removal, with a real server. The service manager is a script of the test.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::harness::*;

/// The service manager: it has the unit forebay.service, and forebay.socket if the file `socket` exists. A stop waits
/// for the file `go`, so that the test can act between the flush and the stop.
const SYSTEMCTL: &str = r#"#!/bin/sh
cd "$(dirname "$0")" || exit
echo "$*" >> calls
case "$*" in
*list-units*--state=active*) [ "$(cat active)" != active ] || echo "forebay.service loaded active running" ;;
*list-units*) echo "forebay.service loaded $(cat active) running" ;;
*is-active*) [ -e socket ] ;;
stop\ forebay.service)
    touch stopping
    count=0
    while [ ! -e go ] && [ $((count += 1)) -lt 6000 ]; do sleep 0.01; done
    [ ! -e pid ] || kill "$(cat pid)"
    ;;
esac
"#;

/// The scripts of a package, with the paths of a test in place of those of the host.
struct Package {
    home: tempfile::TempDir,
}

impl Package {
    /// Prepares the service manager. `active` is the state of forebay.service, and `server` its server.
    fn installed(active: &str, server: Option<&Server>) -> Package {
        let package = Package { home: tempfile::tempdir().unwrap() };
        for dir in ["bin", "state", "run/systemd/system"] {
            std::fs::create_dir_all(package.at(dir)).unwrap();
        }
        package.program("systemctl", SYSTEMCTL);
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_forebay"), package.at("bin/forebay")).unwrap();
        std::fs::write(package.at("bin/active"), active).unwrap();
        if let Some(server) = server {
            std::os::unix::fs::symlink(&server.state, package.at("state/main")).unwrap();
            std::fs::write(package.at("bin/pid"), server.pid().to_string()).unwrap();
        }
        package.program("servers", &package.script("servers"));
        package
    }

    fn at(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    fn program(&self, name: &str, text: &str) {
        let path = self.at("bin").join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// Returns a file of `packaging/` with the paths of the test.
    fn script(&self, name: &str) -> String {
        let text = std::fs::read_to_string(Path::new("../../packaging").join(name)).unwrap();
        let path = |name| self.at(name).to_str().unwrap().to_owned();
        text.replace("/usr/share/forebay/servers", &path("bin/servers"))
            .replace("/var/lib/forebay", &path("state"))
            .replace("/run/", &format!("{}/", path("run")))
    }

    /// Runs the text of a script with its argument.
    fn run(&self, text: &str, argument: &str) -> Output {
        let path = format!("{}:{}", self.at("bin").display(), std::env::var("PATH").unwrap());
        let mut shell = Command::new("sh");
        shell.args(["-c", text, "script", argument]).env("PATH", path);
        shell.output().unwrap()
    }

    /// Lets stops of forebay.service end the server.
    fn let_stop(&self) {
        std::fs::write(self.at("bin/go"), "").unwrap();
    }

    /// Returns the requests to the service manager.
    fn calls(&self) -> String {
        std::fs::read_to_string(self.at("bin/calls")).unwrap_or_default()
    }

    /// Returns the script of the rpm that runs before a removal.
    fn preun(&self) -> String {
        let spec = self.script("rpm/forebay.spec");
        let (_, after) = spec.split_once("%preun\n").unwrap();
        after.split_once("\n%").unwrap().0.to_owned()
    }
}

#[test]
fn a_removal_leaves_everything_in_the_directory_that_was_acknowledged_before_the_stop() {
    for rpm in [false, true] {
        let mut server = Serve::unsquashed().cached().start();
        let package = Package::installed("active", Some(&server));
        let (script, argument) = match rpm {
            true => (package.preun(), "0"),
            false => (package.script("debian/prerm"), "remove"),
        };
        let mut c = server.connect();
        let root = c.root();
        let mut acknowledged = Vec::new();
        let mut write = |c: &mut Client| {
            let (name, contents) =
                (format!("f{}", acknowledged.len()), vec![acknowledged.len() as u8 + 1; 9000]);
            let file = c.new_file(&root, name.as_bytes(), 0o644);
            c.write(&file, 0, &contents, StableHow::FileSync).unwrap();
            acknowledged.push((name, contents));
        };
        (0..5).for_each(|_| write(&mut c));
        std::thread::scope(|scope| {
            let removal = scope.spawn(|| package.run(&script, argument));
            wait_for(|| package.at("bin/stopping").exists());
            (0..5).for_each(|_| write(&mut c));
            package.let_stop();
            let done = removal.join().unwrap();
            assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        });
        assert!(server.wait().0.success());
        for (name, contents) in &acknowledged {
            let there = std::fs::read(server.data.join(name)).unwrap();
            assert!(there == *contents, "{name} is not complete (rpm: {rpm})");
        }
        assert_eq!(package.calls().contains("disable"), rpm);
    }
}

#[test]
fn a_removal_stops_a_server_that_is_still_starting_and_the_socket_first() {
    let package = Package::installed("activating", None);
    std::fs::write(package.at("bin/socket"), "").unwrap();
    package.let_stop();
    let done = package.run(&package.script("debian/prerm"), "remove");
    let said = String::from_utf8(done.stderr).unwrap();
    assert!(done.status.success(), "{said}");
    assert!(said.contains("forebay.service could not flush its cache"), "{said}");
    let calls = package.calls();
    let stops: Vec<_> = calls.lines().filter(|call| call.starts_with("stop ")).collect();
    assert_eq!(
        stops,
        ["stop forebay.socket", "stop forebay.service", "stop forebay-privileged.socket"],
        "{calls}"
    );
}

#[test]
fn a_server_that_has_stopped_is_not_asked() {
    for state in ["inactive", "failed"] {
        let package = Package::installed(state, None);
        let done = package.run(&package.script("debian/prerm"), "remove");
        assert!(done.status.success() && done.stderr.is_empty());
        assert!(!package.calls().contains("stop "), "{}", package.calls());
    }
}

#[test]
fn a_removal_that_does_not_happen_gives_the_server_its_mode_back() {
    let server = Serve::unsquashed().cached().start();
    let package = Package::installed("active", Some(&server));
    std::fs::remove_file(package.at("bin/pid")).unwrap();
    package.let_stop();
    assert!(package.run(&package.script("debian/prerm"), "remove").status.success());
    assert_eq!(server.ask(&["mode"]), "write-through\n");
    let done = package.run(&package.script("debian/postinst"), "abort-remove");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    assert_eq!(server.ask(&["mode"]), "write-back\n");
    assert!(package.calls().contains("start forebay.service"), "{}", package.calls());
    assert!(!package.at("run/forebay-removal").exists());
}

#[test]
fn an_upgrade_restarts_a_server_that_is_still_starting_and_does_not_wait_for_it() {
    let package = Package::installed("activating", None);
    let done = package.run(&package.script("servers"), "restart-starting");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let calls = package.calls();
    assert!(calls.lines().any(|call| call == "--no-block try-restart forebay.service"), "{calls}");
}
