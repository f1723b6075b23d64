//! An emulated array of a test's own (`forebay bench array`): a disk whose power can be cut and whose requests fail or
//! hang on demand.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::Serve;
use super::disk::serve_at;
use super::server::FOREBAY;

/// A file system on an emulated array with a volatile write cache; gone with the value.
pub(crate) struct Array {
    home: PathBuf,
    kind: String,
    /// Where it is mounted.
    pub(crate) at: PathBuf,
}

impl Array {
    /// Makes one with ext4 or xfs; `None`, and says so, where that cannot be.
    pub(crate) fn new(home: &Path, kind: &str) -> Option<Self> {
        let array = Array { home: home.join("array"), kind: kind.into(), at: home.join("mnt") };
        std::fs::create_dir(&array.home).unwrap();
        let made = array.up();
        if !made {
            eprintln!("not run: needs FUSE, loop devices and mkfs.{kind}");
            return None;
        }
        array.ask(&["inject", "instant"]);
        Some(array)
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(FOREBAY);
        command.args(["bench", "array", "--name", "test", "--state-dir"]).arg(&self.home).args(args);
        command
    }

    /// Gives the array a command that must succeed.
    pub(crate) fn ask(&self, args: &[&str]) {
        let output = self.command(args).output().unwrap();
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    }

    fn up(&self) -> bool {
        let mut command = self.command(&["up", "--model", "nl-sas-8", "--size", "512M", "--fs", &self.kind]);
        command.args(["--write-cache", "volatile"]);
        command.arg("--image-dir").arg(&self.home).arg("--mount").arg(&self.at);
        command.output().unwrap().status.success()
    }

    /// Every request fails from now on, and what was not flushed is lost.
    pub(crate) fn cut_power(&self) {
        self.ask(&["cut", "--seed", "7"]);
    }

    /// Mounts what survived; whoever had files open on it must be gone.
    pub(crate) fn power_on(&self) {
        assert!(self.up(), "the array does not come up again");
    }

    /// A server of it.
    pub(crate) fn serve(&self) -> Serve {
        serve_at(&self.at)
    }
}

impl Drop for Array {
    fn drop(&mut self) {
        let _ = self.command(&["inject", "clear"]).output();
        let _ = self.command(&["down", "--force"]).output();
    }
}
