//! A server whose output is not read. Tests use its control socket.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::common::{forebay, text};

/// A running server with its directories. It is killed when this value is dropped.
pub(crate) struct Unattended {
    child: Child,
    dir: TempDir,
}

impl Unattended {
    /// Starts `serve data` with these flags and this stderr, and waits until the control socket answers.
    pub(crate) fn start(flags: &[&str], stderr: impl Into<Stdio>) -> Self {
        Self::start_in(TempDir::new().unwrap(), flags, stderr)
    }

    /// Starts `serve data` with existing directories, and waits until the control socket answers.
    pub(crate) fn start_in(dir: TempDir, flags: &[&str], stderr: impl Into<Stdio>) -> Self {
        let data = dir.path().join("data");
        Self::start_serving(dir, Some(data), flags, stderr.into())
    }

    /// Starts `serve` with the exports of a configuration file, and waits until the control socket answers.
    pub(crate) fn start_configured(dir: TempDir, flags: &[&str]) -> Self {
        Self::start_serving(dir, None, flags, Stdio::null())
    }

    fn start_serving(dir: TempDir, data: Option<PathBuf>, flags: &[&str], stderr: Stdio) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
        command.arg("serve").args(data).args(["--listen", "127.0.0.1:0", "--state-dir"]);
        command.arg(dir.path().join("state")).args(flags).stdout(Stdio::null()).stderr(stderr);
        let mut server = Self { child: command.spawn().unwrap(), dir };
        let begun = std::time::Instant::now();
        while !server.is_serving() {
            assert_eq!(server.child.try_wait().unwrap(), None, "the server ended");
            assert!(begun.elapsed().as_secs() < 60, "the server does not answer");
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        server
    }

    fn is_serving(&self) -> bool {
        let output = self.ask(&["status", "--json"]);
        output.status.success()
            && serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap()["starting"].is_null()
    }

    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn state(&self) -> PathBuf {
        self.dir.path().join("state")
    }

    /// Runs a verb on the server.
    pub(crate) fn ask(&self, args: &[&str]) -> Output {
        forebay(&[args, &["--state-dir", self.state().to_str().unwrap()]].concat())
    }

    /// Runs a verb on the server and returns its JSON output.
    pub(crate) fn json(&self, args: &[&str]) -> serde_json::Value {
        let output = self.ask(&[args, &["--json"]].concat());
        assert_eq!(output.status.code(), Some(0), "{args:?}: {}", text(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// Repeats a check until `so` is true. A working server needs seconds at most.
    #[track_caller]
    pub(crate) fn wait_for(&self, so: impl Fn(&Self) -> bool) {
        let begun = std::time::Instant::now();
        while !so(self) {
            assert!(begun.elapsed().as_secs() < 60, "it did not come to pass");
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Waits for the end of a server that was killed, and returns its directories.
    pub(crate) fn abandon(mut self) -> TempDir {
        self.child.wait().unwrap();
        std::mem::replace(&mut self.dir, TempDir::new().unwrap())
    }

    /// Stops the server with SIGTERM and returns its directories. The exit must be clean.
    #[track_caller]
    pub(crate) fn stop(mut self) -> TempDir {
        self.signal(Signal::TERM);
        let status = self.child.wait().unwrap();
        assert_eq!(status.code(), Some(0), "{status:?}");
        std::mem::replace(&mut self.dir, TempDir::new().unwrap())
    }
}

impl Drop for Unattended {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
