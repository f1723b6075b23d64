//! The developer commands, under the alias `cargo x`.
#![allow(clippy::print_stdout, reason = "a command-line tool: results go to stdout")]

mod array;
mod blktests;
mod boot;
mod caches;
mod ci;
mod cthon;
mod dist;
mod documents;
mod english;
mod imports;
mod ktls;
mod ladder;
mod leftovers;
mod loop_xfs;
mod mounts;
mod mutants;
mod nbd;
mod nbd_client;
mod nbd_root;
mod nbd_speed;
mod nfstest;
mod package;
mod process;
mod protection;
mod pynfs;
mod quota;
mod readme;
mod server;
mod setup;
mod suites;
mod ublk;
mod untar;
mod vm;
mod watched;
mod xfstests;

use std::{io::Write as _, path::PathBuf, process::ExitCode, time::Duration};

use anyhow::{Context as _, Result};
use clap::{Args, Parser, Subcommand};
use server::Kind;
use suites::{SUITES, Serving, Target};

#[derive(Parser)]
#[command(name = "cargo x", about, disable_version_flag = true)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Run all checks of CI: format, clippy, tests, documents, dependencies, fuzzing, and the suites
    Ci(CiArguments),
    /// Run one step of `ci` for `ci` itself
    #[command(hide = true)]
    CiStep { name: String, result: PathBuf },
    /// Run the quick part of `ci`: format, clippy, tests, documents
    Test,
    /// Install the programs that `ci` needs and this machine lacks (as root: packages by apt)
    Setup {
        /// Also install nfs-ganesha, to compare with
        #[arg(long)]
        peers: bool,
        /// Also install cargo-mutants, for `cargo x mutants`
        #[arg(long)]
        mutants: bool,
    },
    /// Compare the README's transcript with a run of its commands (needs the release build)
    Readme {
        /// Write the new transcript into the README
        #[arg(long)]
        update: bool,
    },
    /// List the places in comments and documents that break the rules for English
    English(english::English),
    /// Build the binary that is installed, with its debug information in a file of its own
    Dist(dist::Dist),
    /// Make packages: deb, rpm, an archive with a static binary, an OCI image
    Package(package::Package),
    /// Run the cache engine in simulated worlds (`cargo x sim -- --help` lists the arguments)
    Sim {
        /// Arguments for the simulator
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENTS")]
        arguments: Vec<String>,
    },
    /// Make small changes in the code, one at a time, and check that tests notice (hours for a hundred)
    Mutants(mutants::Mutants),
    /// Run a suite against a server, by default a new one on an empty directory
    Suite(SuiteArguments),
    /// Attack a server with an unauthorised client and a hostile client; print how much a measuring client slows down
    Hostile {
        /// Minutes of the attacks
        #[arg(long, default_value_t = 10, value_name = "M")]
        minutes: u64,
    },
    /// Unpack a source tree through a Linux client on emulated slow disks while the power fails, or to measure it (as
    /// root)
    Untar(untar::Untar),
    /// Check quotas of the served file system in a guest, because this machine's kernel may lack quotas
    Quota(quota::Quota),
    /// Check TLS by the kernel, in a guest, because this machine's kernel may lack TLS
    Ktls(ktls::Ktls),
    /// Kill the server below file systems on its block devices (ublk), in an emulated machine
    Ublk(ublk::Ublk),
    /// Run libnbd's, QEMU's and fio's tools against a block volume over NBD
    Nbd(nbd::Nbd),
    /// Measure the NBD door beside nbdkit and qemu-nbd (an idle machine, half an hour)
    NbdSpeed(nbd_speed::NbdSpeed),
    /// Kill the server below file systems that Linux's client of NBD has on a volume, in a guest
    NbdClient(nbd_client::NbdClient),
    /// Kill the server below the root file system of a guest, then cut the power of both
    NbdRoot(nbd_root::NbdRoot),
    /// Run blktests' tests of NBD in a guest, with a volume in the place of nbd-server's export
    Blktests(blktests::Blktests),
    /// Crash a guest with bcache, dm-cache, dm-writecache and a volume, and compare what survives
    Caches(caches::Caches),
    /// Mount without options, or with TLS or Kerberos, from a Linux client on a network of its own (as root)
    Mounts(mounts::Mounts),
    /// Run the Connectathon tests (cthon04) from a Linux client on a network of its own (as root)
    Cthon(cthon::Cthon),
    /// Run nfstest_posix from a Linux client on a network of its own (as root)
    Nfstest(nfstest::Nfstest),
    /// Run the tests of pynfs against new servers on the loopback (as root)
    Pynfs(pynfs::Pynfs),
    /// Run xfstests from a Linux client on a network of its own (as root; an hour and more)
    Xfstests(xfstests::Xfstests),
    /// Boot the shipped unit under systemd with disks that are late or missing, and power cuts
    Boot(boot::Boot),
    /// Watch a server with Prometheus and the shipped alert rules, and open its page in a browser
    Watched(watched::Watched),
    /// Run a command under a stock Linux kernel in a guest, with an NFS export mounted at /mnt
    Vm(VmArguments),
}

#[derive(Args)]
struct CiArguments {
    /// Run only these steps, separated by commas
    #[arg(long, value_delimiter = ',', value_name = "STEPS")]
    only: Vec<String>,
    /// List the steps, with the seconds, processor seconds and result of each one's last run; run nothing
    #[arg(long)]
    list: bool,
    /// Run one step at a time, and print its output as it is written
    #[arg(long)]
    in_turn: bool,
}

#[derive(Args)]
struct VmArguments {
    /// TCP port of NFS on this host's loopback; without it no export is mounted
    #[arg(long, value_name = "PORT")]
    nfs: Option<u16>,
    /// TCP port of MOUNT, if it differs from that of NFS
    #[arg(long, value_name = "PORT", requires = "nfs")]
    mount_port: Option<u16>,
    /// Export to mount
    #[arg(long, default_value = "/")]
    export: String,
    /// Version of NFS
    #[arg(long, value_enum, default_value = "3")]
    vers: vm::Version,
    /// Further mount options, separated by commas
    #[arg(long, default_value = "", value_name = "OPTIONS")]
    opts: String,
    /// Directory of this host that the guest can write to, at /GUEST (may be repeated)
    #[arg(long, value_name = "DIR=/GUEST", value_parser = share)]
    share: Vec<(PathBuf, String)>,
    /// Machine of the guest: user-mode Linux (the default for root, needs tap devices), or two processors emulated by
    /// qemu
    #[arg(long, value_enum)]
    machine: Option<vm::Machine>,
    /// Kernel of the guest
    #[arg(long, value_enum, default_value = "6.1")]
    kernel: vm::Release,
    /// Kill the guest after this many seconds
    #[arg(long, default_value_t = 600, value_name = "SECONDS")]
    timeout: u64,
    /// Memory of the guest in MiB
    #[arg(long, default_value_t = 2048, value_name = "MIB")]
    memory: u32,
    /// Program and arguments
    #[arg(required = true, last = true)]
    command: Vec<String>,
}

#[derive(Args)]
struct SuiteArguments {
    /// Name of the suite
    #[arg(value_parser = SUITES.map(|suite| suite.name), long_help = suite_help())]
    name: String,
    /// Server to start; its list of expected failures applies
    #[arg(long, value_enum, default_value = "forebay")]
    server: Kind,
    /// Version of NFS
    #[arg(long, value_enum, default_value = "3")]
    vers: vm::Version,
    /// Binary to use in place of target/release/forebay
    #[arg(long, value_name = "PATH")]
    forebay: Option<PathBuf>,
    /// TCP port of a running server on the loopback; no server is started
    #[arg(long, requires = "directory")]
    port: Option<u16>,
    /// TCP port of the server's MOUNT, if it differs from that of NFS
    #[arg(long, requires = "port")]
    mount_port: Option<u16>,
    /// Directory that the server serves
    #[arg(long, value_name = "DIR", requires = "port")]
    directory: Option<PathBuf>,
}

fn suite_help() -> String {
    SUITES.map(|suite| format!("{:<10} {}", suite.name, suite.about)).join("\n")
}

/// Parses `DIR=/GUEST`: a directory of the host and its path in the guest.
fn share(text: &str) -> Result<(PathBuf, String)> {
    let (directory, guest) = text.split_once('=').context("expected DIR=/GUEST")?;
    Ok((std::path::absolute(directory)?, guest.to_owned()))
}

/// Runs a command in a guest, with the export mounted if the arguments name a server. The exit status is that of the
/// command.
fn vm(arguments: VmArguments) -> Result<ExitCode> {
    let nfs = arguments.nfs.map(|port| vm::NfsMount {
        version: arguments.vers,
        port,
        mount_port: arguments.mount_port.unwrap_or(port),
        export: arguments.export,
        options: arguments.opts,
    });
    let guest = vm::Guest {
        nfs,
        shares: arguments.share,
        command: arguments.command,
        limit: Duration::from_secs(arguments.timeout),
        memory: arguments.memory,
        all_modules: true,
        machine: arguments.machine.unwrap_or_else(vm::Machine::here),
        kernel: arguments.kernel,
        network: None,
    };
    let status = guest.run(|line| {
        let _ = std::io::stdout().write_all(line);
    })?;
    Ok(ExitCode::from(u8::try_from(status).unwrap_or(1)))
}

/// Runs a suite against a server that the arguments name, or against a new server.
fn suite(arguments: SuiteArguments) -> Result<ExitCode> {
    let suite = SUITES.iter().find(|suite| suite.name == arguments.name).context("no such suite")?;
    let version = arguments.vers;
    let target = match (arguments.port, arguments.directory) {
        (Some(port), Some(directory)) => {
            let mount_port = arguments.mount_port.unwrap_or(port);
            Target { server: Serving::Given { port, mount_port, directory }, version }
        }
        _ => Target::start(arguments.server, arguments.forebay.as_deref(), version)?,
    };
    Ok(status(&suites::run(suite, arguments.server, target)?))
}

fn status(counts: &suites::Counts) -> ExitCode {
    if counts.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs the chosen steps of CI, or lists them. Checks first that a whole run has enough space on the disks.
fn steps(all: Vec<ci::Step>, arguments: &CiArguments) -> Result<ExitCode> {
    let CiArguments { only, list, in_turn } = arguments;
    if let Some(unknown) = only.iter().find(|name| all.iter().all(|step| step.name != **name)) {
        let names: Vec<_> = all.iter().map(|step| step.name).collect();
        anyhow::bail!("there is no step {unknown}; the steps are {}", names.join(", "));
    }
    let chosen: Vec<_> =
        all.into_iter().filter(|step| only.is_empty() || only.iter().any(|name| name == step.name)).collect();
    if *list {
        ci::list(&chosen);
        return Ok(ExitCode::SUCCESS);
    }
    if only.is_empty() && !in_turn {
        ci::check_room()?;
    }
    Ok(if ci::run_steps(&chosen, *in_turn)? { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs the test `hostile` for longer than `cargo test` does.
fn hostile(minutes: u64) -> Result<ExitCode> {
    let words = ["test", "--release", "-p", "forebay-cli", "--test", "nfs", "--", "hostile::", "--nocapture"];
    let mut command = process::command("cargo", words);
    process::run(command.env("FOREBAY_TEST_SECONDS", (60 * minutes).to_string())).map(|()| ExitCode::SUCCESS)
}

/// Parses the command line and carries out the verb. Prints an error to standard error.
fn main() -> ExitCode {
    let result = match Cli::parse().verb {
        Verb::Ci(arguments) => steps(ci::all(), &arguments),
        Verb::CiStep { name, result } => ci::run_for_parent(&name, &result).map(|()| ExitCode::SUCCESS),
        Verb::Test => steps(ci::quick(), &CiArguments { only: Vec::new(), list: false, in_turn: true }),
        Verb::Setup { peers, mutants } => setup::setup(peers, mutants).map(|()| ExitCode::SUCCESS),
        Verb::Sim { arguments } => {
            ci::sim(&arguments).and_then(|mut sim| process::run(&mut sim)).map(|()| ExitCode::SUCCESS)
        }
        Verb::Readme { update } => readme::check(update).map(|_| ExitCode::SUCCESS),
        Verb::English(english) => english.run().map(|()| ExitCode::SUCCESS),
        Verb::Dist(dist) => dist.run(),
        Verb::Mutants(mutants) => mutants.run(),
        Verb::Suite(arguments) => suite(arguments),
        Verb::Hostile { minutes } => hostile(minutes),
        Verb::Untar(untar) => untar.run().map(|counts| status(&counts)),
        Verb::Ublk(ublk) => ublk.run().map(|counts| status(&counts)),
        Verb::Nbd(nbd) => nbd.run().map(|counts| status(&counts)),
        Verb::NbdClient(client) => client.run().map(|counts| status(&counts)),
        Verb::NbdSpeed(speed) => speed.run().map(|()| ExitCode::SUCCESS),
        Verb::NbdRoot(root) => root.run().map(|counts| status(&counts)),
        Verb::Blktests(blktests) => blktests.run().map(|counts| status(&counts)),
        Verb::Caches(caches) => caches.run().map(|counts| status(&counts)),
        Verb::Quota(quota) => quota.run().map(|counts| status(&counts)),
        Verb::Ktls(ktls) => ktls.run().map(|counts| status(&counts)),
        Verb::Mounts(mounts) => mounts.run().map(|counts| status(&counts)),
        Verb::Package(package) => package.run(),
        Verb::Cthon(cthon) => cthon.run().map(|counts| status(&counts)),
        Verb::Nfstest(nfstest) => nfstest.run().map(|counts| status(&counts)),
        Verb::Pynfs(pynfs) => pynfs.run().map(|counts| status(&counts)),
        Verb::Xfstests(xfstests) => xfstests.run().map(|counts| status(&counts)),
        Verb::Boot(boot) => boot.run().map(|counts| status(&counts)),
        Verb::Watched(watched) => watched.run().map(|counts| status(&counts)),
        Verb::Vm(arguments) => vm(arguments),
    };
    result.unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::FAILURE
    })
}
