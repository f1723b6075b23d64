//! Helpers that run the real binary.

// A panic in a helper is a failed assertion, so `unwrap` is allowed here. Each test binary uses only some of the
// helpers.
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

/// Returns output as text.
pub fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// A running server. It is killed when this value is dropped.
pub struct Running {
    child: Child,
    stderr: BufReader<ChildStderr>,
    /// Output of the server up to the line with its state directory.
    pub announced: String,
}

impl Running {
    /// Starts a `serve` command and waits until the server accepts clients.
    pub fn start(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        let mut announced = String::new();
        while !announced.contains("State is kept in") {
            assert_ne!(stderr.read_line(&mut announced).unwrap(), 0, "it ended: {announced}");
        }
        Self { child, stderr, announced }
    }

    /// Sends a signal and waits for the end. Returns the exit status and the remaining output.
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
    /// Starts `serve data` with further flags and waits until the server accepts clients. Without `--mode` the server
    /// has no cache.
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

    /// Ends the server with a signal and starts it again on its directories, with its flags.
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

    /// Returns the `ADDR:PORT` on which the server listens.
    pub fn address(&self) -> &str {
        self.running.announced.lines().find_map(|line| line.strip_prefix("Listening on ")).unwrap()
    }

    /// Returns the number of replies to a procedure.
    pub fn calls(&self, procedure: &str) -> u64 {
        let status: serde_json::Value =
            serde_json::from_slice(&self.ask(&["status", "--json"]).stdout).unwrap();
        let one = status["procedures"].as_array().unwrap().iter().find(|one| one["name"] == procedure);
        one.map_or(0, |one| one["count"].as_u64().unwrap())
    }

    /// Runs a verb on the server.
    pub fn ask(&self, args: &[&str]) -> Output {
        forebay(&[args, &["--state-dir", self.state().to_str().unwrap()]].concat())
    }
}

/// A user without privileges, with a home directory: the user of this process, or `nobody` if this process is root.
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
        // The user may be unable to read the directory of the binary, so the binary is copied. A separate process
        // copies it: a child that another test forks at this moment could hold this process's descriptor open for
        // writing. Starting the copy would then fail (ETXTBSY).
        let binary = home.path().join("forebay");
        assert!(Command::new("cp").args([&built, &binary]).status().unwrap().success());
        std::os::unix::fs::chown(home.path(), Some(Self::NOBODY), Some(Self::NOBODY)).unwrap();
        Self { home, binary }
    }

    /// Returns the user's id.
    pub fn uid(&self) -> u32 {
        let own = geteuid();
        if own.is_root() { Self::NOBODY } else { own.as_raw() }
    }

    /// Returns a command that this user runs.
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

    /// Serves a directory in the user's home.
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

/// Returns true if a file or directory exists at the path.
pub fn exists(path: &Path) -> bool {
    path.symlink_metadata().is_ok()
}
