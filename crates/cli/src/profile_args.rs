//! Arguments of `forebay profile`, and the choice of what to count by.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum, ValueHint};

use crate::args::Target;

/// The meaning of the rows of `forebay stat --by`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum By {
    /// Addresses of clients
    Client,
    /// Exports
    Export,
    /// Users as whom the server acts
    User,
    /// Files and directories
    File,
    /// Cache devices
    Device,
}

/// The meaning of the rows of a profile.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ProfileBy {
    /// Addresses of clients
    Client,
    /// Exports
    Export,
    /// Users as whom the server acts
    User,
    /// Files and directories
    File,
    /// Directories, each with the sum of the busiest files in it
    Directory,
}

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
#[command(after_help = "\
The profile counts since the server started, or since `forebay profile reset`. It is always on, unless the configuration has \
`profile = false`. Clients, exports and users are counted exactly, the busiest 512 at least of each; the rest is summed. \
Files are counted exactly while the server is not busy, and by a sample of one operation in 16 otherwise. A READ or WRITE is \
sequential if it begins near the end of the one before it, of the same client in the same file. The working set is \
the distinct data that clients read or wrote in an hour.

Examples:
  forebay profile
  forebay profile --by file --top 20
  forebay profile --html profile.html
  forebay profile reset                # forget everything so far, for example before a batch job")]
pub(crate) struct ProfileArgs {
    #[command(subcommand)]
    pub(crate) command: Option<ProfileCommand>,
    /// List only these; without it, the busiest of each
    #[arg(long, value_enum, value_name = "WHAT")]
    pub(crate) by: Option<ProfileBy>,
    /// Rows of each list, the busiest ones
    #[arg(long, value_name = "N", default_value = "10", value_parser = top)]
    pub(crate) top: usize,
    /// Write the report as an HTML page to this file
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, conflicts_with = "json")]
    pub(crate) html: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) target: Target,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ProfileCommand {
    /// Forget everything that was counted so far
    Reset(ResetArgs),
    /// Record a trace of all operations, for `forebay bench replay`
    ///
    /// The trace has kinds, times, offsets and lengths. It has no data, no names, no addresses and no users: clients
    /// and files are numbers.
    Record(RecordArgs),
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  forebay profile record day.trace --seconds 600
  forebay bench replay day.trace --url nfs://other-server/scratch")]
pub(crate) struct RecordArgs {
    /// File for the trace; an existing file is overwritten
    #[arg(value_hint = ValueHint::FilePath)]
    pub(crate) file: PathBuf,
    /// Seconds to record [default: until interrupted]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) seconds: Option<u64>,
    #[command(flatten)]
    pub(crate) target: Target,
}

#[derive(Debug, Args)]
pub(crate) struct ResetArgs {
    #[command(flatten)]
    pub(crate) target: Target,
}

/// Parses a number of rows.
pub(crate) fn top(text: &str) -> Result<usize, String> {
    let most = forebay_control::MOST_ACTIVE;
    let number = text.parse().ok().filter(|number| (1..=most).contains(number));
    number.ok_or_else(|| format!("write a whole number from 1 to {most}"))
}
