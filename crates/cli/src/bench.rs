//! `forebay bench`: the verbs of the load generator and of the emulated array.

use clap::{Args, Subcommand};
use forebay_array::cli::ArrayArgs;
use forebay_bench::cli::BenchCommand;
use forebay_bench::paper::PaperArgs;

use crate::Exit;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  forebay bench run --url nfs://127.0.0.1:12049/ seqwrite randread
  forebay bench run --url nfs://127.0.0.1:12049/ randwrite --clients 32 --depth 4 --seconds 10
  forebay bench compare before.json after.json
  forebay bench report before.json after.json -o report.html
  forebay bench paper --quick -o report.html
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
    /// Run the published tests on this machine and compare the ratios with the published ones
    Paper(Box<PaperArgs>),
    /// Emulate an array of spinning disks as a block device with a file system
    Array(ArrayArgs),
}

/// The words that lead to the verbs of the emulated array.
const ARRAY: &[&str] = &["bench", "array"];

/// Runs a verb.
pub(crate) fn bench(args: BenchArgs) -> anyhow::Result<Exit> {
    match args.command {
        BenchVerb::Load(command) => forebay_bench::cli::execute(command)?,
        BenchVerb::Paper(args) => forebay_bench::paper::run(&args, ARRAY)?,
        // The array's daemon is this program, started with these words.
        BenchVerb::Array(args) => forebay_array::cli::run(&args, ARRAY)?,
    }
    Ok(Exit::Done)
}
