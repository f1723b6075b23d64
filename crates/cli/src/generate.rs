//! Generates completions and manual pages from the definition of the command line.

use std::io::Write;
use std::path::Path;

use anyhow::Context;
use clap::CommandFactory;

use crate::Exit;
use crate::args::Cli;

/// Prints the completions of a shell.
pub(crate) fn completions(shell: clap_complete::Shell) -> anyhow::Result<Exit> {
    // The script is made in memory first, because the generator panics if its writer fails, for example on a closed
    // pipe.
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "forebay", &mut script);
    std::io::stdout().write_all(&script)?;
    Ok(Exit::Done)
}

/// Prints the manual page, or writes the pages of all verbs to a directory.
pub(crate) fn man(dir: Option<&Path>) -> anyhow::Result<Exit> {
    match dir {
        Some(dir) => clap_mangen::generate_to(Cli::command(), dir)
            .with_context(|| format!("cannot write the manual pages to {}", dir.display()))?,
        None => clap_mangen::Man::new(Cli::command()).render(&mut std::io::stdout())?,
    }
    Ok(Exit::Done)
}
