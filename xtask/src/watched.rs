//! Checks what watches a server: Prometheus with the shipped alert rules, and the page in a real browser.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::Result;
use clap::Parser;

use crate::{
    process::{self, root, target_dir, within},
    server,
    suites::{Case, Counts, Outcome, asset, count, reported, whole},
};

/// Longest time of one script.
const LIMIT: Duration = Duration::from_secs(180);

/// The arguments of `cargo x watched`.
#[derive(Parser)]
pub(crate) struct Watched {
    /// Binary to use in place of target/release/forebay
    #[arg(long, value_name = "PATH")]
    forebay: Option<PathBuf>,
    /// Directory for the pictures of the page [default: target/pictures]
    #[arg(long, value_name = "DIR")]
    pictures: Option<PathBuf>,
}

/// Checks with the release build.
pub(crate) fn check() -> Result<Counts> {
    Watched { forebay: None, pictures: None }.run()
}

impl Watched {
    /// Runs both scripts, prints the failures, and counts.
    pub(crate) fn run(&self) -> Result<Counts> {
        let binary = server::binary(self.forebay.as_deref());
        let packaging = root().join("packaging");
        let (rules, dashboard) =
            (packaging.join("prometheus/forebay.rules.yml"), packaging.join("grafana/forebay.json"));
        let pictures = self.pictures.clone().unwrap_or_else(|| target_dir().join("pictures"));
        let mut cases = script("prometheus.py", &[&binary, &rules, &dashboard])?;
        cases.extend(script("page.py", &[&binary, &pictures])?);
        println!("pictures are in {}", pictures.display());
        Ok(count("watched", &cases))
    }
}

/// Runs a script of the assets, and returns its cases.
pub(crate) fn script(name: &str, arguments: &[&Path]) -> Result<Vec<Case>> {
    let mut command = Command::new("python3");
    command.arg(asset(name)).args(arguments);
    let mut cases = Vec::new();
    let status = process::lines(&mut within(LIMIT, &command), |line| {
        let line = String::from_utf8_lossy(line);
        eprint!("{line}");
        cases.extend(reported(&line));
    })?;
    let died = !status.success() && cases.iter().all(|case| matches!(case.outcome, Outcome::Passed));
    cases.push(whole(name, died.then(|| format!("the script ended with {status}"))));
    Ok(cases)
}
