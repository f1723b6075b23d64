//! `forebay adopt`: accepts another file system at a served directory.

use anyhow::{Context, bail};
use forebay_config::{instance_name, state_base};

use crate::data_args::AdoptArgs;
use crate::{Exit, output};

/// Runs `forebay adopt`.
pub(crate) fn adopt(args: &AdoptArgs) -> anyhow::Result<Exit> {
    let path = forebay_server::real_directory(&args.dir).map_err(anyhow::Error::msg)?;
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
    let adopted = forebay_server::adopt(&state_dir, &path, args.same).map_err(anyhow::Error::msg)?;
    let rest = if args.same {
        "writes to it what the cache holds"
    } else {
        "sets aside what the cache holds for another one"
    };
    let (path, there) = (path.display(), adopted.described);
    if !adopted.is_known {
        output::note(&format!(
            "Note: this server has not exported {path} yet, unless the export has an `id` in the configuration. A directory \
             that the next start does not export is not served, and this command then has no effect."
        ));
    }
    output::note(&format!("The next start serves {there} at {path}, and {rest}."));
    Ok(Exit::Done)
}
