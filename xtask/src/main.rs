//! Every developer command, under the alias `cargo x`.
#![allow(clippy::print_stdout, reason = "a command-line tool: results go to stdout")]

mod process;
mod vm;

use std::{io::Write as _, path::PathBuf, process::ExitCode, time::Duration};

use anyhow::{Context as _, Result};
use clap::{Args, Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo x", about, disable_version_flag = true)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Run a command under a stock Linux kernel in an emulated machine, with an NFS export mounted at /mnt
    Vm(VmArguments),
}

#[derive(Args)]
struct VmArguments {
    /// TCP port of NFS on this host's loopback; without it nothing is mounted
    #[arg(long, value_name = "PORT")]
    nfs: Option<u16>,
    /// TCP port of MOUNT, where it is another
    #[arg(long, value_name = "PORT", requires = "nfs")]
    mount_port: Option<u16>,
    /// Export to mount
    #[arg(long, default_value = "/")]
    export: String,
    /// Further mount options, separated by commas
    #[arg(long, default_value = "", value_name = "OPTIONS")]
    opts: String,
    /// Directory of this host that the guest sees, writable, at /GUEST (may be repeated)
    #[arg(long, value_name = "DIR=/GUEST", value_parser = share)]
    share: Vec<(PathBuf, String)>,
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

fn share(text: &str) -> Result<(PathBuf, String)> {
    let (directory, guest) = text.split_once('=').context("expected DIR=/GUEST")?;
    Ok((std::path::absolute(directory)?, guest.to_owned()))
}

fn vm(arguments: VmArguments) -> Result<ExitCode> {
    let nfs = arguments.nfs.map(|port| vm::NfsMount {
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
    };
    let status = guest.run(|line| {
        let _ = std::io::stdout().write_all(line);
    })?;
    Ok(ExitCode::from(u8::try_from(status).unwrap_or(1)))
}

fn main() -> ExitCode {
    let result = match Cli::parse().verb {
        Verb::Vm(arguments) => vm(arguments),
    };
    result.unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::FAILURE
    })
}
