//! Arguments of the verbs that change a running server: its pool, its mode, and its dirty data.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueHint};
use forebay_config::Mode;

use crate::args::{Target, one_of};

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
        /// Block device, file, or NBD export (nbd://HOST:PORT/NAME); a file of `--cache-size` is made if nothing
        /// exists at the path
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
