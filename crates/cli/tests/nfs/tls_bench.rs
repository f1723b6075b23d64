//! `forebay bench` over TLS.

use std::process::Command;

use serde_json::Value;

use crate::authority::Authority;
use crate::harness::*;
use crate::tls::Certified;

/// Runs a load whose data is checked, with these options of the URL. Returns the names of its phases, or the error.
fn load(server: &Server, vers: &str, options: &str) -> Result<Vec<String>, String> {
    let url = format!("nfs://{}/{options}", server.address());
    let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
    command
        .args(["bench", "run", "--url", &url, "--vers", vers, "--verify", "-n", "2", "-d", "4", "-o", "-"]);
    // Three records of 1 MiB each, so that requests and replies have many TLS records.
    let output = command.args(["-s", "3M", "seqwrite", "seqread"]).output().unwrap();
    match output.status.success() {
        true => {
            let report: Value = serde_json::from_slice(&output.stdout).unwrap();
            let phases = report["phases"].as_array().unwrap();
            Ok(phases.iter().map(|phase| phase["name"].as_str().unwrap().to_owned()).collect())
        }
        false => Err(String::from_utf8(output.stderr).unwrap()),
    }
}

#[test]
fn the_load_generator_secures_its_connections() {
    let certified = Certified::with(&["127.0.0.1"]);
    let server = certified.serve("tls = \"mutual\"");
    let client = certified.authority.issue("client", &["client.example"]);
    let trust = format!("?tls={}", certified.authority.file().display());
    let known = format!("{trust}&cert={}&key={}", client.certificate.display(), client.key.display());
    for vers in ["3", "4.1"] {
        assert_eq!(load(&server, vers, &known).unwrap(), ["seqwrite", "seqread"]);
        // Without a certificate, and in plain connections, the export is not there.
        assert_ne!(load(&server, vers, &trust).unwrap_err(), "");
        assert_ne!(load(&server, vers, "").unwrap_err(), "");
        let foreign = Authority::new();
        let foreign = format!("?tls={}", foreign.file().display());
        let error = load(&server, vers, &foreign).unwrap_err();
        assert!(error.contains("certificate"), "{error}");
    }
}

#[test]
fn a_server_without_a_certificate_offers_no_tls() {
    let server = Serve::new().start();
    let authority = Authority::new();
    let trust = format!("?tls={}", authority.file().display());
    let error = load(&server, "4.1", &trust).unwrap_err();
    assert!(error.contains("offers no TLS"), "{error}");
    let error = load(&server, "4.1", "?tls=/dev/null").unwrap_err();
    assert!(error.contains("/dev/null has no certificates"), "{error}");
}
