//! The arguments of `forebay volume`.

use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, Subcommand, ValueHint};
use forebay_config::{Mode, check_volume_name, parse_size};

use crate::args::Target;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  forebay volume create scratch --backing /dev/sdx
  forebay volume attach scratch              # makes /dev/ublkb0, or prints how a client gets a device
  forebay volume attach scratch --nbd        # how a client on another host gets a device
  forebay volume list --json
  forebay volume flush scratch               # /dev/sdx has everything then
  forebay volume remove scratch              # /dev/sdx is an ordinary device again")]
pub(crate) struct VolumeArgs {
    #[command(subcommand)]
    pub(crate) command: VolumeCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum VolumeCommand {
    /// Put the cache in front of a block device or file, in service; its data stays as it is
    Create {
        #[command(flatten)]
        name: Name,
        /// Block device or file, or an NBD export (nbd://HOST:PORT/NAME). No other program may use it
        #[arg(long, value_name = "PATH", value_hint = ValueHint::AnyPath)]
        backing: PathBuf,
        /// Mode of the volume: write-back, write-through, write-around or pass-through [default: the server's]
        #[arg(long, value_parser = Mode::from_str)]
        mode: Option<Mode>,
        /// Refuse every change
        #[arg(long)]
        read_only: bool,
        #[command(flatten)]
        common: Common,
    },
    /// Show all volumes
    List {
        #[command(flatten)]
        common: Common,
    },
    /// Show one volume
    Show {
        #[command(flatten)]
        name: Name,
        #[command(flatten)]
        common: Common,
    },
    /// Make a block device of the volume on this host (ublk), which stays until `detach`; without ublk, print the
    /// command that gives a client a device over NBD
    Attach {
        #[command(flatten)]
        name: Name,
        /// Print the command for a client of NBD, and make no device
        #[arg(long)]
        nbd: bool,
        #[command(flatten)]
        common: Common,
    },
    /// End the volume's block device on this host, or print the command that ends a client's device, and make the
    /// backing device equal to the volume
    Detach {
        #[command(flatten)]
        name: Name,
        #[command(flatten)]
        common: Common,
    },
    /// Destage a volume and take it out of service; its backing device is an ordinary device then
    Remove {
        #[command(flatten)]
        name: Name,
        /// Give up data that cannot be written to the backing device
        #[arg(long)]
        give_up: bool,
        #[command(flatten)]
        common: Common,
    },
    /// Take over a larger size of the backing device
    Resize {
        #[command(flatten)]
        name: Name,
        /// New size of a backing file, such as 20GiB; without it, the size that the device has now
        #[arg(value_parser = parse_size)]
        size: Option<u64>,
        #[command(flatten)]
        common: Common,
    },
    /// Show or change how writes reach the backing device, in service
    Mode {
        #[command(flatten)]
        name: Name,
        /// Mode of the volume, or `server` to follow the server's; without it, the mode is shown
        #[arg(value_parser = parse_mode)]
        mode: Option<ModeChoice>,
        #[command(flatten)]
        common: Common,
    },
    /// Make everything written so far durable on the backing device
    Flush {
        #[command(flatten)]
        name: Name,
        #[command(flatten)]
        common: Common,
    },
}

/// A volume's own mode, or none.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ModeChoice(pub(crate) Option<Mode>);

#[derive(Debug, Args)]
pub(crate) struct Name {
    /// Name of the volume
    #[arg(value_parser = parse_name)]
    pub(crate) name: String,
}

#[derive(Debug, Args)]
pub(crate) struct Common {
    #[command(flatten)]
    pub(crate) target: Target,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

fn parse_name(name: &str) -> Result<String, String> {
    check_volume_name(name).map(|()| name.to_owned())
}

/// Parses a mode, or `server` for the mode of the server.
fn parse_mode(text: &str) -> Result<ModeChoice, String> {
    if text == "server" {
        return Ok(ModeChoice(None));
    }
    text.parse().map(|mode| ModeChoice(Some(mode)))
}
