//! Measures the NBD door beside nbdkit and qemu-nbd with equal loads.

use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use clap::Parser;

use crate::{
    process::{bounded, rigs_dir, run},
    server,
    suites::asset,
};

/// The arguments of `cargo x nbd-speed`.
#[derive(Parser)]
pub(crate) struct NbdSpeed {
    /// Number of runs of each load, each with another order of the servers
    #[arg(long, default_value_t = 3)]
    rounds: u32,
    /// Seconds of one run
    #[arg(long, default_value_t = 3)]
    seconds: u32,
    /// Put Forebay's volume on an emulated array of slow disks (as root); the other servers have the SSD
    #[arg(long)]
    array: bool,
    /// Measure clients of a volume and of an export of Forebay beside each other, and streams of both
    #[arg(long, conflicts_with = "array")]
    share: bool,
    /// Directory on the SSD to measure, with 6 GiB free
    #[arg(long, value_name = "DIR")]
    work: Option<PathBuf>,
    /// Binary to use in place of target/release/forebay
    #[arg(long, value_name = "PATH")]
    forebay: Option<PathBuf>,
    /// Loads, such as fua-16x8, or words of the cases of --share; all by default
    loads: Vec<String>,
}

impl NbdSpeed {
    /// Runs the loads in turn, and prints a table.
    pub(crate) fn run(&self) -> Result<()> {
        let binary = std::path::absolute(server::binary(self.forebay.as_deref()))?;
        ensure!(binary.is_file(), "{} is missing: build it with `cargo build --release`", binary.display());
        let inside = self.work.clone().map_or_else(rigs_dir, Ok)?;
        let work = tempfile::Builder::new().prefix("nbd-speed-").tempdir_in(inside)?;
        let script = asset(if self.share { "nbd_share.py" } else { "nbd_speed.py" });
        let mut words = vec![Path::new("-B").into(), script.into_os_string(), binary.into_os_string()];
        words.push(work.path().into());
        words.extend([self.rounds.to_string().into(), self.seconds.to_string().into()]);
        if !self.share {
            words.push(if self.array { "yes" } else { "no" }.into());
        }
        words.extend(self.loads.iter().map(Into::into));
        // Debian's own python has libnbd.
        run(&mut bounded(None, "/usr/bin/python3", words))
    }
}
