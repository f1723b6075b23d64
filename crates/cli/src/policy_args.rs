//! The arguments of `forebay policy`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueHint};
use forebay_config::{DirtyTime, Keep, Mode, Policy, Priority, ShareSize, Streams};

use crate::args::{Target, one_of};

#[derive(Debug, Args)]
#[command(after_help = "\
A rule holds for a file, or for a directory and everything below it. Of several rules, the nearest with the part in question \
counts. A rule follows its directory when that is renamed, and survives restarts of the server. `policy` in [[export]] makes a \
rule for a whole export.

Examples:
  forebay policy set /srv/data/reference --cache pin      # stays cached
  forebay policy set /srv/data/scratch --cache never      # written through the log, then dropped
  forebay policy set /srv/data/backups --priority low     # leaves the cache before other data does
  forebay policy set /srv/data/logs --mode write-around   # written past the cache
  forebay policy set /srv/data/media --streams cache      # large files are cached as small ones are
  forebay policy set /srv/data/results --dirty-time 1s    # written to the directory after a second
  forebay policy set /srv/data/build --dirty-time 30m     # what is removed before then never reaches the directory
  forebay policy set /srv/data/home --cache-min 50GiB     # others cannot take this much of the cache
  forebay policy set /srv/data/archive --cache-max 20GiB  # it takes no more of the cache
  forebay policy show
  forebay policy show /srv/data/reference/genome.fa --json
  forebay policy unset /srv/data/scratch")]
pub(crate) struct PolicyArgs {
    #[command(subcommand)]
    pub(crate) command: PolicyCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum PolicyCommand {
    /// Set what is cached how for a file, or for a directory and everything below it
    Set {
        /// File or directory in a served directory, as this host names it
        #[arg(value_hint = ValueHint::AnyPath)]
        path: PathBuf,
        #[command(flatten)]
        rule: RuleArgs,
        #[command(flatten)]
        common: Common,
    },
    /// Show all rules, or what holds for a path and why
    Show {
        /// File or directory in a served directory, as this host names it
        #[arg(value_hint = ValueHint::AnyPath)]
        path: Option<PathBuf>,
        #[command(flatten)]
        common: Common,
    },
    /// Remove the rule for a file or directory, which need not exist any more
    Unset {
        /// File or directory in a served directory, as this host names it
        #[arg(value_hint = ValueHint::AnyPath)]
        path: PathBuf,
        #[command(flatten)]
        common: Common,
    },
}

/// The parts of a rule.
#[derive(Debug, Args)]
#[group(required = true, multiple = true)]
pub(crate) struct RuleArgs {
    /// Keep data that is used (normal), keep all data once it is cached (pin), or keep none (never)
    #[arg(long, value_name = "RULE", value_parser = one_of(Keep::ALL))]
    cache: Option<Keep>,
    /// When the cache devices need room, keep this data longer than other data that is used as much, or not as long
    #[arg(long, value_parser = one_of(Priority::ALL))]
    priority: Option<Priority>,
    /// Long sequential reads and writes go past the cache where the directory is as fast (past), or are cached (cache)
    #[arg(long, value_name = "WAY", value_parser = one_of(Streams::ALL))]
    streams: Option<Streams>,
    /// How writes reach the directory, unless the server or a rule above uses the cache less
    #[arg(long, value_parser = one_of(Mode::ALL))]
    mode: Option<Mode>,
    /// Write data to the directory about this long after a client wrote it, such as 30s; earlier while much is dirty
    #[arg(long, value_name = "TIME")]
    dirty_time: Option<DirtyTime>,
    /// Keep at least this much of it on the cache devices against other data, once it is cached, such as 50GiB
    #[arg(long, value_name = "SIZE")]
    cache_min: Option<ShareSize>,
    /// Keep at most this much of it on the cache devices, besides dirty data
    #[arg(long, value_name = "SIZE")]
    cache_max: Option<ShareSize>,
}

impl RuleArgs {
    /// Returns the rule.
    pub(crate) fn rule(&self) -> Policy {
        let RuleArgs { cache, priority, streams, mode, dirty_time, cache_min, cache_max } = *self;
        Policy { cache, priority, streams, mode, dirty_time, cache_min, cache_max }
    }
}

#[derive(Debug, Args)]
pub(crate) struct Common {
    #[command(flatten)]
    pub(crate) target: Target,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}
