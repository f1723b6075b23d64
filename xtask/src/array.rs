//! Emulated disks (`forebay bench array`) below a server under test, whose power can be cut. They need root.

use std::{
    ffi::OsStr,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::Result;

use crate::process::output;

/// A file system on emulated disks with a volatile write cache; gone with the value.
pub(crate) struct Array {
    forebay: PathBuf,
    name: String,
    state: PathBuf,
    fs: String,
    mount: PathBuf,
    /// It is as quick as an SSD.
    quick: bool,
}

impl Array {
    /// One with the file system `fs`, ext4 or xfs, mounted at `place` in `work`: as slow as eight disks or, `quick`, like an
    /// SSD.
    pub(crate) fn new(forebay: &Path, work: &Path, place: &str, fs: &str, quick: bool) -> Result<Self> {
        let array = Array {
            forebay: forebay.into(),
            // The data is in a directory that all share.
            name: format!("rig-{}-{place}", std::process::id()),
            state: work.join("arrays"),
            fs: fs.into(),
            mount: work.join(place),
            quick,
        };
        array.power_on()?;
        Ok(array)
    }

    fn verb(&self, arguments: &[&OsStr]) -> Result<()> {
        let mut command = Command::new(&self.forebay);
        command.args(["bench", "array"]).args(arguments);
        command.args(["--name", &self.name, "--state-dir"]).arg(&self.state);
        output(&mut command).map(drop)
    }

    /// Makes it, or mounts what survived a cut; whoever had files open on it is gone.
    pub(crate) fn power_on(&self) -> Result<()> {
        let what =
            ["up", "--model", "nl-sas-8", "--size", "2G", "--write-cache", "volatile", "--fs", &self.fs];
        let mut arguments: Vec<&OsStr> = what.map(OsStr::new).into();
        arguments.extend([OsStr::new("--mount"), self.mount.as_os_str()]);
        self.verb(&arguments)?;
        if self.quick { self.inject(&["slow", "--factor", "0.01"]) } else { Ok(()) }
    }

    pub(crate) fn inject(&self, fault: &[&str]) -> Result<()> {
        let mut arguments = vec![OsStr::new("inject")];
        arguments.extend(fault.iter().map(OsStr::new));
        self.verb(&arguments)
    }

    /// From now on every request fails; a part of what was not flushed, which `seed` decides on, is lost.
    pub(crate) fn cut_power(&self, seed: u64) -> Result<()> {
        self.verb(&["cut", "--seed", &seed.to_string()].map(OsStr::new))
    }
}

impl Drop for Array {
    fn drop(&mut self) {
        // What is left is found with `forebay bench array list`.
        let _ = self.verb(&["down", "--force"].map(OsStr::new));
    }
}
