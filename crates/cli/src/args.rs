//! The command line: the definition of every verb and flag. Help, manual pages and completions are generated from it.

use std::fmt::Display;
use std::path::PathBuf;
use std::str::FromStr;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Parser, Subcommand, ValueHint};
use forebay_config::Mode;

use crate::bench::BenchArgs;
use crate::serve_args::ServeArgs;
use crate::web::WebArgs;

/// An NFS server for directories on slow storage.
#[derive(Debug, Parser)]
#[command(
    name = "forebay",
    version,
    max_term_width = 110,
    subcommand_required = true,
    arg_required_else_help = true
)]
#[command(after_help = "\
Examples:
  forebay serve ./data                 # serve a directory to this host
  forebay status                       # state of the running server
  forebay stat 1                       # columns every second, as iostat does
  forebay doctor ./data                # check the setup of this host

Exit codes: 0 done, 1 failed, 2 usage or configuration. Results go to stdout, all other output to stderr.")]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Serve a directory, or the exports of a configuration file, over NFSv3
    Serve(Box<ServeArgs>),
    /// Show or change the pool of cache devices
    Pool(PoolArgs),
    /// Show or change how writes reach the backing store, in service
    Mode(ModeArgs),
    /// Make everything written so far durable on the backing store
    Flush(FlushArgs),
    /// Read the configuration again: rules for clients, log level and mode change in service
    Reload(ReloadArgs),
    /// Show how much is cached of a file, or of all files below a directory
    Cached(PathArgs),
    /// Drop the cached data of a file, or of all files below a directory, after destaging it
    Invalidate(InvalidateArgs),
    /// Show, restore or drop data that was set aside because its file no longer exists
    Lost(LostArgs),
    /// Accept another file system at a served directory, from the next start on
    Adopt(AdoptArgs),
    /// Show health, exports, clients and counters on one screen
    Status(StatusArgs),
    /// Show rates in columns over time, as iostat and vmstat do
    Stat(StatArgs),
    /// Show rates, latencies and clients live; `q` quits
    Top(TopArgs),
    /// Show events: failed syncs, refused clients, changes of mode
    Events(EventsArgs),
    /// Print a URL that opens the server's page with the rights of an administrator
    Web(WebArgs),
    /// Measure NFS servers, or emulate slow disk arrays to measure servers on
    Bench(Box<BenchArgs>),
    /// Check this host against good practice
    Doctor(DoctorArgs),
    /// Print the completions of a shell
    Completions(CompletionsArgs),
    /// Print the manual page, or write the pages of all verbs to a directory
    Man(ManArgs),
    /// Write the mounts that the unit of each configuration requires; systemd calls this at a boot
    #[command(hide = true)]
    RequiredMounts(RequiredMountsArgs),
}

/// The running server that a verb asks.
#[derive(Debug, Args)]
pub(crate) struct Target {
    /// State directory of the server [default: the newest running server of this user]
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) state_dir: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  forebay pool status --json
  forebay pool add /dev/nvme1n1
  forebay pool remove /dev/nvme0n1 --wait
  forebay pool scrub --wait")]
pub(crate) struct PoolArgs {
    #[command(subcommand)]
    pub(crate) command: PoolCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum PoolCommand {
    /// Show the devices and their contents
    Status {
        #[command(flatten)]
        target: Target,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Add a device in service
    Add {
        /// Block device or file; a file of `--cache-size` is made if nothing exists at the path
        #[arg(value_hint = ValueHint::AnyPath)]
        path: PathBuf,
        /// Add the device even if it holds data
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        target: Target,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Remove a device in service, after the data that only this device holds has been copied
    Remove {
        /// Block device or file, as `pool status` shows it
        #[arg(value_hint = ValueHint::AnyPath)]
        path: PathBuf,
        /// Wait until the device may be unplugged; without it, `pool status` shows the progress
        #[arg(long)]
        wait: bool,
        #[command(flatten)]
        target: Target,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Read every copy of every cached block; repair or drop bad copies
    Scrub {
        /// Wait until the scrub has ended; without it, `pool status` shows the progress
        #[arg(long)]
        wait: bool,
        #[command(flatten)]
        target: Target,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  forebay mode
  forebay mode write-through            # dirty data is destaged as before")]
pub(crate) struct ModeArgs {
    /// New mode; without it the mode is shown
    #[arg(value_name = "MODE", value_parser = one_of(Mode::ALL))]
    pub(crate) mode: Option<Mode>,
    #[command(flatten)]
    pub(crate) target: Target,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  forebay flush --wait && echo 'the directory is complete without forebay'
  forebay flush                         # start; `forebay status` shows the remaining dirty data")]
pub(crate) struct FlushArgs {
    /// Wait for the end and show the progress; without it, the flush runs in the background and ends with an event
    #[arg(long)]
    pub(crate) wait: bool,
    #[command(flatten)]
    pub(crate) target: Target,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
A configuration with mistakes changes nothing: each mistake is printed, and the exit code is 2. Other changed settings take \
effect at the next start, and are printed. SIGHUP also reads the configuration again, and reports the result as an event.

Examples:
  forebay reload
  forebay reload --state-dir /var/lib/forebay/main --json")]
pub(crate) struct ReloadArgs {
    #[command(flatten)]
    pub(crate) target: Target,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  forebay cached /srv/data/results
  forebay cached /srv/data/results/run7.h5 --json")]
pub(crate) struct PathArgs {
    /// File or directory in a served directory, as this host names it
    #[arg(value_hint = ValueHint::AnyPath)]
    pub(crate) path: PathBuf,
    #[command(flatten)]
    pub(crate) target: Target,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Dirty data is first written to the directory, so nothing is lost. Cached names and attributes are dropped as well. Use this \
after changing files in the served directory directly, to be sure that clients see the changes.

Examples:
  forebay invalidate /srv/data/results/run7.h5
  forebay invalidate /srv/data           # everything: the cache is cold afterwards")]
pub(crate) struct InvalidateArgs {
    #[command(flatten)]
    pub(crate) of: PathArgs,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Dirty data whose file no longer exists is set aside in the state directory, unless a client removed the file. \
Dirty data for a file system that `forebay adopt` gave up is set aside as well. These verbs work with or without a running \
server.

Examples:
  forebay lost list --json
  forebay lost show 3f9c
  forebay lost restore 3f9c /srv/data/recovered.bin
  forebay lost drop 3f9c")]
pub(crate) struct LostArgs {
    #[command(subcommand)]
    pub(crate) command: LostCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum LostCommand {
    /// List the data that was set aside, oldest first
    List {
        #[command(flatten)]
        target: Target,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Show one entry: its last path, its ranges, and when and why it was set aside
    Show {
        /// Id as `lost list` shows it; its beginning is enough
        id: String,
        #[command(flatten)]
        target: Target,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Copy data that was set aside to a new file, which only its owner may read
    Restore {
        /// Id as `lost list` shows it; its beginning is enough
        id: String,
        /// File to make
        #[arg(value_hint = ValueHint::FilePath)]
        path: PathBuf,
        /// Write the ranges over an existing file; other parts of the file stay
        #[arg(long)]
        over: bool,
        #[command(flatten)]
        target: Target,
    },
    /// Remove data that was set aside permanently
    Drop {
        /// Id as `lost list` shows it; its beginning is enough
        id: String,
        #[command(flatten)]
        target: Target,
    },
}

#[derive(Debug, Args)]
#[command(after_help = "\
A server does not start if it finds another file system at DIR than before, because its cache holds data of that one. \
Mount the former file system and start the server. Use `adopt` only if that file system no longer exists or was replaced on purpose. The next start \
then serves the present file system and sets aside the cached data of the former one (`forebay lost list`). File handles that clients \
already have become stale.

Examples:
  forebay adopt /srv/data --state-dir /var/lib/forebay/main
  forebay adopt /srv/data --same         # a copy that replaces the original; it gets the cached data as well")]
pub(crate) struct AdoptArgs {
    /// Served directory
    #[arg(value_hint = ValueHint::DirPath)]
    pub(crate) dir: PathBuf,
    /// The file system is the former one, although it looks different: write the cached data to it
    #[arg(long)]
    pub(crate) same: bool,
    /// State directory of the server [default: that of a server of this directory alone]
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) state_dir: Option<PathBuf>,
}

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

Examples:
  forebay stat                         # one line since the start
  forebay stat 1                       # every second until interrupted
  forebay stat 5 12 --json             # one minute, for a program")]
pub(crate) struct StatArgs {
    /// Seconds between lines; decimals are allowed
    #[arg(value_parser = interval)]
    pub(crate) interval: Option<f64>,
    /// Lines in total
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) count: Option<u64>,
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
Each check is ok, warn or fail, with the reason and the command that corrects it. The exit code is 1 if a check fails.

Examples:
  forebay doctor
  forebay doctor /srv/data --listen 0.0.0.0:2049
  forebay doctor /srv/data --apply")]
pub(crate) struct DoctorArgs {
    /// Directory that is or will be served [default: the directories of the running server]
    #[arg(value_hint = ValueHint::DirPath)]
    pub(crate) dir: Option<PathBuf>,
    /// Configuration file whose exports and addresses are checked
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) config: Option<PathBuf>,
    /// Address the server will listen on; may be repeated
    #[arg(long, value_name = "ADDR[:PORT]")]
    pub(crate) listen: Vec<String>,
    /// Change settings that are safe to change while the host runs, until its next start, and print the changes;
    /// needs root
    #[arg(long)]
    pub(crate) apply: bool,
    #[command(flatten)]
    pub(crate) target: Target,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  forebay completions bash > /etc/bash_completion.d/forebay
  forebay completions zsh > ~/.zfunc/_forebay")]
pub(crate) struct CompletionsArgs {
    /// Shell
    pub(crate) shell: clap_complete::Shell,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  forebay man | man -l -
  forebay man /usr/local/share/man/man1")]
pub(crate) struct ManArgs {
    /// Existing directory for the pages of all verbs
    #[arg(value_hint = ValueHint::DirPath)]
    pub(crate) dir: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  forebay required-mounts /run/systemd/generator")]
pub(crate) struct RequiredMountsArgs {
    /// Directory for the units' additions
    #[arg(value_hint = ValueHint::DirPath)]
    pub(crate) dir: PathBuf,
    /// Directory of the configurations
    #[arg(long, value_name = "DIR", default_value = "/etc/forebay", value_hint = ValueHint::DirPath)]
    pub(crate) config_dir: PathBuf,
}

/// Returns a parser for values with fixed names.
pub(crate) fn one_of<T>(all: &'static [T]) -> impl TypedValueParser<Value = T>
where
    T: Copy + Display + FromStr<Err = String> + Send + Sync + 'static,
{
    PossibleValuesParser::new(all.iter().map(ToString::to_string)).try_map(|name| name.parse::<T>())
}

fn interval(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.01..=86_400.0).contains(seconds));
    seconds.ok_or_else(|| "write a number of seconds from 0.01 to 86400".to_owned())
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    use super::Cli;

    #[test]
    fn the_definitions_are_consistent() {
        Cli::command().debug_assert();
    }

    /// Returns the commands in a help text, from `forebay` to a comment, a pipe, a redirection or a second command.
    fn examples(help: &str) -> Vec<Vec<&str>> {
        let lines = help
            .lines()
            .filter_map(|line| line.strip_prefix("  "))
            .filter(|line| line.starts_with("forebay "));
        lines
            .map(|line| line.split(['#', '|', '>', '&']).next().unwrap_or(line).split_whitespace().collect())
            .collect()
    }

    #[test]
    fn every_example_of_the_help_parses() {
        let root = Cli::command();
        let helps = std::iter::once(&root).chain(root.get_subcommands());
        for command in helps {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            let examples = examples(&help);
            assert!(
                !examples.is_empty() || command.get_name() == "help",
                "{} has no example",
                command.get_name()
            );
            for example in examples {
                let parsed = Cli::try_parse_from(&example);
                assert!(parsed.is_ok(), "{}: {}", example.join(" "), parsed.unwrap_err());
            }
        }
    }

    #[test]
    fn the_contract_of_the_command_line_holds() {
        let good = [
            "serve DIR --cache A --cache B --cache-size 1GiB --mode write-back --listen 1.2.3.4:5 --export /N --config F --state-dir D",
            "serve --config F --check-config",
            "serve DIR --portmap --read-only",
            "serve DIR --portmap=register --worker-queue 5 --busy-poll 0",
            "pool status --json",
            "pool add P",
            "pool remove P --wait",
            "pool scrub --wait --json",
            "mode",
            "mode write-through",
            "flush",
            "flush --wait",
            "status --json",
            "stat 1 5 --json",
            "top",
            "events --follow --json -n 5",
            "cached P --json",
            "invalidate P",
            "lost list --json",
            "lost show ID",
            "lost restore ID P --over",
            "lost drop ID --state-dir D",
            "adopt D --same",
            "doctor --apply",
            "bench array status",
        ];
        for line in good {
            let words = std::iter::once("forebay").chain(line.split(' '));
            let parsed = Cli::try_parse_from(words);
            assert!(parsed.is_ok(), "{line}: {}", parsed.unwrap_err());
        }
        let bad = [
            "",
            "serve",
            "pool",
            "pool remove",
            "cached",
            "invalidate",
            "lost",
            "lost drop",
            "adopt",
            "mode fast",
            "stat 0",
            "stat 1 0",
            "stat x",
            "events -n x",
            "serve D --anonuid -1",
            "serve D --anonuid 4294967295",
            "serve D --squash some",
            "serve D --cache-size big",
            "frobnicate",
        ];
        for line in bad {
            let words = std::iter::once("forebay").chain(line.split_whitespace());
            assert_eq!(Cli::try_parse_from(words).unwrap_err().exit_code(), 2, "{line}");
        }
    }
}
