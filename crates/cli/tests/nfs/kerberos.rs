//! RPCSEC_GSS with Kerberos, on NFSv3 and NFSv4: a KDC, a server, and clients through the system's library.
//!
//! The library takes its configuration from the environment, which threads share. So the tests in `inside` run in a
//! process of their own, all against one server.

use std::path::PathBuf;
use std::process::Command;

use crate::harness::*;

const JO: u32 = 7100;
const MO: u32 = 7200;
/// A group of Jo, in the database only.
const TEAM: u32 = 7300;
/// The directory of the realm, and the address of the server, for the tests in `inside`.
const DIR: &str = "FOREBAY_TEST_REALM";
const ADDRESS: &str = "FOREBAY_TEST_ADDRESS";

fn exports(rules: &[(&str, &str, &str)]) -> String {
    let mut toml = format!("realms = ['{REALM}']\n");
    for (name, path, rule) in rules {
        toml += &format!(
            "[[export]]\npath='@/{path}'\nname='{name}'\n[[export.client]]\nnetworks=['127.0.0.1']\n{rule}\n"
        );
    }
    toml
}

#[test]
fn calls_of_users_of_the_realm_are_carried_out_as_these_users() {
    needs_root!();
    let Some(realm) =
        Realm::start(&["jo", "mo", "stranger", "jo/admin", "host/client.test", "nfs/client.test"])
    else {
        return;
    };
    let toml = exports(&[
        ("/", "data", "squash='none'\nsec=['krb5p','krb5i','krb5','sys']"),
        ("/private", "private", "sec=['krb5p']"),
    ]);
    let passwd = format!("root:x:0:0::/:/bin/sh\njo:x:{JO}:{JO}::/:/bin/sh\nmo:x:{MO}:{MO}::/:/bin/sh\n");
    let group = format!("root:x:0:\njo:x:{JO}:\nmo:x:{MO}:\nteam:x:{TEAM}:jo\n");
    let keytab = realm.keytab("nfs/localhost");
    let server = Serve::new()
        .exports(&toml)
        .users(&passwd, &group)
        .kerberos(&realm.config())
        .flags(&["--keytab", keytab.to_str().unwrap()])
        .start_on(|data| {
            use std::os::unix::fs::{PermissionsExt, chown};
            let private = data.with_file_name("private");
            std::fs::create_dir(&private).unwrap();
            std::fs::set_permissions(&private, PermissionsExt::from_mode(0o777)).unwrap();
            let team = data.join("team");
            std::fs::write(&team, "for the team").unwrap();
            chown(&team, Some(0), Some(TEAM)).unwrap();
            std::fs::set_permissions(&team, PermissionsExt::from_mode(0o640)).unwrap();
        });
    let inside = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "kerberos::inside::"])
        .env(DIR, realm.dir())
        .env(ADDRESS, server.address().to_string())
        .env("KRB5_CONFIG", realm.config())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&inside.stdout);
    assert!(inside.status.success(), "{said}\n{}", String::from_utf8_lossy(&inside.stderr));
    let passed = said.matches("... ok").count();
    assert!(passed >= 8, "{said}");
}

#[test]
fn an_export_with_kerberos_needs_a_keytab() {
    if Realm::start(&[]).is_none() {
        return;
    }
    let server = Serve::new().flags(&["--sec", "krb5,krb5i", "--keytab", "/nowhere/keytab"]).prepared();
    let said = server.refusal();
    assert!(said.contains("cannot use the keytab /nowhere/keytab"), "{said}");
}

#[test]
fn a_flavour_or_realm_that_does_not_exist_is_a_mistake() {
    let dir = tempfile::tempdir().unwrap();
    let serve = |flags: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
        command.arg("serve").arg(dir.path()).arg("--check-config").args(flags).output().unwrap()
    };
    assert_eq!(serve(&["--sec", "krb6"]).status.code(), Some(2));
    assert_eq!(serve(&["--realm", "a/b"]).status.code(), Some(2));
    let shown = serve(&["--sec", "krb5p,sys", "--realm", "OTHER.ORG"]);
    let shown = String::from_utf8(shown.stdout).unwrap();
    for line in ["sec = [\"krb5p\", \"sys\"]", "realms = [\"OTHER.ORG\"]", "keytab = \"/etc/krb5.keytab\""] {
        assert!(shown.contains(line), "{line}: {shown}");
    }
}

#[test]
fn a_reload_begins_to_serve_kerberos_or_changes_nothing() {
    let Some(realm) = Realm::start(&[]) else { return };
    let sys = exports(&[("/", "data", "")]);
    let server = Serve::new().exports(&sys).kerberos(&realm.config()).start();
    let reload = |keytab: &std::path::Path| {
        let rules = exports(&[("/", "data", "sec=['krb5']")]).replace('@', server.home().to_str().unwrap());
        let text = format!("keytab='{}'\n{rules}", keytab.display());
        std::fs::write(server.home().join("forebay.toml"), text).unwrap();
        server.asker().try_ask(&["reload"])
    };
    let mut c = server.connect();
    let root = c.root();
    let refused = reload(std::path::Path::new("/nowhere/keytab"));
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && said.contains("/nowhere/keytab"), "{said}");
    assert_eq!(c.getattr(&root).status(), Nfsstat3::Ok);
    let done = reload(&realm.keytab("nfs/localhost"));
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    assert_eq!(c.getattr(&root).status(), Nfsstat3::Acces);
}

/// Returns the environment of a test in `inside`; none if the test was not started by the one that makes the server.
fn environment() -> Option<(PathBuf, std::net::SocketAddr)> {
    Some((std::env::var_os(DIR)?.into(), std::env::var(ADDRESS).ok()?.parse().unwrap()))
}

mod inside;
