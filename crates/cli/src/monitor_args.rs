//! Arguments of the verbs that show a server's state over time, and that check its host.

use std::path::PathBuf;

use clap::{Args, ValueHint};

use crate::args::Target;
use crate::profile_args::By;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  forebay status
  forebay status --json
  forebay status --prometheus > /var/lib/node_exporter/forebay.prom
  forebay status --state-dir /var/lib/forebay/main")]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    pub(crate) target: Target,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Print the text format of Prometheus, for the textfile collector of its node exporter
    #[arg(long, conflicts_with = "json")]
    pub(crate) prometheus: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
The first line is the mean since the server started, each further one is about its interval. Latencies are means in \
milliseconds; LOOK counts requests that change nothing (GETATTR, LOOKUP, READDIR ...), CHANGE counts requests that change names or \
attributes. Columns that do not fit the terminal (100 characters without one) are left out; --wide shows all. If the server \
restarts, `stat` waits for it. With a cache: RAM% and SSD% are shares of reads through the cache; DIRTY is data that only the cache has. DSTG is destaged data, \
and SPARED is the traffic that the backing store was spared (reads and writes in the cache less their cost), in MiB/s. AMPL is the bytes \
written to the SSDs for each byte to be cached.

With --by, each table is about its interval, busiest first. SEQ% is the share of READs and WRITEs that continue the one before them, \
SYNC% the share of WRITEs with FILE_SYNC or DATA_SYNC. In JSON, counters count in the interval. See `forebay profile --help` for \
the accuracy.

Examples:
  forebay stat                         # one line since the start
  forebay stat 1                       # every second until interrupted
  forebay stat 5 12 --json             # one minute, for a program
  forebay stat --by client 5           # who does how much, every five seconds
  forebay stat --by file 10 --top 20   # the busiest files")]
pub(crate) struct StatArgs {
    /// Seconds between lines; decimals are allowed
    #[arg(value_parser = interval)]
    pub(crate) interval: Option<f64>,
    /// Lines in total
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) count: Option<u64>,
    /// Show a table of the busiest clients, exports, users, files or devices instead
    #[arg(long, value_enum, value_name = "WHAT", conflicts_with = "wide")]
    pub(crate) by: Option<By>,
    /// Rows of such a table, the busiest ones; the rest is summed under `others`
    #[arg(long, value_name = "N", default_value = "10", requires = "by", value_parser = crate::profile_args::top)]
    pub(crate) top: usize,
    /// Show all columns, even if they exceed the width of the terminal
    #[arg(long, short)]
    pub(crate) wide: bool,
    #[command(flatten)]
    pub(crate) target: Target,
    /// Print one JSON object per line
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  forebay top
  forebay top --interval 0.5")]
pub(crate) struct TopArgs {
    /// Seconds between updates
    #[arg(long, value_name = "SECONDS", value_parser = interval, default_value = "1")]
    pub(crate) interval: f64,
    #[command(flatten)]
    pub(crate) target: Target,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  forebay events -n 20
  forebay events --since 2h
  forebay events --since 2026-03-01T08:00
  forebay events --follow
  forebay events --json -n 100")]
pub(crate) struct EventsArgs {
    /// Continue with new events until interrupted
    #[arg(long, short)]
    pub(crate) follow: bool,
    /// Show at most this number of past events, the newest ones
    #[arg(short = 'n', long = "last", value_name = "N")]
    pub(crate) last: Option<usize>,
    /// Show events from this moment on: a date, a date and time, a time of today, or a span such as `90 min ago`
    #[arg(long, value_name = "TIME", value_parser = crate::moment::parse)]
    pub(crate) since: Option<crate::moment::Moment>,
    #[command(flatten)]
    pub(crate) target: Target,
    /// Print one JSON object per line
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Each check is ok, warn or fail, with the reason and the command that corrects it. A line says what --apply does about it,
or why that is left to you. The exit code is 1 if a check fails.

Examples:
  forebay doctor
  forebay doctor /srv/data --listen 0.0.0.0:2049
  forebay doctor /srv/data --apply
  forebay doctor --undo                  # take back what --apply has changed
  forebay doctor --client                # on a client")]
pub(crate) struct DoctorArgs {
    /// Directory that is or will be served [default: the directories of the running server]
    #[arg(value_hint = ValueHint::DirPath)]
    pub(crate) dir: Option<PathBuf>,
    /// Configuration file whose exports, addresses and limits are checked [default: the settings of the running
    /// server, or else /etc/forebay/forebay.toml]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) config: Option<PathBuf>,
    /// Address the server will listen on; may be repeated
    #[arg(long, value_name = "ADDR[:PORT]")]
    pub(crate) listen: Vec<String>,
    /// Make the changes that are safe while the host runs, keep them over its next start where a file in /etc can, and
    /// print them; needs root. Without this flag, nothing is changed
    #[arg(long)]
    pub(crate) apply: bool,
    /// Undo every change that --apply has made, unless somebody else has changed it since; needs root
    #[arg(long, conflicts_with_all = ["apply", "client", "dir", "config", "listen", "json"])]
    pub(crate) undo: bool,
    /// Check this host as a client: its NFS mounts, their read-ahead, frame sizes, and TCP
    #[arg(long, conflicts_with_all = ["dir", "config", "listen"])]
    pub(crate) client: bool,
    #[command(flatten)]
    pub(crate) target: Target,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Parses a number of seconds, from a hundredth to a day.
fn interval(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.01..=86_400.0).contains(seconds));
    seconds.ok_or_else(|| "write a number of seconds from 0.01 to 86400".to_owned())
}
