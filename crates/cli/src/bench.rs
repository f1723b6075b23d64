//! `forebay bench`: the verbs of the load generator and of the emulated array.

use clap::{Args, Subcommand};
use forebay_array::cli::ArrayArgs;
use forebay_bench::cli::BenchCommand;

use crate::Exit;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  forebay bench run --url nfs://127.0.0.1:12049/ seqwrite randread
  forebay bench run --url nfs://127.0.0.1:12049/ randwrite --clients 32 --depth 4 --seconds 10
  forebay bench compare before.json after.json
  forebay bench report before.json after.json -o report.html
  forebay bench array up --model nl-sas-8
  forebay bench array down")]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    command: BenchVerb,
}

#[derive(Debug, Subcommand)]
enum BenchVerb {
    #[command(flatten)]
    Load(BenchCommand),
    /// Emulate an array of spinning disks as a block device with a file system
    Array(ArrayArgs),
}

/// Runs a verb.
pub(crate) fn bench(args: BenchArgs) -> anyhow::Result<Exit> {
    match args.command {
        BenchVerb::Load(command) => forebay_bench::cli::execute(command)?,
        // The array's daemon is this program again, started with these words.
        BenchVerb::Array(args) => forebay_array::cli::run(&args, &["bench", "array"])?,
    }
    Ok(Exit::Done)
}
