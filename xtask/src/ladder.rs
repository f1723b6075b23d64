//! Checks the ladder of crates: no crate uses a crate that is not below it.
//!
//! The ladder stands in two places, and both are checked against the manifests: the drawing in `docs/architecture.md`
//! (highest first; crates on one line do not use each other) and the list in `Cargo.toml` (lowest first).
//!
//! # Dev-dependencies
//!
//! A dev-dependency obeys the ladder like any other dependency. The exceptions are in [`UPWARDS`], each with its
//! reason. The only good reason is a test or bench that needs the production environment above the crate. Such a
//! dependency is in no build of the product, and Cargo permits the circle.

use std::{collections::BTreeMap, fs};

use anyhow::{Context, Result};

use crate::process::root;

/// The dev-dependencies that lead upwards: crate, dependency, reason.
const UPWARDS: [(&str, &str, &str); 2] = [
    ("engine", "runtime", "the bench `paths` measures the engine on threads and the real clock"),
    ("vfs", "disk", "the tests serve directories through a cache in files"),
];

/// The first column of the drawing's explanations.
const TEXT: usize = 32;

/// A crate and the crates of the workspace that its manifest names, without the prefix `forebay-`.
#[derive(Debug, Default)]
struct Crate {
    name: String,
    uses: Vec<Use>,
}

#[derive(Debug, PartialEq, Eq)]
struct Use {
    name: String,
    is_dev: bool,
}

/// Returns a sentence for each violation.
pub(crate) fn check() -> Result<Vec<String>> {
    let crates = crates()?;
    let read = |name| fs::read_to_string(root().join(name)).with_context(|| format!("cannot read {name}"));
    let drawn = drawn(&read("docs/architecture.md")?, &crates);
    let listed = listed(&read("Cargo.toml")?);
    let mut problems = Vec::new();
    for name in crates.iter().map(|one| &one.name).filter(|name| !drawn.contains_key(*name)) {
        problems.push(format!("The ladder in docs/architecture.md lacks crates/{name}: draw it."));
    }
    problems.extend(violations(&crates, &drawn, "docs/architecture.md"));
    problems.extend(violations(&crates, &listed, "Cargo.toml"));
    problems.extend(idle_exceptions(&crates, &drawn));
    Ok(problems)
}

/// Returns every crate under `crates/`.
fn crates() -> Result<Vec<Crate>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(root().join("crates"))? {
        let entry = entry?;
        let manifest = entry.path().join("Cargo.toml");
        let text =
            fs::read_to_string(&manifest).with_context(|| format!("cannot read {}", manifest.display()))?;
        found.push(Crate { name: entry.file_name().to_string_lossy().into_owned(), uses: uses(&text) });
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(found)
}

/// Returns the crates of the workspace that a manifest names in its tables of dependencies.
fn uses(manifest: &str) -> Vec<Use> {
    let mut table = "";
    let mut found = Vec::new();
    for line in manifest.lines().map(str::trim) {
        let name = if let Some(header) = line.strip_prefix('[') {
            table = header.trim_end_matches(']');
            // A table of one dependency: `[dependencies.forebay-disk]`.
            table.rsplit_once("dependencies.").map(|(_, name)| name)
        } else {
            table.ends_with("dependencies").then_some(line)
        };
        let Some(name) = name.and_then(|name| name.trim_matches('"').strip_prefix("forebay-")) else {
            continue;
        };
        let name = name.split(|c: char| !c.is_ascii_alphanumeric() && c != '-').next().unwrap_or_default();
        found.push(Use { name: name.to_owned(), is_dev: table.contains("dev-dependencies") });
    }
    found
}

/// Returns the rung of each crate in the drawing, 0 for the highest.
fn drawn(document: &str, crates: &[Crate]) -> BTreeMap<String, usize> {
    let heading = document.split("\n## The ladder of crates\n").nth(1).unwrap_or_default();
    let drawing = heading.split("```").nth(1).unwrap_or_default();
    let mut rungs = BTreeMap::new();
    for (rung, line) in drawing.lines().enumerate() {
        let art: String = line.chars().take(TEXT).collect();
        let words = art.split(|c: char| !c.is_ascii_alphanumeric());
        let names = words.filter(|word| crates.iter().any(|one| one.name == **word));
        rungs.extend(names.map(|name| (name.to_owned(), rung)));
    }
    rungs
}

/// Returns the rung of each crate in the list of the workspace's manifest, 0 for the highest.
fn listed(manifest: &str) -> BTreeMap<String, usize> {
    let names: Vec<_> = manifest
        .lines()
        .filter(|line| line.contains("path = \"crates/"))
        .filter_map(|line| line.strip_prefix("forebay-")?.split([' ', '=', '.']).next())
        .collect();
    names.iter().rev().enumerate().map(|(rung, name)| ((*name).to_owned(), rung)).collect()
}

/// Returns a sentence for each dependency that does not lead to a lower rung. A crate without a rung is above all.
fn violations(crates: &[Crate], rungs: &BTreeMap<String, usize>, place: &str) -> Vec<String> {
    let mut found = Vec::new();
    for one in crates {
        for used in &one.uses {
            if is_below(rungs, &one.name, &used.name) || used.is_dev && is_excepted(&one.name, &used.name) {
                continue;
            }
            found.push(format!(
                "crates/{} uses {}, which is not below it in the ladder of {place}: remove the {}dependency, or move one \
                 of the two in {place}.",
                one.name,
                used.name,
                if used.is_dev { "dev-" } else { "" }
            ));
        }
    }
    found
}

/// Returns a sentence for each exception that no manifest needs.
fn idle_exceptions(crates: &[Crate], rungs: &BTreeMap<String, usize>) -> Vec<String> {
    let is_needed = |name: &str, used: &str| {
        let mut uses = crates.iter().filter(|one| one.name == name).flat_map(|one| &one.uses);
        uses.any(|other| other.is_dev && other.name == used) && !is_below(rungs, name, used)
    };
    let idle = UPWARDS.iter().filter(|(name, used, _)| !is_needed(name, used));
    idle.map(|(name, used, _)| {
        format!(
            "No dev-dependency of crates/{name} on {used} leads upwards: remove it from xtask/src/ladder.rs."
        )
    })
    .collect()
}

/// Returns true if a crate may use another crate. A crate that is not on the ladder may use each crate that is.
fn is_below(rungs: &BTreeMap<String, usize>, name: &str, used: &str) -> bool {
    match (rungs.get(name), rungs.get(used)) {
        (Some(of), Some(used)) => used > of,
        (None, Some(_)) => true,
        (_, None) => false,
    }
}

fn is_excepted(name: &str, used: &str) -> bool {
    UPWARDS.iter().any(|(excepted, dependency, _)| (*excepted, *dependency) == (name, used))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOCUMENT: &str = "# A\n\n## The ladder of crates\n\n```\n          cli                   engine is no crate of this line\n     a   b  sim                 text\n   engine\n```\n\n## B\n";

    fn of(name: &str, manifest: &str) -> Crate {
        Crate { name: name.into(), uses: uses(manifest) }
    }

    #[test]
    fn the_ladder_holds() {
        assert_eq!(check().unwrap(), [""; 0]);
    }

    #[test]
    fn every_table_of_dependencies_counts() {
        let manifest = "[package]\nname = \"forebay-a\"\n[dependencies]\nforebay-b.workspace = true\nclap.workspace = true\n\
            [target.'cfg(unix)'.dependencies]\nforebay-c = { path = \"../c\" }\n[dependencies.forebay-d]\npath = \"../d\"\n\
            [features]\nforebay-x = []\n[dev-dependencies]\nforebay-e.workspace = true\n";
        let found: Vec<_> = uses(manifest).into_iter().map(|one| (one.name, one.is_dev)).collect();
        let expected = [("b", false), ("c", false), ("d", false), ("e", true)];
        assert_eq!(found, expected.map(|(name, is_dev)| (name.to_owned(), is_dev)));
    }

    #[test]
    fn a_dependency_upwards_or_sideways_is_a_sentence() {
        let crates = [
            of("cli", "[dependencies]\nforebay-sim = 1\n"),
            of("sim", "[dependencies]\nforebay-engine = 1\n"),
            of("engine", "[dependencies]\nforebay-sim = 1\n[dev-dependencies]\nforebay-cli = 1\n"),
        ];
        let rungs = drawn(DOCUMENT, &crates);
        let found = violations(&crates, &rungs, "X");
        let begins = [
            "crates/engine uses sim, which is not below it",
            "crates/engine uses cli, which is not below it",
        ];
        assert_eq!(found.len(), begins.len(), "{found:?}");
        assert!(found.iter().zip(begins).all(|(sentence, begin)| sentence.starts_with(begin)), "{found:?}");
    }

    #[test]
    fn the_list_of_the_manifest_is_read_from_the_lowest() {
        let manifest = "forebay-engine = { path = \"crates/engine\" }\nforebay-sim = { path = \"crates/sim\" }\nlibc = \"1\"\n";
        let crates = [
            of("engine", "[dependencies]\nforebay-sim = 1\n"),
            of("sim", "[dependencies]\nforebay-engine = 1\n"),
        ];
        let found = violations(&crates, &listed(manifest), "Cargo.toml");
        assert!(matches!(&*found, [one] if one.starts_with("crates/engine uses sim")), "{found:?}");
    }
}
