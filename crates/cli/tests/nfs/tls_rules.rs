//! Rules for certificates, and the files of TLS: at a start and in service.

use std::path::Path;

use sha2::{Digest, Sha256};

use crate::authority::{Pair, set_mode};
use crate::harness::*;
use crate::tls::Certified;

fn rule(clients: &str, squash: &str) -> String {
    format!("[[export.client]]\nnetworks = [{clients}]\n{squash}\n")
}

/// Serves one directory with these rules.
fn serve(certified: &Certified, rules: &str) -> Server {
    let text = format!("{}[[export]]\npath = \"@/data\"\nname = \"/\"\n{rules}", certified.table());
    Serve::new().exports(&text).start()
}

/// Returns the owner of a file that the client makes as root.
fn owner(c: &mut Client, name: &[u8]) -> u32 {
    let root = c.root();
    let file = c.new_file(&root, name, 0o644);
    c.attr(&file).uid
}

fn fingerprint(pair: &Pair) -> String {
    Sha256::digest(&pair.der).iter().map(|byte| format!("{byte:02X}")).collect::<Vec<_>>().join(":")
}

#[test]
fn names_and_fingerprints_decide_like_addresses() {
    needs_root!();
    let certified = Certified::new();
    let issue = |file, names: &[&str]| certified.authority.issue(file, names);
    let (admin, twin) = (issue("admin", &["admin.example"]), issue("twin", &["admin.example"]));
    let (pinned, other) = (issue("pinned", &["pinned.example"]), issue("other", &["other.example"]));
    let rules = [
        rule(&format!("\"tls:sha256:{}\"", fingerprint(&pinned)), "squash = \"all\"\nanonuid = 3001"),
        rule("\"tls:admin.example\", \"192.0.2.0/24\"", "squash = \"none\""),
        rule("\"tls:*\"", "anonuid = 3002"),
        rule("\"127.0.0.0/8\"", "anonuid = 3003"),
    ];
    let server = serve(&certified, &rules.concat());
    let connect = |identity| certified.connect(&server, identity);
    assert_eq!(owner(&mut connect(Some(&admin)), b"a"), 0);
    assert_eq!(owner(&mut connect(Some(&twin)), b"b"), 0, "the name counts, not the certificate");
    assert_eq!(owner(&mut connect(Some(&pinned)), b"c"), 3001);
    assert_eq!(owner(&mut connect(Some(&other)), b"d"), 3002);
    assert_eq!(owner(&mut connect(None), b"e"), 3003, "no certificate: the address counts");
    assert_eq!(owner(&mut server.connect(), b"f"), 3003);
    // The rule of a plain connection does not outlast the handshake.
    let mut c = server.connect();
    assert_eq!(owner(&mut c, b"g"), 3003);
    assert_eq!(owner(&mut c.with_tls(certified.authority.client(Some(&admin))), b"h"), 0);
}

#[test]
fn without_an_address_in_a_rule_the_certificate_lets_a_client_in() {
    let certified = Certified::new();
    let known = certified.authority.issue("known", &["known.example"]);
    let other = certified.authority.issue("other", &["other.example"]);
    let server = serve(&certified, &rule("\"tls:known.example\"", "squash = \"none\""));
    let mut c = certified.connect(&server, Some(&known));
    let root = c.root();
    assert_eq!(c.getattr(&root).status(), Nfsstat3::Ok);
    for mut c in
        [certified.connect(&server, Some(&other)), certified.connect(&server, None), server.connect()]
    {
        assert_eq!(c.getattr(&root).status(), Nfsstat3::Acces);
        assert_eq!(c.mnt(b"/").unwrap_err(), mount3::Mountstat3::Acces);
    }
}

fn copy(from: &Path, to: &Path) {
    std::fs::copy(from, to).unwrap();
}

#[test]
fn certificates_are_replaced_in_service() {
    let mut certified = Certified::new();
    let server = certified.serve("");
    let mut old = certified.connect(&server, None);
    let root = old.root();
    let reload =
        || -> serde_json::Value { serde_json::from_str(&server.ask(&["reload", "--json"])).unwrap() };
    assert_eq!(reload()["changed"].as_array().unwrap().len(), 0, "the files are the same");

    // Files with mistakes change nothing.
    let next = certified.authority.issue("next", &["server.example"]);
    copy(&next.key, &certified.server.key);
    let refused = server.try_ask(&["reload"]);
    assert_eq!(refused.status.code(), Some(2));
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(said.contains("cannot be used with the key"), "{said}");
    let mut c = certified.connect(&server, None);
    assert_eq!(c.getattr(&root).status(), Nfsstat3::Ok, "the old certificate is in force");
    assert_eq!(c.server_certificate(), certified.server.der);

    copy(&next.certificate, &certified.server.certificate);
    assert!(reload()["changed"][0].as_str().unwrap().contains("certificate"));
    let mut c = certified.connect(&server, None);
    assert_eq!(c.getattr(&root).status(), Nfsstat3::Ok);
    assert_eq!(c.server_certificate(), next.der);
    assert_eq!(old.getattr(&root).status(), Nfsstat3::Ok, "connections keep their session");

    // Without the table the server has no TLS, and with it again it has.
    let config = server.home().join("forebay.toml");
    let text = std::fs::read_to_string(&config).unwrap();
    let at = text.find("[[export]]").unwrap();
    std::fs::write(&config, &text[at..]).unwrap();
    reload();
    assert_eq!(server.connect().ask_for_tls(), b"");
    assert_eq!(old.getattr(&root).status(), Nfsstat3::Ok);
    std::fs::write(&config, text.replace("[[export]]", "[[export]]\ntls = \"required\"")).unwrap();
    let changed = reload()["changed"].clone();
    let has = |words: &[&str]| {
        let mut lines = changed.as_array().unwrap().iter().map(|line| line.as_str().unwrap());
        lines.any(|line| words.iter().all(|word| line.contains(word)))
    };
    assert!(has(&["[tls] certificate: none -> "]) && has(&["[tls] key: none -> "]), "{changed}");
    assert!(has(&["[[export]]", "tls: ", "-> \"required\""]), "{changed}");
    assert_eq!(server.connect().getattr(&root).status(), Nfsstat3::Acces);
    certified.server = next;
    assert_eq!(certified.connect(&server, None).getattr(&root).status(), Nfsstat3::Ok);
}

#[test]
fn a_key_for_everybody_is_refused_at_a_start() {
    let certified = Certified::new();
    set_mode(&certified.server.key, 0o644);
    let [cert, key] =
        [&certified.server.certificate, &certified.server.key].map(|path| path.to_str().unwrap());
    let server = Serve::new().flags(&["--tls-cert", cert, "--tls-key", key, "--tls", "required"]).prepared();
    let said = server.refusal();
    assert!(said.contains("accessible to every user") && said.contains("chmod o="), "{said}");
    assert!(!said.contains("PRIVATE KEY"), "{said}");
    set_mode(&certified.server.key, 0o640);
    let mut server = server;
    server.start();
    let mut c = certified.connect(&server, None);
    let root = c.root();
    assert_eq!(c.getattr(&root).status(), Nfsstat3::Ok);
    assert_eq!(server.connect().getattr(&root).status(), Nfsstat3::Acces);
}
