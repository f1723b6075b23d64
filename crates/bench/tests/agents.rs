//! Tests of load from several agents, on loopback and in network namespaces.

#![allow(clippy::unwrap_used, reason = "a panic is the assertion, in helpers too")]

mod common;

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use common::{NullServer, PROGRAM};
use forebay_bench::result::Report;

/// A process whose first line of output is its address. It ends when this value is dropped.
struct Process {
    child: Child,
    line: String,
}

impl Process {
    fn start(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        Self { child, line: line.trim().to_owned() }
    }

    fn agent(token: &Path) -> Self {
        let mut command = Command::new(PROGRAM);
        command.args(["agent", "--listen", "127.0.0.1:0", "--token-file"]).arg(token);
        Self::start(command)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The test may have killed the process already, so errors are ignored.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn token(folder: &Path, text: &str) -> PathBuf {
    let path = folder.join(format!("token-{}", text.len()));
    std::fs::write(&path, text).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    path
}

fn run(url: &str, agents: &[&Process], token: &Path, arguments: &[&str]) -> Output {
    let addresses: Vec<&str> = agents.iter().map(|agent| agent.line.as_str()).collect();
    let mut command = Command::new(PROGRAM);
    command.args(["run", "--url", url, "--agents", &addresses.join(","), "--token-file"]).arg(token);
    command.args(arguments).output().unwrap()
}

fn report(output: &Output) -> Report {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn agents_share_the_clients_of_every_pattern() {
    let folder = tempfile::tempdir().unwrap();
    let token = token(folder.path(), "a secret of this test");
    let server = NullServer::start();
    let agents = [Process::agent(&token), Process::agent(&token), Process::agent(&token)];
    let agents: Vec<&Process> = agents.iter().collect();
    let patterns = ["seqwrite", "seqread", "randread", "meta", "getattr", "smallfile"];
    let options =
        ["-n", "7", "-d", "3", "--count", "50", "--items", "30", "--size", "2M", "--repeat", "2", "-o", "-"];
    let report = report(&run(&server.url, &agents, &token, &[&patterns[..], &options].concat()));
    let operations = |name: &str| {
        let phase = report.phases.iter().find(|phase| phase.name == name).unwrap();
        assert_eq!(phase.runs.len(), 2, "{name}");
        phase.runs[0].operations
    };
    let expected = [
        ("seqwrite", 350),
        ("seqread", 350),
        ("randread", 350),
        ("meta/create", 210),
        ("getattr", 350),
        ("smallfile", 350),
    ];
    for (name, count) in expected {
        assert_eq!(operations(name), count, "{name}");
    }
    let run = &report.phases.iter().find(|phase| phase.name == "randread").unwrap().runs[0];
    assert_eq!(run.series.iter().map(|second| second.operations).sum::<u64>(), 350);
    assert_eq!(run.procedures.iter().map(|one| one.count).sum::<u64>(), 350);
    assert!(run.latency.p50 > 0.0 && run.latency.p50 <= run.latency.max);
    assert_eq!(report.agents.len(), 3);
}

#[test]
fn hosts_without_clients_wait_for_the_others() {
    let folder = tempfile::tempdir().unwrap();
    let token = token(folder.path(), "a secret of this test");
    let server = NullServer::start();
    let agents = [Process::agent(&token), Process::agent(&token)];
    let agents: Vec<&Process> = agents.iter().collect();
    let options = ["randread", "meta", "--count", "50", "--items", "20", "--size", "1M", "-o", "-"];
    let report = report(&run(&server.url, &agents, &token, &options));
    assert_eq!(report.phases[0].runs[0].operations, 50);
}

#[test]
fn another_token_is_refused_on_both_sides_and_the_agent_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let good = token(folder.path(), "a secret of this test");
    let bad = token(folder.path(), "another secret of this test");
    let server = NullServer::start();
    let agent = Process::agent(&good);
    let options = ["randread", "--count", "50", "--size", "1M", "-o", "-"];
    let refused = run(&server.url, &[&agent], &bad, &options);
    let errors = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(1));
    assert!(errors.contains("does not have the same token") && errors.lines().count() == 1, "{errors}");

    // Connections that are not from a controller, or end in the middle of the greeting.
    for noise in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0; 200], b"FBAGENT\0\0\0\0\x01"] {
        let mut stream = TcpStream::connect(&agent.line).unwrap();
        // The agent may have closed the connection already, so errors are ignored.
        let _ = stream.write_all(noise);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let _ = stream.read_to_end(&mut Vec::new());
    }
    report(&run(&server.url, &[&agent], &good, &options));
}

#[test]
fn an_agent_that_dies_ends_the_run_for_all() {
    let folder = tempfile::tempdir().unwrap();
    let token = token(folder.path(), "a secret of this test");
    let server = NullServer::start();
    let (mut first, second) = (Process::agent(&token), Process::agent(&token));
    let mut command = Command::new(PROGRAM);
    let addresses = format!("{},{}", first.line, second.line);
    command.args(["run", "--url", &server.url, "--agents", &addresses, "--token-file"]).arg(&token);
    command.args(["randread", "-n", "2", "-t", "300", "--size", "1M"]).stderr(Stdio::piped());
    let mut controller = command.spawn().unwrap();
    common::wait_for_load(server.process.id());
    first.child.kill().unwrap();
    assert_eq!(controller.wait().unwrap().code(), Some(1));
    let mut errors = String::new();
    controller.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
    assert!(errors.contains(&format!("the agent {} is lost", first.line)), "{errors}");
    // The second agent is free again, although its part would have taken 300 seconds.
    let options = ["randread", "--count", "50", "--size", "1M", "-o", "-"];
    report(&run(&server.url, &[&second], &token, &options));
}

/// The token must not appear where other users of the host can see it, or in files that are kept.
#[test]
fn the_token_is_in_no_list_of_processes_no_log_and_no_result() {
    let folder = tempfile::tempdir().unwrap();
    let secret = "a secret that nobody may see";
    let token = token(folder.path(), secret);
    let server = NullServer::start();
    let mut command = Command::new(PROGRAM);
    command.args(["agent", "--once", "--listen", "127.0.0.1:0", "--token-file"]).arg(&token);
    let mut agent = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(agent.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    let process = |file: &str| std::fs::read(format!("/proc/{}/{file}", agent.id())).unwrap();
    let mut seen = vec![process("cmdline"), process("environ")];
    let mut command = Command::new(PROGRAM);
    command.args(["run", "--url", &server.url, "--agents", line.trim(), "--token-file"]).arg(&token);
    let output = command.args(["randread", "--count", "50", "--size", "1M", "-o", "-"]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    seen.extend([output.stdout, output.stderr, agent.wait_with_output().unwrap().stderr]);
    for text in seen {
        let text = String::from_utf8_lossy(&text);
        assert!(!text.contains(secret), "{text}");
    }
}

/// Two agents in a network namespace each, and a third namespace with the server and the controller.
struct Networks {
    names: [String; 3],
}

impl Networks {
    /// Returns the namespaces; `None` if this host does not permit them.
    fn new() -> Option<Self> {
        let names = ["s", "a", "b"].map(|name| format!("fbbench-{}-{name}", std::process::id()));
        let networks = Self { names };
        let made = networks.names.iter().all(|name| ip(&["netns", "add", name]));
        let [server, ..] = &networks.names;
        let linked = made
            && networks.names.iter().enumerate().all(|(number, name)| {
                let here = |address: &str| format!("10.77.{number}.{address}");
                if number == 0 {
                    return ip(&["-n", name, "link", "set", "lo", "up"]);
                }
                let (ours, theirs) = (format!("v{number}"), format!("w{number}"));
                ip(&[
                    "-n", server, "link", "add", &ours, "type", "veth", "peer", "name", &theirs, "netns",
                    name,
                ]) && ip(&["-n", server, "addr", "add", &here("1/24"), "dev", &ours])
                    && ip(&["-n", name, "addr", "add", &here("2/24"), "dev", &theirs])
                    && ip(&["-n", server, "link", "set", &ours, "up"])
                    && ip(&["-n", name, "link", "set", &theirs, "up"])
                    && ip(&["-n", name, "route", "add", "default", "via", &here("1")])
            });
        linked.then_some(networks)
    }

    fn command(&self, number: usize) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.names[number], PROGRAM]);
        command
    }
}

impl Drop for Networks {
    fn drop(&mut self) {
        for name in &self.names {
            ip(&["netns", "del", name]);
        }
    }
}

fn ip(arguments: &[&str]) -> bool {
    let output = Command::new("ip").args(arguments).output();
    output.is_ok_and(|output| output.status.success())
}

#[test]
fn agents_work_in_networks_of_their_own() {
    let Some(networks) = Networks::new() else {
        eprintln!("skipped: needs root and iproute2");
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let token = token(folder.path(), "a secret of this test");
    let mut command = networks.command(0);
    command.args(["null-server", "--listen", "10.77.1.1:0"]);
    let server = Process::start(command);
    let agents = [1, 2].map(|number| {
        let mut command = networks.command(number);
        command
            .args(["agent", "--once", "--listen", &format!("10.77.{number}.2:0"), "--token-file"])
            .arg(&token);
        Process::start(command)
    });
    let addresses = format!("{},{}", agents[0].line, agents[1].line);
    let mut command = networks.command(0);
    command.args(["run", "--url", &server.line, "--agents", &addresses, "--token-file"]).arg(&token);
    command.args([
        "randread", "meta", "-n", "8", "-d", "4", "--items", "20", "--count", "500", "--size", "1M", "-o",
        "-",
    ]);
    let report = report(&command.output().unwrap());
    assert_eq!(report.phases[0].runs[0].operations, 4000);
    assert_eq!(
        report.agents.iter().map(|agent| &agent.address).collect::<Vec<_>>(),
        [&agents[0].line, &agents[1].line]
    );
}
