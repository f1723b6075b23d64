//! Checks of the documents: links lead to files and headings, `cargo x` commands exist, the English follows the rules.
//! The ladders of crates and of files that they describe are checked as well.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use clap::CommandFactory;

use crate::{Cli, english, imports, ladder, process::root, suites::Counts};

/// Checks every Markdown file of the root, `docs/` and `docs/decisions/` as one case each, then the English of all, the
/// ladder of crates, and the import cycles within crates.
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
    for problems in [english::check()?, ladder::check()?, imports::check()?] {
        for problem in &problems {
            println!("FAILED {problem}");
        }
        counts.failed += problems.len();
        counts.passed += usize::from(problems.is_empty());
    }
    Ok(counts)
}

/// Returns the paths of all documents in Markdown: in the root, in `docs`, and the decisions.
fn documents() -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for directory in [root().to_owned(), root().join("docs"), root().join("docs/decisions")] {
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

/// Returns the relative links `](target)` to files that do not exist, or to headings that the file does not have.
fn dead_links(document: &Path, text: &str) -> Vec<String> {
    text.split("](")
        .skip(1)
        .filter_map(|rest| rest.split([')', ' ']).next())
        .filter(|target| !target.is_empty() && !target.contains("://"))
        .filter(|target| !leads_somewhere(document, text, target))
        .map(|target| format!("the link to {target} leads nowhere"))
        .collect()
}

/// Returns true if the target of a link exists: the file relative to the document, and the heading in that file.
fn leads_somewhere(document: &Path, text: &str, target: &str) -> bool {
    let (file, heading) = target.split_once('#').unwrap_or((target, ""));
    let path = document.with_file_name(file);
    if !file.is_empty() && !path.exists() {
        return false;
    }
    if heading.is_empty() || !file.is_empty() && path.extension().is_none_or(|extension| extension != "md") {
        return true;
    }
    let other = if file.is_empty() { Some(text.to_owned()) } else { fs::read_to_string(path).ok() };
    other.is_some_and(|text| anchors(&text).any(|anchor| anchor == heading))
}

/// Returns the anchor of each heading, as GitHub makes it.
fn anchors(text: &str) -> impl Iterator<Item = String> {
    let heading = |line: &str| Some(line.trim_start_matches('#').strip_prefix(' ')?.trim().to_lowercase());
    text.lines().filter(|line| line.starts_with('#')).filter_map(heading).map(|heading| {
        let kept = heading.chars().filter(|&c| c.is_alphanumeric() || " -_".contains(c));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    })
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
        assert_eq!(dead_links(&root().join("README.md"), text), ["the link to gone.md leads nowhere"]);
        assert_eq!(unknown_verbs(text), ["`cargo x bogus` does not exist"]);
    }

    #[test]
    fn links_to_headings_need_the_heading() {
        let text = "# Is it `fast`, or not?\n[a](#is-it-fast-or-not) [b](#gone) [c](docs/glossary.md#terms) [d](docs/glossary.md#gone)";
        let dead = ["the link to #gone leads nowhere", "the link to docs/glossary.md#gone leads nowhere"];
        assert_eq!(dead_links(&root().join("README.md"), text), dead);
    }
}
