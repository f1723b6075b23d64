//! Runs pjdfstest (the crate) through the kernel client.

use std::time::Duration;

use anyhow::Result;

use super::{Case, Outcome, Target, asset};
use crate::setup::tool;

const LIMIT: Duration = Duration::from_secs(400);

/// Runs pjdfstest in a guest and returns its cases. A run without a summary, because it was cut short, is a failed
/// case.
pub(super) fn run(target: &mut Target) -> Result<Vec<Case>> {
    let script = asset("pjdfstest.sh");
    let config = asset("pjdfstest.toml");
    let binary = tool("pjdfstest")?;
    let words = ["sh", &script.to_string_lossy(), &binary.to_string_lossy(), &config.to_string_lossy()];
    let mut cases: Vec<Case> = Vec::new();
    let mut rest = String::new();
    // The exit status is ignored, because the cases have all the information.
    target.guest(LIMIT, words).run(|line| {
        let line = String::from_utf8_lossy(line);
        match (parse(&line), cases.last_mut()) {
            (Some(case), _) => cases.push(case),
            (None, Some(Case { outcome: Outcome::Failed(why), .. })) if line.starts_with('\t') => {
                why.push_str(line.trim());
            }
            _ => rest.push_str(&line),
        }
    })?;
    if !rest.contains("Summary:") {
        cases.push(super::whole("the run", Some(rest)));
    }
    Ok(cases)
}

/// Parses a line such as `chmod::enoent_comp    ok`.
fn parse(line: &str) -> Option<Case> {
    let (name, word) = line.trim_end().rsplit_once(' ')?;
    let outcome = match word {
        "ok" => Outcome::Passed,
        "FAILED" => Outcome::Failed(String::new()),
        "skipped" => Outcome::Skipped,
        _ => return None,
    };
    name.contains("::").then(|| Case { name: name.trim().into(), outcome })
}
