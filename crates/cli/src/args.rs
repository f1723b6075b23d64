//! The command line: the list of verbs, and the arguments that several verbs share. `*_args.rs` have the flags of each
//! verb. Help, manual pages and completions are generated from these definitions.

use std::ffi::OsString;
use std::fmt::Display;
use std::path::PathBuf;
use std::str::FromStr;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Parser, Subcommand, ValueHint};
use forebay_config::parse_http;

use crate::bench::BenchArgs;
use crate::control_args::{FlushArgs, ModeArgs, PoolArgs, ReloadArgs};
use crate::data_args::{AdoptArgs, InvalidateArgs, LostArgs, PathArgs, WarmArgs};
use crate::monitor_args::{DoctorArgs, EventsArgs, StatArgs, StatusArgs, TopArgs};
use crate::policy_args::PolicyArgs;
use crate::serve_args::ServeArgs;
use crate::volume_args::VolumeArgs;
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
    /// Serve a directory, or the exports of a configuration file, over NFSv4 and NFSv3
    Serve(Box<ServeArgs>),
    /// Show or change the pool of cache devices
    Pool(PoolArgs),
    /// Show or change block volumes: the cache in front of a block device or file
    Volume(VolumeArgs),
    /// Show or change how writes reach the backing store, in service
    Mode(ModeArgs),
    /// Make everything written so far durable on the backing store
    Flush(FlushArgs),
    /// Read the configuration again; what can change in service changes, and the differences are printed
    Reload(ReloadArgs),
    /// Show, check or change the configuration
    Config(crate::config_args::ConfigArgs),
    /// Show or change what is cached how: what stays cached, what leaves first, what never is, and the way of streams
    Policy(PolicyArgs),
    /// Show how much is cached of a file, or of all files below a directory
    Cached(PathArgs),
    /// Bring files into the cache before clients ask for them
    Warm(WarmArgs),
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
    /// Show what applications do: operations, request sizes, sequential or random, working sets, by client and file
    Profile(crate::profile_args::ProfileArgs),
    /// Show events: failed syncs, refused clients, changes of mode
    Events(EventsArgs),
    /// Estimate what another size of the cache or of memory would bring, and name the change that would bring most
    Advise(crate::advise_args::AdviseArgs),
    /// Test the notifications of events
    Notify(crate::notify::NotifyArgs),
    /// Print a URL that opens the server's page with the rights of an administrator
    Web(WebArgs),
    /// Measure NFS servers, or emulate slow disk arrays to measure servers on
    Bench(Box<BenchArgs>),
    /// Check this host against good practice
    Doctor(DoctorArgs),
    /// Collect what a person needs to understand a problem of this server in one archive
    Support(crate::support_args::SupportArgs),
    /// Print the completions of a shell
    Completions(CompletionsArgs),
    /// Print the manual page, or write the pages of all verbs to a directory
    Man(ManArgs),
    /// Write what the unit of each configuration requires and what it may not see; systemd calls this at a boot
    #[command(hide = true)]
    UnitDropIns(UnitDropInsArgs),
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
  forebay unit-drop-ins /run/systemd/generator")]
pub(crate) struct UnitDropInsArgs {
    /// Directory for the units' additions
    #[arg(value_hint = ValueHint::DirPath)]
    pub(crate) dir: PathBuf,
    /// Directory of the configurations
    #[arg(long, value_name = "DIR", default_value = "/etc/forebay", value_hint = ValueHint::DirPath)]
    pub(crate) config_dir: PathBuf,
    /// Directory of the units' state directories
    #[arg(long, value_name = "DIR", default_value = forebay_config::STATE_BASE_OF_ROOT, value_hint = ValueHint::DirPath)]
    pub(crate) state_base: PathBuf,
}

/// Returns the words of a command line with `--http ADDR` as `--http=ADDR`. Clap takes a value of this flag after `=`
/// only, because the flag may have none: in `--http DIR` the word is the directory.
pub(crate) fn with_http_joined(words: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut joined: Vec<OsString> = Vec::new();
    for word in words {
        match joined.last_mut() {
            Some(flag) if flag == "--http" && word.to_str().is_some_and(is_like_address) => {
                flag.push("=");
                flag.push(word);
            }
            _ => joined.push(word),
        }
    }
    joined
}

/// Returns true for an address, also with the name of a host, which the flag then refuses with a reason.
fn is_like_address(word: &str) -> bool {
    let has_port = || {
        word.rsplit_once(':').is_some_and(|(host, port)| !host.contains('/') && port.parse::<u16>().is_ok())
    };
    parse_http(word).is_ok() || has_port()
}

/// Returns a parser for values with fixed names.
pub(crate) fn one_of<T>(all: &'static [T]) -> impl TypedValueParser<Value = T>
where
    T: Copy + Display + FromStr<Err = String> + Send + Sync + 'static,
{
    PossibleValuesParser::new(all.iter().map(ToString::to_string)).try_map(|name| name.parse::<T>())
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
    fn the_address_of_http_may_follow_a_space() {
        let joined = |line: &str| {
            let words = super::with_http_joined(line.split(' ').map(Into::into));
            words.iter().map(|word| word.to_str().unwrap()).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(joined("forebay serve D --http 127.0.0.1:9"), "forebay serve D --http=127.0.0.1:9");
        assert_eq!(
            joined("forebay serve D --http [::1] --cache C"),
            "forebay serve D --http=[::1] --cache C"
        );
        assert_eq!(joined("forebay serve D --http nas:9049"), "forebay serve D --http=nas:9049");
        for line in ["forebay serve --http D", "forebay serve --http ./1.2.3.4", "forebay serve D --http"] {
            assert_eq!(joined(line), line);
        }
        let parsed = Cli::try_parse_from(super::with_http_joined(
            ["forebay", "serve", "D", "--http", "127.0.0.1:9049"].map(Into::into),
        ));
        assert!(parsed.is_ok(), "{}", parsed.unwrap_err());
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
            "stat --by client 1 5 --top 3 --json",
            "profile --by directory --json",
            "profile --html F --top 5",
            "profile reset",
            "profile record F --seconds 5",
            "bench replay F --url nfs://h/e --fast -d 8",
            "top",
            "events --follow --json -n 5",
            "cached P --json",
            "invalidate P",
            "policy set P --cache pin --streams past --json",
            "policy set P --dirty-time 30s",
            "policy set P --cache-min 1GiB --cache-max 2GiB",
            "warm P --json",
            "warm --from-profile --state-dir D",
            "policy show",
            "policy show P --state-dir D",
            "policy unset P",
            "notify test --target N --state-dir D --json",
            "lost list --json",
            "lost show ID",
            "lost restore ID P --over",
            "lost drop ID --state-dir D",
            "adopt D --same",
            "advise --json --state-dir D",
            "doctor --apply",
            "config show --json",
            "config check F",
            "config set limits.connections 5 --file F --reload",
            "support --output F --redact",
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
            "warm",
            "warm P --from-profile",
            "policy set P",
            "policy set P --cache all",
            "policy set P --dirty-time 0",
            "stat 0",
            "stat 1 0",
            "stat x",
            "stat --by colour",
            "stat --top 3",
            "profile --json --html F",
            "profile --top 0",
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
