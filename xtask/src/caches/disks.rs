//! Disks that lose at a power cut what was not flushed: exports of nbdkit on this machine, for a guest.

use std::{
    fs,
    net::{Ipv4Addr, TcpStream},
    path::{Path, PathBuf},
    process::Stdio,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};

use crate::{
    process::{Guarded, bounded},
    server::free_port,
    suites::asset,
};

/// Longest time until a disk is written to.
const NEXT_WRITE: Duration = Duration::from_secs(10);
/// Longest time of a start.
const READY: Duration = Duration::from_secs(20);

/// The disks of a guest: the files of a directory.
pub(super) struct Disks {
    pub(super) directory: PathBuf,
    /// TCP port on the loopback of this machine.
    pub(super) port: u16,
    /// The parameters of `volatile_disks.py`.
    parameters: Vec<String>,
    /// Number of power cuts so far.
    pub(super) cuts: usize,
    /// `None` while the disks have no power.
    process: Option<Guarded>,
}

impl Disks {
    /// Returns disks without power. `early` is the chance in percent that a disk writes a block before it is told to.
    pub(super) fn new(directory: &Path, early: u8) -> Result<Self> {
        let parameters = vec![format!("directory={}", directory.display()), format!("early={early}")];
        Ok(Self { directory: directory.to_owned(), port: free_port()?, parameters, cuts: 0, process: None })
    }

    /// Gives the disks power, unless they have it.
    pub(super) fn power_on(&mut self) -> Result<()> {
        if self.process.is_some() {
            return Ok(());
        }
        let port = self.port.to_string();
        let mut words =
            vec!["-f".into(), "-i".into(), "127.0.0.1".into(), "-p".into(), port, "python".into()];
        words.push(asset("volatile_disks.py").to_string_lossy().into_owned());
        words.extend(self.parameters.iter().cloned());
        let child = bounded(None, "nbdkit", words).stdin(Stdio::null()).spawn();
        let mut process = Guarded(child.context("cannot start nbdkit (docs/development.md)")?);
        let end = Instant::now() + READY;
        while TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).is_err() {
            if let Some(status) = process.wait(Duration::from_millis(50))? {
                bail!(
                    "nbdkit ended with {status}: its plugin for Python may be missing (docs/development.md)"
                );
            }
            if Instant::now() > end {
                bail!("nbdkit does not listen after {} s", READY.as_secs());
            }
        }
        self.process = Some(process);
        Ok(())
    }

    /// Has flushes do nothing from now on.
    pub(super) fn forget_flushes(&self) -> Result<()> {
        Ok(fs::write(self.directory.join("forget"), "")?)
    }

    /// Cuts the power of all disks at one moment: behind the next write of the disk `behind`, before any flush. Prints
    /// how many blocks they lost.
    pub(super) fn cut_power(&mut self, behind: &str) -> Result<()> {
        // The plugin reads only whole files.
        let (new, order) = (self.directory.join("cut.new"), self.directory.join("cut"));
        fs::write(&new, behind)?;
        fs::rename(new, &order)?;
        if let Some(mut process) = self.process.take()
            && process.wait(NEXT_WRITE)?.is_none()
        {
            eprintln!("# {behind} was not written to within {} s", NEXT_WRITE.as_secs());
        }
        fs::remove_file(order)?;
        self.cuts += 1;
        let (mut disks, mut blocks) = (0, 0_u64);
        for entry in fs::read_dir(&self.directory)? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "lost") {
                let lost: u64 = fs::read_to_string(&path)?.trim().parse()?;
                if lost > 0 {
                    eprintln!("# {} lost {lost}", path.file_stem().unwrap_or_default().to_string_lossy());
                    disks += 1;
                }
                blocks += lost;
            }
        }
        eprintln!("# {disks} disks lost {blocks} unflushed blocks");
        Ok(())
    }
}
