//! `forebay-array`: the emulated disk array as a program of its own.

use clap::Parser;
use forebay_array::cli::{ArrayArgs, run};
use std::io::Write;
use std::process::ExitCode;

/// An emulated disk array: a block device that behaves like spinning disks behind RAID 6.
#[derive(Debug, Parser)]
#[command(version)]
struct Cli {
    #[command(flatten)]
    args: ArrayArgs,
}

/// Runs the verb and prints an error to standard error. The exit status is 0 or 1; wrong arguments end with 2.
fn main() -> ExitCode {
    match run(&Cli::parse().args, &[]) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            _ = writeln!(std::io::stderr(), "forebay-array: {e}");
            ExitCode::FAILURE
        }
    }
}
