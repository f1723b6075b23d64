//! Expected failures: one per line, `NAME: REASON`, in `assets/expected/SUITE.SERVER`, for NFSv4 in `SUITE-4.SERVER`.

use std::{collections::BTreeMap, fs, io::ErrorKind};

use anyhow::{Context, Result};

use super::{Case, Counts, Outcome, asset};
use crate::{server::Kind, vm::Version};

/// Names of the cases that are known to fail, each with its reason.
pub(crate) type Expected = BTreeMap<String, String>;

/// Reads the list of a suite, for NFSv3 or NFSv4. Without a file no case may fail.
pub(crate) fn list(suite: &str, kind: Kind, version: Version) -> Result<Expected> {
    let version = if version == Version::V3 { "" } else { "-4" };
    let path = asset(&format!("expected/{suite}{version}.{}", kind.name()));
    match fs::read_to_string(&path) {
        Ok(text) => parse(&text).with_context(|| format!("cannot read {}", path.display())),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Expected::new()),
        Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
    }
}

/// Reads a list of expected failures. Fails on an entry without a reason.
fn parse(text: &str) -> Result<Expected> {
    text.lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .map(|line| {
            // Names contain "::", so the reason starts after the first ": ".
            let (name, reason) =
                line.split_once(": ").with_context(|| format!("no reason given in {line:?}"))?;
            Ok((name.to_owned(), reason.to_owned()))
        })
        .collect()
}

/// Counts the cases. Prints every unexpected result: an unlisted failure, and a listed case that passed.
pub(crate) fn judge(cases: &[Case], expected: &Expected) -> Counts {
    let mut counts = Counts::default();
    for Case { name, outcome } in cases {
        match (outcome, expected.get(name)) {
            (Outcome::Passed, None) => counts.passed += 1,
            (Outcome::Passed, Some(_)) => {
                println!("passed, but is listed as an expected failure: {name}");
                counts.failed += 1;
            }
            (Outcome::Failed(_), Some(_)) => counts.expected += 1,
            (Outcome::Failed(why), None) => {
                println!("FAILED {name}: {why}");
                counts.failed += 1;
            }
            (Outcome::Skipped, _) => counts.skipped += 1,
        }
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::{Case, Outcome, judge, parse};

    fn case(name: &str, outcome: Outcome) -> Case {
        Case { name: name.into(), outcome }
    }

    #[test]
    fn surprises_of_both_kinds_count_as_failures() {
        let expected = parse("# why\n\nknown::bad: the server cannot\nmended: it used to fail\n").unwrap();
        let cases = [
            case("good", Outcome::Passed),
            case("known::bad", Outcome::Failed("EIO".into())),
            case("mended", Outcome::Passed),
            case("new", Outcome::Failed("EIO".into())),
            case("later", Outcome::Skipped),
        ];
        let counts = judge(&cases, &expected);
        assert_eq!((counts.passed, counts.failed, counts.expected, counts.skipped), (1, 2, 1, 1));
    }

    #[test]
    fn a_reason_is_demanded() {
        assert!(parse("name\n").is_err());
    }
}
