//! Tests with nfs-ganesha, which keeps content, so that content is checked. They need root and Debian's packages
//! nfs-ganesha-vfs and rpcbind. Without these they print a message and pass.

#![allow(clippy::unwrap_used, reason = "a panic is the assertion, in helpers too")]

use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::{Command, Output};

use clap::ValueEnum as _;
use forebay_bench::options::Pattern;
use forebay_bench::result::Report;

fn available() -> bool {
    let installed = ["/usr/bin/ganesha.nfsd", "/sbin/rpcbind"].iter().all(|path| Path::new(path).exists());
    let available = installed && rustix::process::geteuid().is_root();
    if !available {
        eprintln!("skipped: needs root and the packages nfs-ganesha-vfs and rpcbind");
    }
    available
}

fn bench(verb: &str, dir: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_forebay-bench"));
    command.arg(verb).arg("--ganesha").arg(dir).args(arguments).output().unwrap()
}

fn succeeds(verb: &str, dir: &Path, arguments: &[&str]) -> Output {
    let output = bench(verb, dir, arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    output
}

#[test]
fn all_patterns_run_verified_and_clean_up() {
    if !available() {
        return;
    }
    for vers in ["3", "4.1"] {
        all_patterns_run(vers);
    }
}

fn all_patterns_run(vers: &str) {
    let dir = tempfile::tempdir().unwrap();
    let patterns: Vec<String> = Pattern::value_variants().iter().map(ToString::to_string).collect();
    let patterns: Vec<&str> = patterns.iter().map(String::as_str).collect();
    let options = [
        "--vers",
        vers,
        "--verify",
        "-n",
        "4",
        "-d",
        "4",
        "-t",
        "0.3",
        "--size",
        "2M",
        "--record",
        "64K",
        "--items",
        "100",
        "--items-per-dir",
        "40",
        "--item-size",
        "5000",
        "-o",
        "-",
    ];
    let output = succeeds("run", dir.path(), &[&patterns[..], &options].concat());
    let report: Report = serde_json::from_slice(&output.stdout).unwrap();
    // Checked names are not renamed, so the rename phase is missing.
    assert_eq!(report.phases.len(), patterns.len() - 1 + 8);
    assert!(report.phases.iter().all(|phase| phase.runs[0].operations > 0));
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "everything was removed");
}

#[test]
fn small_files_are_changed_and_renamed_and_all_removed() {
    if !available() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let output = succeeds("run", dir.path(), &["meta", "-n", "2", "-d", "3", "--items", "50", "-o", "-"]);
    let report: Report = serde_json::from_slice(&output.stdout).unwrap();
    let phases: Vec<_> = report.phases.iter().map(|phase| phase.name.trim_start_matches("meta/")).collect();
    assert_eq!(phases, ["mkdir", "create", "stat", "setattr", "rename", "remove", "rmdir"]);
    assert!(report.phases.iter().all(|phase| phase.runs[0].operations == 100));
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "everything was removed");
}

#[test]
fn leftovers_of_a_run_that_failed_are_removed() {
    if !available() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let leftover = dir.path().join("forebay-bench/tree-1/client-0/d0-0");
    std::fs::create_dir_all(&leftover).unwrap();
    for number in 0..50 {
        std::fs::write(leftover.join(format!("f0-{number}")), "old").unwrap();
    }
    succeeds("run", dir.path(), &["meta", "lookup", "--items", "60", "-t", "0.2"]);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn shared_files_and_unstable_writes_are_verified() {
    if !available() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    for layout in ["segmented", "strided"] {
        let options = [
            "seqwrite",
            "seqread",
            "mixed",
            "randread",
            "--verify",
            "-n",
            "4",
            "-d",
            "4",
            "-t",
            "0.3",
            "--size",
            "1M",
            "--record",
            "4K",
            "--stable",
            "unstable",
            "--zipf",
            "1.2",
            "--threads",
            "2",
            "--shared",
            layout,
        ];
        succeeds("run", dir.path(), &options);
    }
}

#[test]
fn verify_finds_what_was_changed_behind_the_back() {
    if !available() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("state");
    let state = state.to_str().unwrap();
    let data = dir.path().join("export");
    std::fs::create_dir(&data).unwrap();
    succeeds(
        "run",
        &data,
        &["randwrite", "-n", "2", "-d", "4", "-t", "0.3", "--size", "1M", "--state", state],
    );
    succeeds("verify", &data, &["--state", state]);
    let file = std::fs::OpenOptions::new().write(true).open(data.join("forebay-bench/data0-1")).unwrap();
    file.write_at(b"x", 8192 + 1000).unwrap();
    let output = bench("verify", &data, &["--state", state]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    assert!(errors.contains("data0-1 at offset 8192") && errors.contains("torn or corrupt"), "{errors}");
    file.set_len(4096).unwrap();
    let output = bench("verify", &data, &["--state", state]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("went back to generation 0"));
}
