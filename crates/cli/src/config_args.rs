//! The arguments of `forebay config`.

use std::ffi::OsStr;
use std::path::PathBuf;

use clap::builder::{PossibleValue, StringValueParser, TypedValueParser};
use clap::{Arg, Args, Command, Subcommand, ValueHint};
use forebay_config::KEYS;

use crate::args::Target;

/// The configuration file of the package.
const FILE: &str = "/etc/forebay/forebay.toml";

#[derive(Debug, Args)]
#[command(after_help = "\
`set` checks the result before it writes the file, and keeps comments, mode and owner. A list may be written with commas. A \
table that may exist several times is chosen by its name, or by its number from 1.

Examples:
  forebay config show                          # settings in force, with their sources
  forebay config check ./forebay.toml
  forebay config set limits.connections 2048 --reload
  forebay config set export[/data].tls required
  forebay config set export[/data].client[1].networks 192.168.0.0/24,fd00::/8

Exit codes: 0 done, 1 failed, 2 the configuration has mistakes; nothing has changed then.")]
pub(crate) struct ConfigArgs {
    #[command(subcommand)]
    pub(crate) command: ConfigCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Show the settings in force in the running server, or those of a file
    Show {
        /// Configuration file; without it the running server is asked
        #[arg(value_hint = ValueHint::FilePath)]
        file: Option<PathBuf>,
        #[command(flatten)]
        target: Target,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Report every mistake in a configuration file
    Check {
        /// Configuration file
        #[arg(default_value = FILE, value_hint = ValueHint::FilePath)]
        file: PathBuf,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Change one setting in a configuration file
    Set {
        /// Setting, such as mode, limits.connections or export[/data].tls
        #[arg(value_name = "[TABLE.]KEY", value_parser = KeyParser, hide_possible_values = true)]
        key: String,
        /// New value
        value: String,
        /// Configuration file
        #[arg(long, value_name = "FILE", default_value = FILE, value_hint = ValueHint::FilePath)]
        file: PathBuf,
        /// Have the running server read its configuration again
        #[arg(long)]
        reload: bool,
        #[command(flatten)]
        target: Target,
    },
}

/// A parser of names of settings. It accepts every text: the check of the result finds mistakes. Completions offer the
/// names of the settings that exist once.
#[derive(Debug, Clone)]
struct KeyParser;

impl TypedValueParser for KeyParser {
    type Value = String;

    fn parse_ref(&self, command: &Command, arg: Option<&Arg>, value: &OsStr) -> Result<String, clap::Error> {
        StringValueParser::new().parse_ref(command, arg, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(KEYS.iter().map(|key| PossibleValue::new(*key))))
    }
}
