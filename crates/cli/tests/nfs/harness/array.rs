//! An emulated array for one test (`forebay bench array`): a disk whose power can be cut, and whose requests fail or
//! hang on demand.

use std::path::PathBuf;
use std::process::{Command, Output};

use super::Serve;
use super::disk::serve_at;
use super::server::FOREBAY;

/// A file system on an emulated array with a volatile write cache. The array is removed when this value is dropped.
pub(crate) struct Array {
    home: tempfile::TempDir,
    kind: &'static str,
    /// Mount point of the file system.
    pub(crate) at: PathBuf,
}

impl Array {
    /// Makes an array with ext4 or xfs, as slow as disks are. Prints the reason and returns `None` if this machine
    /// cannot emulate one.
    pub(crate) fn new(kind: &'static str) -> Option<Self> {
        let home = tempfile::tempdir().unwrap();
        let at = home.path().join("mnt");
        let array = Array { home, kind, at };
        let made = array.up();
        if made.status.success() {
            return Some(array);
        }
        let why = String::from_utf8_lossy(&made.stderr);
        assert!(std::env::var_os("CI").is_none(), "CI has to have the emulated array: {why}");
        eprintln!("not run: no emulated array with {kind} on this machine: {why}");
        None
    }

    /// Makes an array whose requests take no time.
    pub(crate) fn instant(kind: &'static str) -> Option<Self> {
        let array = Self::new(kind)?;
        array.ask(&["inject", "instant"]);
        Some(array)
    }

    fn verb(&self, args: &[&str]) -> Output {
        let mut command = Command::new(FOREBAY);
        command.args(["bench", "array"]).args(args).args(["--name", "test", "--state-dir"]);
        command.arg(self.home.path()).output().unwrap()
    }

    /// Runs a verb of the array that must succeed.
    pub(crate) fn ask(&self, args: &[&str]) {
        let output = self.verb(args);
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    }

    /// Returns the number of reads that have reached the disks.
    pub(crate) fn reads(&self) -> u64 {
        let status = self.verb(&["status", "--json"]).stdout;
        let status: serde_json::Value = serde_json::from_slice(&status).unwrap();
        status["status"]["counters"]["reads"].as_u64().unwrap()
    }

    fn up(&self) -> Output {
        let (home, at) = (self.home.path().to_str().unwrap(), self.at.to_str().unwrap());
        let what =
            ["up", "--model", "nl-sas-8", "--size", "1G", "--write-cache", "volatile", "--fs", self.kind];
        self.verb(&[&what[..], &["--image-dir", home, "--mount", at]].concat())
    }

    /// Cuts the power: every request fails from now on, and a part of the unflushed data, chosen by `seed`, is lost.
    pub(crate) fn cut_power(&self, seed: &str) {
        self.ask(&["cut", "--seed", seed]);
    }

    /// Mounts the surviving data and returns true on success. No process may have files of the array open.
    pub(crate) fn power_on(&self) -> bool {
        self.up().status.success()
    }

    /// Returns a server of the file system.
    pub(crate) fn serve(&self) -> Serve {
        serve_at(&self.at)
    }
}

impl Drop for Array {
    fn drop(&mut self) {
        self.verb(&["inject", "clear"]);
        self.verb(&["down", "--force"]);
    }
}

/// A guard. While it lives, no request of the array completes. A process that waits for such a request cannot be
/// killed.
pub(crate) struct Hanging<'a>(&'a Array);

impl<'a> Hanging<'a> {
    /// Holds back all completions from now on.
    pub(crate) fn begin(array: &'a Array) -> Self {
        array.ask(&["inject", "hang"]);
        Hanging(array)
    }
}

impl Drop for Hanging<'_> {
    fn drop(&mut self) {
        self.0.ask(&["inject", "clear"]);
    }
}
