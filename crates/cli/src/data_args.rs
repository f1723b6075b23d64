//! Arguments of the verbs about files: their cached data, data that was set aside, and adopted file systems.

use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::{Args, Subcommand, ValueHint};

use crate::args::Target;

/// Returns the absolute path of a device, or the URL of an NBD export as it is.
pub(crate) fn device(path: PathBuf) -> std::io::Result<PathBuf> {
    if forebay_config::NbdUrl::is_meant(&path) { Ok(path) } else { std::path::absolute(path) }
}

/// Returns the absolute form of a path. The server resolves symbolic links: if the file system does not answer, the
/// server gives up, but a process that has asked the file system cannot even be killed.
pub(crate) fn absolute(path: &Path) -> anyhow::Result<PathBuf> {
    std::path::absolute(path).with_context(|| format!("cannot look at {}", path.display()))
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
Files are read from the directory to the cache devices, as long as these have unused space. Nothing else has to leave the \
cache, unless the files are pinned or of high priority (`forebay policy`). While clients read and write, half of the time is left \
to them. Ctrl-C ends the warming; what was brought stays.

Examples:
  forebay warm /srv/data/results
  forebay warm --from-profile            # the files that clients usually read")]
#[group(id = "chosen", required = true, multiple = false, args = ["path", "from_profile"])]
pub(crate) struct WarmArgs {
    /// File or directory in a served directory, as this host names it
    #[arg(value_hint = ValueHint::AnyPath)]
    pub(crate) path: Option<PathBuf>,
    /// Bring the files that clients usually read, the most read ones first; a restart does not forget them
    #[arg(long)]
    from_profile: bool,
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
