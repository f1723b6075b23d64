//! The arguments of `forebay support`.

use std::path::PathBuf;

use clap::{Args, ValueHint};

use crate::args::Target;

#[derive(Debug, Args)]
#[command(after_help = "\
The archive has no contents of files, keys, certificates or tokens. Its README.txt lists what it has. A server that does not \
answer, or a command that this host lacks, is named there, and the rest is collected. Only its owner can read the archive.

Examples:
  forebay support
  forebay support --redact --output /tmp/for-the-vendor.tar.gz")]
pub(crate) struct SupportArgs {
    /// Archive to make [default: forebay-support-HOST-DATE.tar.gz in the current directory]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) output: Option<PathBuf>,
    /// Replace addresses of other hosts, the name of this host, and names of users and of served files by pseudonyms,
    /// which stay the same on this host
    #[arg(long)]
    pub(crate) redact: bool,
    /// Configuration file to describe
    #[arg(long, value_name = "FILE", default_value = "/etc/forebay/forebay.toml", value_hint = ValueHint::FilePath)]
    pub(crate) config: PathBuf,
    #[command(flatten)]
    pub(crate) target: Target,
}
