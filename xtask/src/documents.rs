//! Checks of the documents: links lead somewhere, and the `cargo x` commands they name exist.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use clap::CommandFactory;

use crate::{Cli, process::root, suites::Counts};

/// Checks every Markdown file of the root and of `docs/`; each file is one case.
pub(crate) fn check() -> Result<Counts> {
    let mut counts = Counts::default();
    for path in documents()? {
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let problems: Vec<_> = dead_links(&path, &text).into_iter().chain(unknown_verbs(&text)).collect();
        for problem in &problems {
            println!("FAILED {}: {problem}", path.strip_prefix(root()).unwrap_or(&path).display());
        }
        if problems.is_empty() {
            counts.passed += 1;
        } else {
            counts.failed += 1;
        }
    }
    Ok(counts)
}

fn documents() -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for directory in [root().to_owned(), root().join("docs")] {
        if directory.is_dir() {
            for entry in fs::read_dir(directory)? {
                found.push(entry?.path());
            }
        }
    }
    found.retain(|path| path.extension().is_some_and(|extension| extension == "md"));
    found.sort();
    Ok(found)
}

/// Relative links `](target)` to files that do not exist.
fn dead_links(document: &Path, text: &str) -> Vec<String> {
    text.split("](")
        .skip(1)
        .filter_map(|rest| rest.split([')', '#', ' ']).next())
        .filter(|target| !target.is_empty() && !target.contains("://"))
        .filter(|target| !document.with_file_name(target).exists())
        .map(|target| format!("the link to {target} leads nowhere"))
        .collect()
}

/// Words after `cargo x` that are no verb of ours.
fn unknown_verbs(text: &str) -> Vec<String> {
    let command = Cli::command();
    text.split("cargo x ")
        .skip(1)
        .map(|rest| rest.split(|c: char| !c.is_ascii_lowercase() && c != '-').next().unwrap_or_default())
        .filter(|verb| !verb.is_empty() && *verb != "help" && command.find_subcommand(verb).is_none())
        .map(|verb| format!("`cargo x {verb}` does not exist"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::{dead_links, unknown_verbs};
    use crate::process::root;

    #[test]
    fn dead_links_and_unknown_verbs_are_found() {
        let text = "[a](Cargo.toml#x) [b](gone.md) [c](https://example.org) `cargo x ci`, `cargo x bogus`";
        assert_eq!(dead_links(&root().join("README.md"), text).len(), 1);
        assert_eq!(unknown_verbs(text), ["`cargo x bogus` does not exist"]);
    }
}
