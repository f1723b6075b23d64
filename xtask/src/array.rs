//! Emulated disks (`forebay bench array`) below a server under test, whose power can be cut. They need root.

use std::{
    ffi::OsStr,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::Result;

use crate::process::output;

/// A file system on emulated disks with a volatile write cache. The disks are removed when this value is dropped.
pub(crate) struct Array {
    forebay: PathBuf,
    name: String,
    state: PathBuf,
    fs: String,
    mount: PathBuf,
    /// True if the disks are as quick as an SSD.
    quick: bool,
}

impl Array {
    /// Makes disks with the file system `fs`, ext4 or xfs, mounted at `place` in `work`. They are as slow as eight
    /// disks, or with `quick` as fast as an SSD.
    pub(crate) fn new(forebay: &Path, work: &Path, place: &str, fs: &str, quick: bool) -> Result<Self> {
        let array = Array {
            forebay: forebay.into(),
            // The data is in a directory that all arrays share, so the name contains the process id.
            name: format!("rig-{}-{place}", std::process::id()),
            state: work.join("arrays"),
            fs: fs.into(),
            mount: work.join(place),
            quick,
        };
        array.power_on()?;
        Ok(array)
    }

    /// Runs a verb of `forebay bench array` on this array. Fails with the text of the verb's error.
    fn verb(&self, arguments: &[&OsStr]) -> Result<()> {
        let mut command = Command::new(&self.forebay);
        command.args(["bench", "array"]).args(arguments);
        command.args(["--name", &self.name, "--state-dir"]).arg(&self.state);
        output(&mut command).map(drop)
    }

    /// Makes the array, or mounts the data that survived a cut. No process may have files of the array open.
    pub(crate) fn power_on(&self) -> Result<()> {
        let what =
            ["up", "--model", "nl-sas-8", "--size", "2G", "--write-cache", "volatile", "--fs", &self.fs];
        let mut arguments: Vec<&OsStr> = what.map(OsStr::new).into();
        arguments.extend([OsStr::new("--mount"), self.mount.as_os_str()]);
        self.verb(&arguments)?;
        if self.quick { self.inject(&["slow", "--factor", "0.01"]) } else { Ok(()) }
    }

    /// Injects a fault into the array, such as `flush-noop`. `forebay bench array` says which faults there are.
    pub(crate) fn inject(&self, fault: &[&str]) -> Result<()> {
        let mut arguments = vec![OsStr::new("inject")];
        arguments.extend(fault.iter().map(OsStr::new));
        self.verb(&arguments)
    }

    /// Cuts the power: every request fails from now on, and a part of the unflushed data, chosen by `seed`, is lost.
    pub(crate) fn cut_power(&self, seed: u64) -> Result<()> {
        self.verb(&["cut", "--seed", &seed.to_string()].map(OsStr::new))
    }
}

impl Drop for Array {
    fn drop(&mut self) {
        // The array may be gone already. If this fails, `forebay bench array list` shows the array.
        let _ = self.verb(&["down", "--force"].map(OsStr::new));
    }
}
