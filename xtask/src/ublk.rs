//! Checks volumes as block devices (ublk): file systems on them survive kills of the server under load, and the backing
//! file has everything after a detach. Everything, including the server, runs in the guest, because the host's kernel
//! may have no ublk.

use std::{path::PathBuf, time::Duration};

use anyhow::{Result, ensure};
use clap::Parser;

use crate::{
    server,
    suites::{Counts, asset, cases_of, count},
    vm::{Guest, Kernel, Machine, Release},
};

/// The arguments of `cargo x ublk`.
#[derive(Parser)]
pub(crate) struct Ublk {
    /// Number of kills of the server below each file system
    #[arg(long, default_value_t = 10)]
    kills: u32,
    /// Binary to use in place of target/release/forebay
    #[arg(long, value_name = "PATH")]
    forebay: Option<PathBuf>,
    /// Seconds after which the guest is killed
    #[arg(long, default_value_t = 600, value_name = "SECONDS")]
    timeout: u64,
}

impl Ublk {
    /// Runs the cases, prints the failures, and counts. A guest that does not end normally is a failed case.
    pub(crate) fn run(&self) -> Result<Counts> {
        let binary = std::path::absolute(server::binary(self.forebay.as_deref()))?;
        ensure!(binary.is_file(), "{} is missing: build it with `cargo build --release`", binary.display());
        let kernel = Kernel::ready(Release::V6_12, Machine::Emulated)?;
        let modules = kernel.block_modules().map(|module| module.to_string_lossy().into_owned());
        let words = ["/usr/bin/python3".into(), asset("ublk.py"), self.kills.to_string().into(), binary];
        let words = words.iter().map(|word: &PathBuf| word.to_string_lossy().into_owned());
        let guest = Guest {
            nfs: None,
            shares: Vec::new(),
            command: words.chain(modules).collect(),
            limit: Duration::from_secs(self.timeout),
            // The guest's memory contains the images.
            memory: 3072,
            all_modules: true,
            machine: Machine::Emulated,
            kernel: Release::V6_12,
            network: None,
        };
        Ok(count("ublk", &cases_of(&guest)))
    }
}
