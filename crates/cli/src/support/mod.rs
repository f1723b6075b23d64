//! `forebay support`: one archive with what a person needs to understand a problem of a server.

mod archive;
mod collect;
mod host;
mod redact;
mod run;

use std::io::{IsTerminal, Write};
use std::path::PathBuf;

use anyhow::Context;

use crate::support_args::SupportArgs;
use crate::{Exit, output};

/// A file of the archive, or the reason why it is missing.
pub(crate) struct Piece {
    /// Name in the archive.
    name: &'static str,
    /// Subject of the file, for README.txt.
    about: &'static str,
    /// The contents, or one sentence.
    text: Result<String, String>,
}

impl Piece {
    fn new(name: &'static str, about: &'static str, text: Result<String, String>) -> Self {
        Piece { name, about, text }
    }
}

/// Runs `forebay support`.
pub(crate) fn support(args: &SupportArgs) -> anyhow::Result<Exit> {
    let name = default_name();
    let path = args.output.clone().unwrap_or_else(|| PathBuf::from(format!("{name}.tar.gz")));
    // The archive is made first: a path that cannot be written ends the command before it works for a minute.
    let file = archive::create(&path)
        .with_context(|| format!("cannot make the archive {}; name another with --output", path.display()))?;
    let terminal = std::io::stderr().is_terminal();
    let mut step = |what: &str| {
        if terminal {
            let _ = write!(std::io::stderr(), "\r\x1b[Kcollecting {what}");
        }
    };
    let mut pieces = collect::collect(args, &mut step);
    let redactor = args.redact.then(|| redact::Redactor::new(&pieces, args));
    if let Some(redactor) = &redactor {
        step("nothing more: replacing names");
        for piece in &mut pieces {
            piece.text = match &piece.text {
                Ok(text) => Ok(redactor.redact(text)),
                Err(reason) => Err(redactor.redact(reason)),
            };
        }
    }
    if terminal {
        let _ = write!(std::io::stderr(), "\r\x1b[K");
    }
    let folder = if args.redact { "forebay-support".to_owned() } else { name };
    archive::write(file, &folder, &pieces, redactor.as_ref())
        .with_context(|| format!("cannot write the archive {}", path.display()))?;
    for piece in &pieces {
        if let Err(reason) = &piece.text {
            output::note(&format!("Missing: {} ({reason}).", piece.name));
        }
    }
    output::result(&format!("{}\n", path.display()))?;
    Ok(Exit::Done)
}

/// Returns the name of the archive without its ending: with this host and the date.
fn default_name() -> String {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let host: String = host.chars().filter(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '.')).collect();
    let now = jiff::Zoned::now().strftime("%Y%m%d-%H%M%S").to_string();
    format!("forebay-support-{host}-{now}")
}
