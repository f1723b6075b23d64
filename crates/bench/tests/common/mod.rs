//! The program and its null server, for tests.

#![allow(dead_code, reason = "every test program uses a part of it")]

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Output, Stdio};

use forebay_bench::result::Report;

pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_forebay-bench");

/// Runs the program.
pub(crate) fn bench(arguments: &[&str]) -> Output {
    Command::new(PROGRAM).args(arguments).output().unwrap()
}

/// A running null server. It ends when this value is dropped.
pub(crate) struct NullServer {
    pub(crate) process: Child,
    pub(crate) url: String,
}

impl NullServer {
    pub(crate) fn start() -> Self {
        Self::start_with(&[])
    }

    pub(crate) fn start_with(arguments: &[&str]) -> Self {
        let mut command = Command::new(PROGRAM);
        let mut process = command.arg("null-server").args(arguments).stdout(Stdio::piped()).spawn().unwrap();
        let mut url = String::new();
        BufReader::new(process.stdout.as_mut().unwrap()).read_line(&mut url).unwrap();
        Self { process, url: url.trim().to_owned() }
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> Output {
        bench(&[&["run", "--url", &self.url], arguments].concat())
    }

    pub(crate) fn succeeds(&self, arguments: &[&str]) -> Output {
        let output = self.run(arguments);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {errors}");
        output
    }

    pub(crate) fn report(&self, arguments: &[&str]) -> Report {
        let output = self.succeeds(&[arguments, &["-o", "-"]].concat());
        serde_json::from_slice(&output.stdout).unwrap()
    }
}

impl Drop for NullServer {
    fn drop(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

/// Waits until the process has used 100 ms of CPU time. The run is then in progress.
pub(crate) fn wait_for_load(pid: u32) {
    let stat = format!("/proc/{pid}/stat");
    loop {
        let text = std::fs::read_to_string(&stat).unwrap();
        let fields: Vec<&str> = text.rsplit_once(')').unwrap().1.split_ascii_whitespace().collect();
        if fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap() >= 10 {
            return;
        }
        std::thread::yield_now();
    }
}
