//! File systems on a volume that the kernel's client of NBD attaches over TCP. The server runs on this machine and is
//! killed under load. The client is a guest, because the host's kernel may have no NBD.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use anyhow::{Context, Result};
use clap::Parser;

use crate::{
    process::{command, output},
    server::{self, Server},
    setup::tool,
    suites::{Case, Counts, Outcome, asset, count, reported, whole},
    vm::{Guest, Kernel, Machine, Release},
};

/// Bytes of the volume.
const SIZE: u64 = 1 << 30;

/// The arguments of `cargo x nbd-client`.
#[derive(Parser)]
pub(crate) struct NbdClient {
    /// Number of kills of the server below each file system
    #[arg(long, default_value_t = 4)]
    kills: u32,
    /// fsstress of xfstests, which loads the file systems as well: ltp/fsstress in a built source
    #[arg(long, value_name = "PATH")]
    fsstress: Option<PathBuf>,
    /// Binary to use in place of target/release/forebay
    #[arg(long, value_name = "PATH")]
    forebay: Option<PathBuf>,
    /// Seconds after which the guest is killed
    #[arg(long, default_value_t = 900, value_name = "SECONDS")]
    timeout: u64,
}

impl NbdClient {
    /// Runs the cases, prints the failures, and counts. A guest that does not end normally is a failed case.
    pub(crate) fn run(&self) -> Result<Counts> {
        let port = server::free_port()?;
        let mut server = Server::start_with(
            self.forebay.as_deref(),
            ["--nbd".into(), format!("127.0.0.1:{port}").into()].into(),
        )?;
        let image = server.ssd().join("disk.img");
        File::create(&image)?.set_len(SIZE)?;
        server.ask(&["volume", "create", "scratch", "--backing", &image.to_string_lossy()])?;
        let attach = server.ask(&["volume", "attach", "scratch", "--nbd"])?;
        let mut cases = self.in_guest(&mut server, port, attach.trim())?;
        server.ask(&["volume", "remove", "scratch"])?;
        server.stop()?;
        // The last file system of the guest is XFS.
        if cases.iter().all(|case| matches!(case.outcome, Outcome::Passed)) {
            let checked = output(command("xfs_repair", ["-n", "-f"]).arg(&image));
            cases.push(whole("the image without a server", checked.err().map(|error| format!("{error:#}"))));
        }
        Ok(count("nbd-client", &cases))
    }

    /// Runs the script in a guest, and kills the server whenever the script asks for it. `attach` is the command that
    /// Forebay prints for a client.
    fn in_guest(&self, server: &mut Server, port: u16, attach: &str) -> Result<Vec<Case>> {
        let kernel = Kernel::ready(Release::V6_12, Machine::here())?;
        let modules = kernel.block_modules().map(|module| module.to_string_lossy().into_owned());
        let share = tempfile::tempdir()?;
        let fsx = [tool("fsx")?, asset("fsx-small.toml")].map(|path| path.to_string_lossy().into_owned());
        // The guest has the files of this machine's root.
        let fsstress = self.fsstress.as_deref().map(fs::canonicalize).transpose()?;
        let fsstress = fsstress.map(|path| path.to_string_lossy().into_owned()).unwrap_or_default();
        let words = ["/usr/bin/python3", "-B", &asset("nbd_client.py").to_string_lossy()].map(str::to_owned);
        let words = words.into_iter().chain([
            "10.0.2.2".into(),
            port.to_string(),
            self.kills.to_string(),
            attach.into(),
            fsstress,
        ]);
        let guest = Guest {
            nfs: None,
            shares: vec![(share.path().to_owned(), "/share".into())],
            command: words.chain(fsx).chain(modules).collect(),
            limit: Duration::from_secs(self.timeout),
            memory: 2048,
            all_modules: true,
            machine: Machine::here(),
            kernel: Release::V6_12,
            network: None,
        };
        let mut cases = Vec::new();
        let mut report = |line: &[u8]| {
            let line = String::from_utf8_lossy(line);
            eprint!("{line}");
            cases.extend(reported(&line));
        };
        let ended = thread::scope(|scope| {
            let client = scope.spawn(|| guest.run(&mut report));
            while !client.is_finished() {
                kill_if_asked(server, &share.path().join("kill"))?;
                thread::sleep(Duration::from_millis(20));
            }
            anyhow::Ok(client.join())
        })?;
        let problem = match ended {
            Ok(Ok(0)) => None,
            Ok(Ok(status)) => Some(format!("the guest ended with {status}")),
            Ok(Err(error)) => Some(format!("{error:#}")),
            Err(_) => Some("the guest's thread panicked".into()),
        };
        cases.push(whole("the run", problem));
        Ok(cases)
    }
}

/// Kills the server and starts it again if the file is there, and removes the file.
fn kill_if_asked(server: &mut Server, asked: &Path) -> Result<()> {
    if asked.exists() {
        server.crash_and_restart(false)?;
        fs::remove_file(asked).context("cannot tell the guest")?;
    }
    Ok(())
}
