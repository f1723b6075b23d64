//! Tests of the program with its own null server, over real sockets.

#![allow(clippy::unwrap_used, reason = "a panic is the assertion, in helpers too")]

mod common;

use std::process::{Command, Stdio};

use common::{NullServer, PROGRAM};
use forebay_bench::result::Report;

#[test]
fn every_data_pattern_runs_to_its_count() {
    let server = NullServer::start();
    for pattern in ["randread", "randwrite", "mixed"] {
        for layout in [&["--files", "2"][..], &["--shared", "segmented"], &["--shared", "strided"]] {
            let arguments =
                [&[pattern, "-n", "3", "-d", "4", "--count", "500", "--size", "1M"], layout].concat();
            let report = server.report(&arguments);
            let run = &report.phases[0].runs[0];
            assert_eq!((run.operations, run.bytes), (1500, 1500 * 4096), "{arguments:?}");
            assert_eq!(run.series.iter().map(|second| second.operations).sum::<u64>(), 1500);
            assert!(
                run.latency.p50 > 0.0
                    && run.latency.p50 <= run.latency.p99
                    && run.latency.p99 <= run.latency.max
            );
        }
    }
}

#[test]
fn sequential_patterns_pass_once_and_commit() {
    let server = NullServer::start();
    let report =
        server.report(&["seqwrite", "seqread", "-n", "2", "-d", "3", "--size", "8M", "--files", "2"]);
    for (phase, procedures) in
        report.phases.iter().zip([vec![("WRITE", 16), ("COMMIT", 4)], vec![("READ", 16)]])
    {
        let run = &phase.runs[0];
        assert_eq!((run.operations, run.bytes), (16, 16 << 20), "{}", phase.name);
        let counts: Vec<_> = run.procedures.iter().map(|one| (one.procedure.as_str(), one.count)).collect();
        assert_eq!(counts, procedures);
    }
}

#[test]
fn unstable_random_writes_are_committed_now_and_then() {
    let server = NullServer::start();
    let report = server.report(&[
        "randwrite",
        "--stable",
        "unstable",
        "--commit-every",
        "10",
        "--count",
        "100",
        "--size",
        "1M",
    ]);
    let commits = report.phases[0].runs[0].procedures.iter().find(|one| one.procedure == "COMMIT").unwrap();
    assert_eq!(commits.count, 10);
}

#[test]
fn metadata_patterns_run() {
    let server = NullServer::start();
    let items = ["--items", "50", "--items-per-dir", "20", "-n", "3", "-d", "4"];
    let report = server.report(&[&["meta"][..], &items].concat());
    let counts: Vec<_> =
        report.phases.iter().map(|phase| (phase.name.as_str(), phase.runs[0].operations)).collect();
    let expected = [
        ("meta/mkdir", 150),
        ("meta/create", 150),
        ("meta/stat", 150),
        ("meta/setattr", 150),
        ("meta/rename", 150),
        ("meta/remove", 150),
        ("meta/rmdir", 150),
    ];
    assert_eq!(counts, expected);
    for pattern in ["getattr", "lookup", "access", "smallfile"] {
        let report = server.report(&[&[pattern, "--count", "200"][..], &items].concat());
        assert_eq!(report.phases[0].runs[0].operations, 600, "{pattern}");
    }
}

#[test]
fn what_the_server_puts_off_is_sent_again() {
    let server = NullServer::start_with(&["--put-off", "7"]);
    let items = ["-n", "2", "-d", "3", "--items", "50", "--size", "1M", "--count", "100"];
    for pattern in ["randread", "randwrite", "getattr", "lookup", "smallfile", "meta"] {
        let report = server.report(&[&[pattern][..], &items].concat());
        let run = &report.phases.iter().max_by_key(|phase| phase.runs[0].put_off).unwrap().runs[0];
        assert!(run.put_off > 0 && run.operations >= 100, "{pattern}: {} {}", run.put_off, run.operations);
    }
}

#[test]
fn an_open_loop_keeps_to_its_rate() {
    let server = NullServer::start();
    let report = server.report(&["randread", "--rate", "500", "-t", "1", "-n", "2", "--size", "1M"]);
    let operations = report.phases[0].runs[0].operations;
    // The rate is never above the one given. How far it is below depends on the machine.
    assert!((1..=501).contains(&operations), "{operations}");
}

#[test]
fn threads_share_the_clients() {
    let server = NullServer::start();
    let report = server.report(&["randread", "--threads", "3", "-n", "7", "--count", "300", "--size", "1M"]);
    assert_eq!(report.phases[0].runs[0].operations, 2100);
}

#[test]
fn a_job_file_mixes_groups_and_two_results_are_compared() {
    let server = NullServer::start();
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let job = r#"{"steps": [{"name": "mix", "seconds": 0.3, "groups": [
        {"pattern": "randread", "options": {"clients": 2, "depth": 4, "size": "1M"}},
        {"pattern": "randwrite", "options": {"size": "1M", "zipf": 1.1}}]}]}"#;
    std::fs::write(path("job.json"), job).unwrap();
    for name in ["a.json", "b.json"] {
        let output = server.run(&["--job", &path("job.json"), "--repeat", "2", "-o", &path(name)]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert!(output.stdout.is_empty());
    }
    let report: Report = serde_json::from_slice(&std::fs::read(path("a.json")).unwrap()).unwrap();
    assert_eq!((report.phases[0].name.as_str(), report.phases[0].runs.len()), ("mix", 2));
    let output = Command::new(PROGRAM).args(["compare", &path("a.json"), &path("b.json")]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("mix") && text.contains("2:2"), "{text}");
}

#[test]
fn a_server_that_keeps_nothing_fails_verification() {
    let server = NullServer::start();
    let output = server.run(&["randread", "--verify", "--count", "10", "--size", "1M"]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    assert!(errors.contains("went back to generation 0"), "{errors}");
}

#[test]
fn a_server_that_dies_ends_the_run_with_one_sentence_and_the_state() {
    let mut server = NullServer::start();
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("state");
    let mut run = Command::new(PROGRAM)
        .args(["run", "--url", &server.url, "randwrite", "-t", "60", "--size", "1M", "--state"])
        .arg(&state)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    common::wait_for_load(server.process.id());
    server.process.kill().unwrap();
    assert_eq!(run.wait().unwrap().code(), Some(1));
    let errors = std::io::read_to_string(run.stderr.take().unwrap()).unwrap();
    assert!(
        errors.contains("the connection to the server is lost") && errors.lines().count() == 1,
        "{errors}"
    );
    assert!(std::fs::metadata(&state).unwrap().len() > 8 * 256, "the state covers every unit");
}

#[test]
fn mistakes_are_explained() {
    let server = NullServer::start();
    for (arguments, reason) in [
        (&["randread", "--record", "5000"][..], "--record 5000"),
        (&["seqread", "--size", "5K"], "--size 5K"),
        (&["randread", "-n", "0"], "--clients"),
        (&["--job", "/nonexistent"], "cannot be read"),
    ] {
        let output = server.run(arguments);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1));
        assert!(errors.contains(reason) && errors.lines().count() == 1, "{arguments:?}: {errors}");
    }
    let output = server.run(&["sideread"]);
    assert_eq!(output.status.code(), Some(2));
    let output =
        Command::new(PROGRAM).args(["run", "--url", "nfs://127.0.0.1:1/", "randread"]).output().unwrap();
    assert!(String::from_utf8_lossy(&output.stderr).contains("cannot connect"));
}
