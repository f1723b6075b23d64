//! `forebay adopt`: accepts another file system at a served directory.

use anyhow::{Context, bail};
use forebay_config::{instance_name, state_base};

use crate::data_args::AdoptArgs;
use crate::{Exit, output};

/// Runs `forebay adopt`.
pub(crate) fn adopt(args: &AdoptArgs) -> anyhow::Result<Exit> {
    let path =
        std::fs::canonicalize(&args.dir).with_context(|| format!("cannot look at {}", args.dir.display()))?;
    if !path.is_dir() {
        bail!("{} is not a directory; name one that the server is to serve", path.display());
    }
    let state_dir = match &args.state_dir {
        Some(dir) => dir.clone(),
        None => state_base()
            .context("neither HOME nor XDG_STATE_HOME is set; name the server with --state-dir")?
            .join(instance_name(&[&path])),
    };
    if !state_dir.join("handle.key").exists() {
        bail!(
            "{} is not the state directory of a server; name the server's state directory with --state-dir",
            state_dir.display()
        );
    }
    let there = forebay_server::adopt(&state_dir, &path, args.same)
        .with_context(|| format!("cannot record the file system in {}", state_dir.display()))?;
    let rest = if args.same {
        "writes to it what the cache holds"
    } else {
        "sets aside what the cache holds for another one"
    };
    output::note(&format!("The next start serves {there} at {}, and {rest}.", path.display()));
    Ok(Exit::Done)
}
