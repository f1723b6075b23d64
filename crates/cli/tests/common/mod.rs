//! Running the real binary.

// In tests a panic is the assertion, in their helpers too. Each test binary uses a part of this.
#![allow(clippy::unwrap_used, dead_code, unreachable_pub)]

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, ExitStatus, Output, Stdio};

use rustix::process::{Pid, Signal, geteuid, kill_process};
use tempfile::TempDir;

/// Runs the binary with these arguments.
pub fn forebay(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_forebay")).args(args).output().unwrap()
}

/// Output as text.
pub fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// A running server; killed when dropped.
pub struct Running {
    child: Child,
    stderr: BufReader<ChildStderr>,
    /// What it said up to where it keeps its state.
    pub announced: String,
}

impl Running {
    /// Starts a `serve` command and waits until it accepts clients.
    pub fn start(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        let mut announced = String::new();
        while !announced.contains("State is kept in") {
            assert_ne!(stderr.read_line(&mut announced).unwrap(), 0, "it ended: {announced}");
        }
        Self { child, stderr, announced }
    }

    /// Sends a signal, waits for the end, and returns how it ended and what else it said.
    pub fn end(mut self, signal: Signal) -> (ExitStatus, String) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
        let mut rest = String::new();
        while self.stderr.read_line(&mut rest).unwrap() > 0 {}
        (self.child.wait().unwrap(), rest)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A running server on a free port of the loopback address, with its directories.
pub struct Serving {
    pub running: Running,
    dir: TempDir,
    flags: Vec<String>,
}

impl Serving {
    /// Starts `serve data` with further flags, without a cache unless they name a mode, and waits until it accepts clients.
    pub fn start(flags: &[&str]) -> Self {
        let flags: Vec<String> = flags.iter().map(|flag| (*flag).to_owned()).collect();
        let dir = TempDir::new().unwrap();
        Self { running: Running::start(&mut Self::command(&dir, &flags)), dir, flags }
    }

    fn command(dir: &TempDir, flags: &[String]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
        command.arg("serve").arg(dir.path().join("data")).args(["--sandbox", "strict"]).args(flags);
        if !flags.iter().any(|flag| flag == "--mode") {
            command.args(["--mode", "pass-through"]);
        }
        command.args(["--listen", "127.0.0.1:0", "--state-dir"]).arg(dir.path().join("state"));
        command
    }

    /// Ends it with a signal and starts it again on the same directories, with the same flags.
    pub fn restart(self, signal: Signal) -> Self {
        let Self { running, dir, flags } = self;
        running.end(signal);
        Self { running: Running::start(&mut Self::command(&dir, &flags)), dir, flags }
    }

    pub fn data(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    pub fn state(&self) -> PathBuf {
        self.dir.path().join("state")
    }

    /// `ADDR:PORT` it listens on.
    pub fn address(&self) -> &str {
        self.running.announced.lines().find_map(|line| line.strip_prefix("Listening on ")).unwrap()
    }

    /// How many replies to a procedure clients have had.
    pub fn calls(&self, procedure: &str) -> u64 {
        let status: serde_json::Value =
            serde_json::from_slice(&self.ask(&["status", "--json"]).stdout).unwrap();
        let one = status["procedures"].as_array().unwrap().iter().find(|one| one["name"] == procedure);
        one.map_or(0, |one| one["count"].as_u64().unwrap())
    }

    /// Asks it with a verb.
    pub fn ask(&self, args: &[&str]) -> Output {
        forebay(&[args, &["--state-dir", self.state().to_str().unwrap()]].concat())
    }
}

/// A user without privileges, with a home of its own: this one, or `nobody` where this one is root.
pub struct Unprivileged {
    home: TempDir,
    binary: PathBuf,
}

impl Unprivileged {
    const NOBODY: u32 = 65_534;

    pub fn new() -> Self {
        let home = TempDir::new().unwrap();
        let built = PathBuf::from(env!("CARGO_BIN_EXE_forebay"));
        if !geteuid().is_root() {
            return Self { home, binary: built };
        }
        // What was built may lie where that user may not look. Copied by another process: a child forked by another
        // test at this moment would hold the copy open for writing, and starting it would fail (ETXTBSY).
        let binary = home.path().join("forebay");
        assert!(Command::new("cp").args([&built, &binary]).status().unwrap().success());
        std::os::unix::fs::chown(home.path(), Some(Self::NOBODY), Some(Self::NOBODY)).unwrap();
        Self { home, binary }
    }

    /// The user's id.
    pub fn uid(&self) -> u32 {
        let own = geteuid();
        if own.is_root() { Self::NOBODY } else { own.as_raw() }
    }

    /// A command of that user.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.binary);
        command
            .args(args)
            .current_dir(self.home.path())
            .env("XDG_STATE_HOME", self.home.path().join("state"));
        if geteuid().is_root() {
            command.uid(Self::NOBODY).gid(Self::NOBODY);
        }
        command
    }

    /// Serves a directory of its home.
    pub fn serve(&self, name: &str) -> Running {
        Running::start(&mut self.command(&[
            "serve",
            name,
            "--listen",
            "127.0.0.1:0",
            "--mode",
            "pass-through",
        ]))
    }
}

/// Whether a file or directory is there.
pub fn exists(path: &Path) -> bool {
    path.symlink_metadata().is_ok()
}
