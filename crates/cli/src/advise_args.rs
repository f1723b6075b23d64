//! Arguments of `forebay advise`.

use clap::Args;

use crate::args::Target;

#[derive(Debug, Args)]
#[command(after_help = "\
The table is an estimate from a sample of the requests: the cache's own policy, simulated at nine sizes of the cache devices. A request \
counts half after an hour. HITS is the part of block reads that memory or the cache devices serve. COALESCING is the number of blocks written \
for each block that is destaged. A size with `no` under FILLED has not evicted anything yet; its ratio may still rise.

Examples:
  forebay advise
  forebay advise --json")]
pub(crate) struct AdviseArgs {
    #[command(flatten)]
    pub(crate) target: Target,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}
