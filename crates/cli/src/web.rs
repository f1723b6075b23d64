//! `forebay web`.

use clap::Args;
use forebay_config::parse_user;

use crate::args::Target;
use crate::{Exit, control, output};

#[derive(Debug, Args)]
#[command(after_help = "\
The server serves its page if it was started with --http, or has `[http]` in its configuration. Everybody who reaches \
the page may look. A person who opens this URL may also add and remove devices, change the mode, flush and scrub, for twelve hours. \
The URL works once, within two minutes.

Examples:
  forebay web
  xdg-open $(forebay web)
  ssh -L 9049:localhost:9049 root@nas forebay web   # the page of another host, over ssh")]
pub(crate) struct WebArgs {
    #[command(flatten)]
    pub(crate) target: Target,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Prints a URL that opens the page with the rights of an administrator.
pub(crate) fn web(args: &WebArgs) -> anyhow::Result<Exit> {
    let url = control::find(&args.target)?.invite(&administrator())?;
    if args.json {
        output::json(&serde_json::json!({ "url": url }))?;
    } else {
        output::result(&format!("{url}\n"))?;
        output::note("Open it within two minutes. It works once.");
    }
    Ok(Exit::Done)
}

/// Returns the name of the administrator for events: the user who became root by sudo, or this process's user.
fn administrator() -> String {
    let own = rustix::process::geteuid();
    let named = |name: &str| std::env::var(name).ok().filter(|user| !user.is_empty() && user.len() <= 64);
    let root = || own.is_root().then(|| "root".to_owned());
    let claimed = named("SUDO_USER").or_else(|| named("USER")).or_else(root);
    let name: String = claimed.unwrap_or_default().chars().filter(|one| !one.is_control()).collect();
    match parse_user(&name) == Ok(own.as_raw()) {
        true => name,
        false if name.is_empty() => format!("user {}", own.as_raw()),
        false => format!("{name} (user {})", own.as_raw()),
    }
}
