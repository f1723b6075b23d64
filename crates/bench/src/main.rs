//! `forebay bench` as a program of its own.

use std::process::ExitCode;

use clap::Parser;
use forebay_bench::cli::{BenchCommand, execute};

/// Load generator that speaks NFSv3 and NFSv4.1 from user space.
#[derive(Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    command: BenchCommand,
}

/// Carries out the command and prints an error to standard error. The exit status is 0 or 1; wrong arguments end with
/// 2.
fn main() -> ExitCode {
    match execute(Cli::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("forebay-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}
