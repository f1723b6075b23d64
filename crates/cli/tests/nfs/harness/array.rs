//! An emulated array of a test's own (`forebay bench array`): a disk whose power can be cut and whose requests fail or
//! hang on demand.

use std::path::PathBuf;
use std::process::{Command, Output};

use super::Serve;
use super::disk::serve_at;
use super::server::FOREBAY;

/// A file system on an emulated array with a volatile write cache; gone with the value.
pub(crate) struct Array {
    home: tempfile::TempDir,
    kind: &'static str,
    /// Where it is mounted.
    pub(crate) at: PathBuf,
}

impl Array {
    /// Makes one with ext4 or xfs, as slow as disks are; `None`, and says why, where that cannot be.
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

    /// One whose requests take no time.
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

    /// Gives the array a command that must succeed.
    pub(crate) fn ask(&self, args: &[&str]) {
        let output = self.verb(args);
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    }

    /// Reads that have come to the disks so far.
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

    /// Every request fails from now on, and a part of what was not flushed, which `seed` decides on, is lost.
    pub(crate) fn cut_power(&self, seed: &str) {
        self.ask(&["cut", "--seed", seed]);
    }

    /// Mounts what survived, if it can be; whoever had files open on it must be gone.
    pub(crate) fn power_on(&self) -> bool {
        self.up().status.success()
    }

    /// A server of it.
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

/// While it lives, no request of an array ends. Nobody can be killed who waits for it.
pub(crate) struct Hanging<'a>(&'a Array);

impl<'a> Hanging<'a> {
    /// From now on none ends.
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
