//! Tests of the load generator with the real server: every pattern with verification, several agents, the report, and
//! the published tests at small size. No figure is judged.

// A panic in a test or its helpers is a failed assertion, so `unwrap` is allowed here.
#![allow(clippy::unwrap_used)]

mod common;

use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use clap::ValueEnum as _;
use common::{Serving, forebay, text};
use forebay_bench::options::Pattern;
use rustix::process::Signal;
use serde_json::Value;

/// Returns every pattern.
fn patterns() -> Vec<String> {
    Pattern::value_variants().iter().map(ToString::to_string).collect()
}

fn succeeds(arguments: &[&str]) -> Output {
    let output = forebay(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
    output
}

fn url(server: &Serving) -> String {
    format!("nfs://{}/", server.address())
}

fn phases(result: &Path) -> Vec<(String, u64)> {
    let report: Value = serde_json::from_slice(&std::fs::read(result).unwrap()).unwrap();
    let phases = report["phases"].as_array().unwrap();
    let one = |phase: &Value| {
        let operations = phase["runs"][0]["operations"].as_u64().unwrap();
        (phase["name"].as_str().unwrap().to_owned(), operations)
    };
    phases.iter().map(one).collect()
}

/// Returns the requests of a phase, with their numbers.
fn procedures(result: &Path, phase: &str) -> Vec<(String, u64)> {
    let report: Value = serde_json::from_slice(&std::fs::read(result).unwrap()).unwrap();
    let phases = report["phases"].as_array().unwrap();
    let phase = phases.iter().find(|found| found["name"] == phase).unwrap();
    let one = |called: &Value| {
        (called["procedure"].as_str().unwrap().to_owned(), called["count"].as_u64().unwrap())
    };
    phase["runs"][0]["procedures"].as_array().unwrap().iter().map(one).collect()
}

#[test]
fn every_pattern_runs_verified_and_is_reported() {
    runs_verified_and_is_reported("3", "NFSv3", &["LOOKUP", "ACCESS", "READ"]);
}

#[test]
fn every_pattern_runs_verified_over_nfs_4_1() {
    runs_verified_and_is_reported("4.1", "NFSv4.1", &["OPEN", "READ", "CLOSE"]);
}

/// `opening` has the requests of the phase open+read+close.
fn runs_verified_and_is_reported(vers: &str, version: &str, opening: &[&str]) {
    let server = Serving::start(&["--squash", "none"]);
    let folder = tempfile::tempdir().unwrap();
    let (result, page) = (folder.path().join("result.json"), folder.path().join("page.html"));
    let (result_name, page_name) = (result.to_str().unwrap(), page.to_str().unwrap());
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
        result_name,
    ];
    let patterns = patterns();
    let patterns: Vec<&str> = patterns.iter().map(String::as_str).collect();
    succeeds(&[&["bench", "run", "--url", &url(&server)], &patterns[..], &options].concat());
    let phases = phases(&result);
    // Checked names are not renamed, so the rename phase is missing.
    assert_eq!(phases.len(), patterns.len() - 1 + 8);
    assert!(phases.iter().all(|(_, operations)| *operations > 0), "{phases:?}");
    assert_eq!(std::fs::read_dir(server.data()).unwrap().count(), 0, "everything was removed");
    let mut called = procedures(&result, "meta/open+read+close");
    called.sort_unstable();
    let mut opening: Vec<_> = opening.iter().map(|name| ((*name).to_owned(), 400)).collect();
    opening.sort_unstable();
    assert_eq!(called, opening);

    succeeds(&["bench", "report", result_name, "-o", page_name]);
    let page = std::fs::read_to_string(page).unwrap();
    assert!(phases.iter().all(|(name, _)| page.contains(&format!(">{name}</h2>"))));
    let compared = text(&succeeds(&["bench", "compare", result_name, result_name]).stdout);
    assert!(phases.iter().all(|(name, _)| compared.contains(name.as_str())), "{compared}");
    assert!(compared.contains(&format!("A: {version}, B: {version}\n")), "{compared}");
    assert!(page.contains(version));
}

/// An agent on a port of its own. It ends when this value is dropped.
struct Agent {
    child: Child,
    address: String,
}

impl Agent {
    fn start(token: &Path) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
        command.args(["bench", "agent", "--listen", "127.0.0.1:0", "--token-file"]).arg(token);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut address = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut address).unwrap();
        Self { child, address: address.trim().to_owned() }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

#[test]
fn agents_share_files_and_directories() {
    let server = Serving::start(&["--squash", "none"]);
    let folder = tempfile::tempdir().unwrap();
    let (token, result) = (folder.path().join("token"), folder.path().join("result.json"));
    std::fs::write(&token, "a secret of this test").unwrap();
    std::fs::set_permissions(&token, std::fs::Permissions::from_mode(0o600)).unwrap();
    let agents = [Agent::start(&token), Agent::start(&token), Agent::start(&token)];
    let addresses = agents.iter().map(|agent| agent.address.as_str()).collect::<Vec<_>>().join(",");
    let url = url(&server);
    let run = |arguments: &[&str]| {
        let common = ["bench", "run", "--url", &url, "--agents", &addresses, "--token-file"];
        let end = ["-n", "8", "-d", "2", "-o", result.to_str().unwrap()];
        succeeds(&[&common[..], &[token.to_str().unwrap()], arguments, &end].concat());
        let phases = phases(&result);
        assert!(phases.iter().all(|(_, operations)| *operations > 0), "{phases:?}");
        assert_eq!(std::fs::read_dir(server.data()).unwrap().count(), 0, "everything was removed");
        phases
    };
    let patterns = patterns();
    let patterns: Vec<&str> = patterns.iter().map(String::as_str).collect();
    run(&[&patterns[..], &["--verify", "-t", "0.3", "--size", "1M", "--record", "64K", "--items", "20"]]
        .concat());
    for layout in ["segmented", "strided"] {
        let shared =
            ["seqwrite", "seqread", "randread", "--record", "64K", "--size", "1M", "--shared", layout];
        assert_eq!(run(&shared)[0], ("seqwrite".to_owned(), 8 * 16));
    }
    let phases = run(&["meta", "--shared-dirs", "--items", "30", "--items-per-dir", "10"]);
    assert_eq!(phases[0], ("meta/mkdir".to_owned(), 30));
    assert_eq!(phases[1], ("meta/create".to_owned(), 240));
}

/// Starts a load that leaves a state file, and does not wait for its end.
fn load(server: &Serving, state: &str, options: &[&str]) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
    command.args(["bench", "run", "--url", &url(server), "-n", "3", "-d", "4", "--size", "1M"]);
    command.args(options).args(["--state", state]).stderr(Stdio::piped()).spawn().unwrap()
}

fn verify(server: &Serving, state: &str) -> Output {
    forebay(&["bench", "verify", "--url", &url(server), "--state", state])
}

/// Runs a load on a write-back cache and kills the server during it with SIGKILL. All promised data and names must be
/// there.
#[test]
fn what_was_promised_is_there_after_a_crash() {
    for (options, procedure) in [
        (&["randwrite", "--zipf", "1.1"][..], "WRITE"),
        (&["randwrite", "--stable", "unstable", "--commit-every", "20"], "COMMIT"),
        (&["mixed", "--shared", "strided"], "WRITE"),
        (&["seqwrite", "--shared", "segmented", "--record", "64K"], "WRITE"),
        (&["smallfile"], "COMMIT"),
        (&["meta", "--items", "2000", "--item-size", "4096", "--stable", "file-sync"], "CREATE"),
        (&["meta", "--items", "60", "--shared-dirs"], "REMOVE"),
    ] {
        let server = Serving::start(&["--squash", "none", "--mode", "write-back", "--cache-size", "256M"]);
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path().join("state");
        let state = state.to_str().unwrap();
        let mut load = load(&server, state, &[options, &["-t", "300"]].concat());
        loop {
            let ended = load.try_wait().unwrap();
            if server.calls(procedure) >= 50 {
                break;
            }
            assert_eq!(ended, None, "{options:?} ended before it began");
        }
        let server = server.restart(Signal::KILL);
        // The REMOVE load may have ended before the kill.
        assert!(load.wait().unwrap().code() == Some(1) || procedure == "REMOVE", "{options:?}");
        let verified = verify(&server, state);
        let said = text(&verified.stderr);
        assert!(
            verified.status.success() && said.contains("no acknowledged data is lost"),
            "{options:?}: {said}"
        );
    }
}

#[test]
fn a_small_file_that_is_lost_or_back_is_found() {
    let mut server = Serving::start(&["--squash", "none"]);
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("state");
    let state = state.to_str().unwrap();
    let ran = load(&server, state, &["smallfile", "meta", "--count", "20", "--items", "20"]).wait().unwrap();
    assert!(ran.success() && verify(&server, state).status.success());
    let base = server.data().join("forebay-bench");
    let file = base.join("tree-1/client-1/s1-7");
    let content = std::fs::read(&file).unwrap();
    let gone = base.join("tree-2/client-0/d0-3");
    let changes: [(&dyn Fn(), &str); 4] = [
        (&|| std::fs::write(&file, &content[..100]).unwrap(), "s1-7 has lost its content"),
        (&|| std::fs::write(&file, vec![1; content.len()]).unwrap(), "s1-7 is wrong"),
        (&|| std::fs::remove_file(&file).unwrap(), "s1-7 is lost"),
        (&|| std::fs::create_dir(&gone).unwrap(), "d0-3 is back"),
    ];
    for (change, what) in changes {
        change();
        server = server.restart(Signal::TERM);
        let said = text(&verify(&server, state).stderr);
        assert!(said.contains(what), "{what}: {said}");
        std::fs::write(&file, &content).unwrap();
    }
}

#[test]
fn a_phase_may_begin_with_an_empty_page_cache() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: dropping caches needs root");
        return;
    }
    let server = Serving::start(&["--squash", "none"]);
    let folder = tempfile::tempdir().unwrap();
    let result = folder.path().join("result.json");
    let (url, result) = (url(&server), result.to_str().unwrap());
    succeeds(&["bench", "run", "--url", &url, "seqread", "--size", "1M", "--drop-caches", "-o", result]);
    let report: Value = serde_json::from_slice(&std::fs::read(result).unwrap()).unwrap();
    assert_eq!(report["caches_dropped"], true, "{report}");
}

#[test]
fn the_published_tests_run_in_small_and_go_on_where_they_were() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (page, tables, work, array) = (path("page.html"), path("tables.md"), path("work"), path("array"));
    std::fs::create_dir(&array).unwrap();
    let small = ["--quick", "--systems", "pass-through,write-back", "--clients", "1,2", "--seconds", "0.2"];
    // To drop the caches of the host would disturb everything beside this test.
    let small = [&small[..], &["--keep-page-cache"]].concat();
    let places = ["--data", "4M", "--array", &array, "--dir", &work, "-o", &page, "-o", &tables];
    let paper = [&["bench", "paper"], &small[..], &places].concat();
    let hurried = forebay(&[&paper[..], &["--minutes", "0.00001"]].concat());
    assert!(
        text(&hurried.stderr).contains("the time given with --minutes was too short"),
        "{}",
        text(&hurried.stderr)
    );

    let again = forebay(&paper);
    assert_eq!(again.status.code(), Some(1));
    assert!(text(&again.stderr).contains("--resume"), "{}", text(&again.stderr));
    let lock = std::fs::File::open(Path::new(&work).join("lock")).unwrap();
    lock.lock().unwrap();
    let resumed = [&paper[..], &["--resume"]].concat();
    let beside = forebay(&resumed);
    assert!(text(&beside.stderr).contains("another run"), "{}", text(&beside.stderr));
    drop(lock);

    succeeds(&resumed);
    let (text_of_page, tables) =
        (std::fs::read_to_string(&page).unwrap(), std::fs::read_to_string(&tables).unwrap());
    let parts = [
        "Where we win, where we lose",
        "Figure 5: sequential write",
        "Figure 13",
        "Sync against async",
        "Beside a parallel file system",
        "The load generator itself",
        "Method, machine, versions",
        "durable on both",
    ];
    for part in parts {
        assert!(text_of_page.contains(part) && tables.contains(part), "{part}");
    }
    assert!(!tables.contains("What is missing") && !tables.contains("NaN"), "{tables}");
    assert!(tables.contains("The page cache was not dropped"), "{tables}");
    let cells = || {
        let entries = std::fs::read_dir(Path::new(&work).join("cells")).unwrap().flatten();
        let mut cells: Vec<_> =
            entries.map(|entry| (entry.path(), entry.metadata().unwrap().modified().unwrap())).collect();
        cells.sort();
        cells
    };
    let before = cells();
    assert_eq!(before.len(), 2 * (4 * 2 + 4));
    assert_eq!(std::fs::read_dir(&array).unwrap().count(), 0, "everything was removed");

    std::fs::remove_file(&before[0].0).unwrap();
    succeeds(&resumed);
    let after = cells();
    assert_eq!(after[1..], before[1..], "what was there is not measured again");
    assert!(after[0].0 == before[0].0 && after[0].1 > before[0].1);
    // All measurements exist, so the storage is not needed any more.
    std::fs::remove_dir(&array).unwrap();
    succeeds(&resumed);
}

#[test]
fn a_recommendation_is_made_from_measurements_and_from_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (disks, ssd, figures) = (path("disks"), path("ssd"), path("figures.json"));
    for dir in [&disks, &ssd] {
        std::fs::create_dir(dir).unwrap();
    }
    std::fs::write(Path::new(&disks).join("data"), vec![1; 1 << 20]).unwrap();
    let measure = ["bench", "recommend", &disks, "--cache", &ssd, "--seconds", "0.1", "--save", &figures];
    let said = text(&succeeds(&measure).stdout);
    assert!(said.contains("random reads/s where 90 % hit") && said.contains("Buy 2 devices"), "{said}");
    assert_eq!(std::fs::read_dir(&ssd).unwrap().count(), 0, "the file is gone");
    let read = ["bench", "recommend", "--figures", &figures, "--working-set", "1T", "--json"];
    let said: Value = serde_json::from_slice(&succeeds(&read).stdout).unwrap();
    assert_eq!(said["advice"]["working_set"], 1u64 << 40);
    assert_eq!(said["advice"]["buy_gb"], 960);
}
