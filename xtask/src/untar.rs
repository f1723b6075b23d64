//! Unpacks a source tree with a Linux client on emulated slow disks, on a synchronous mount, while the power is cut.
//! The server dies and the disks lose their unflushed data. The client continues without help. Tree, handles and open
//! files must be unchanged. Without cuts, and with other servers, the command is a measurement.

use std::{fs, path::Path, process::Command, thread, time::Duration};

use anyhow::{Result, bail, ensure};
use clap::Parser;

use crate::{
    array::Array,
    process::{self, run},
    server::{self, EXPORT, Kind, SSD, Server},
    suites::{Case, Counts, Outcome, asset, reported, whole},
    vm::{Guest, Machine, NfsMount, Release, Version},
};

/// Most further cuts. A cut right after a journal commit loses no names or attributes. Further cuts are made until
/// one has lost some.
const FURTHER: u64 = 6;
/// Time before each further cut. It is shorter than the five seconds between two commits, so that changes are
/// acknowledged meanwhile.
const BETWEEN: Duration = Duration::from_secs(3);

/// The arguments of `cargo x untar`.
#[derive(Parser)]
pub(crate) struct Untar {
    /// File system of the slow disks: xfs or ext4
    #[arg(long, default_value = "xfs")]
    fs: String,
    /// Regular files in the tree
    #[arg(long, default_value_t = 800, value_name = "N")]
    files: usize,
    /// Number of power cuts
    #[arg(long, default_value_t = 2, value_name = "N")]
    cuts: u64,
    /// Seed that decides the data that the disks lose
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Server to start
    #[arg(long, value_enum, default_value = "forebay")]
    server: Kind,
    /// Mode of Forebay
    #[arg(long, default_value = "write-back", value_parser = ["write-back", "write-through", "pass-through"])]
    mode: String,
    /// Binary to use in place of target/release/forebay
    #[arg(long, value_name = "PATH")]
    forebay: Option<std::path::PathBuf>,
    /// Run the control: flushes of the disks do nothing, and the run must fail
    #[arg(long)]
    lose_flushes: bool,
    /// Seconds after which the guest is killed
    #[arg(long, default_value_t = 600, value_name = "SECONDS")]
    timeout: u64,
}

/// Runs on both file systems that have a journal.
pub(crate) fn check() -> Result<Counts> {
    let mut counts = Counts::default();
    for fs in ["xfs", "ext4"] {
        let Counts { passed, failed, .. } = Untar::parse_from(["untar", "--fs", fs]).run()?;
        counts.passed += passed;
        counts.failed += failed;
    }
    Ok(counts)
}

impl Untar {
    /// Runs the cases, prints the failures, and counts.
    pub(crate) fn run(&self) -> Result<Counts> {
        ensure!(self.cuts == 0 || self.server == Kind::Forebay, "other servers are only measured: --cuts 0");
        eprintln!("{} files over {}, {} power cuts", self.files, self.fs, self.cuts);
        let mut counts = Counts::default();
        for Case { name, outcome } in self.cases()? {
            match outcome {
                Outcome::Passed => counts.passed += 1,
                Outcome::Skipped => counts.skipped += 1,
                Outcome::Failed(why) => {
                    println!("FAILED {name} ({}): {why}", self.fs);
                    counts.failed += 1;
                }
            }
        }
        println!("untar over {}: {} passed, {} failed", self.fs, counts.passed, counts.failed);
        Ok(counts)
    }

    /// Makes the emulated arrays and starts the server on them. Only a run with power cuts has an array for the SSDs.
    fn start(&self) -> Result<Server> {
        let (work, binary) = (server::work_dir()?, server::binary(self.forebay.as_deref()));
        let mut arrays = Vec::new();
        if self.cuts > 0 {
            arrays.push(Array::new(&binary, work.path(), SSD, &self.fs, true)?);
        }
        arrays.push(Array::new(&binary, work.path(), EXPORT, &self.fs, false)?);
        if self.lose_flushes {
            arrays.iter().try_for_each(|array| array.inject(&["flush-noop"]))?;
        }
        Server::start_in(work, arrays, self.server, self.forebay.as_deref(), &self.mode)
    }

    /// Runs the client and cuts the power while it works. Cuts further times until recovery has recreated an object,
    /// since a run without that proves nothing.
    fn cases(&self) -> Result<Vec<Case>> {
        let (script, share) = (asset("untar.py"), tempfile::tempdir()?);
        let script = script.to_string_lossy();
        let archive = share.path().join("tree.tar");
        run(Command::new("python3").args([&script, "make"]).arg(&archive).arg(self.files.to_string()))?;
        let mut server = self.start()?;
        let (mut cases, mut remade) = (Vec::new(), 0);
        let mut report = |line: &[u8]| {
            let line = String::from_utf8_lossy(line);
            eprint!("{line}");
            cases.extend(reported(&line));
        };
        let guest = self.guest(&server, &script, share.path());
        let status = thread::scope(|scope| {
            let client = scope.spawn(|| guest.run(&mut report));
            for cut in 0..self.cuts + FURTHER {
                let under_way = share.path().join(format!("under-way-{cut}"));
                if cut < self.cuts {
                    while !under_way.exists() && !client.is_finished() {
                        thread::sleep(Duration::from_millis(20));
                    }
                } else if self.cuts > 0 && remade == 0 {
                    thread::sleep(BETWEEN);
                } else {
                    break;
                }
                if client.is_finished() {
                    break;
                }
                // The client ends only at its limit if the server stays away, so the error is shown at once.
                server.cut_power(self.seed + cut).inspect_err(|error| eprintln!("{error:#}"))?;
                remade = remade.max(aliases(&server.directory()));
            }
            client.join().unwrap_or_else(|_| bail!("the client's thread died"))
        })?;
        server.flush()?;
        server.stop()?;
        let mut verify = Command::new("python3");
        verify.args([&script, "host"]).arg(server.directory()).arg(share.path());
        process::lines(&mut verify, &mut report)?;
        cases.push(whole("the run", (status != 0).then(|| format!("the guest ended with {status}"))));
        if self.cuts > 0 {
            let nothing = "no cut lost an acknowledged object, so the run proves nothing".to_owned();
            cases.push(whole("recovery made objects again", (remade == 0).then_some(nothing)));
            eprintln!("{remade} objects were known under older identities after a cut");
        }
        Ok(cases)
    }

    /// Returns the guest that unpacks the tree on a synchronous mount of NFSv3.
    fn guest(&self, server: &Server, script: &str, share: &Path) -> Guest {
        let command = ["/usr/bin/python3", script, "guest", "/mnt", "/share", &self.cuts.to_string()];
        Guest {
            nfs: Some(NfsMount {
                version: Version::V3,
                port: server.port,
                mount_port: server.mount_port,
                export: "/".into(),
                options: "hard,sync".into(),
            }),
            shares: vec![(share.to_owned(), "/share".into())],
            command: command.map(str::to_owned).into(),
            limit: Duration::from_secs(self.timeout),
            memory: 2048,
            all_modules: false,
            machine: Machine::here(),
            kernel: Release::default(),
            network: None,
        }
    }
}

/// Returns the number of objects that recovery has recreated, or shows under another file id.
fn aliases(directory: &Path) -> usize {
    fs::read_dir(directory.join(".forebay/aliases")).map_or(0, Iterator::count)
}
