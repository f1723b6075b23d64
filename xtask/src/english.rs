//! The English of comments and documents, as far as a program can judge it.
//!
//! Each crate may have the violations that `xtask/assets/english.txt` allows it, and neither more nor fewer.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;

use crate::process::root;

mod text;

use text::{END, Paragraph, comments, markdown};

const GLOSSARY: &str = "docs/glossary.md";
const RETIRED: &str = "## Retired words";
const ALLOWANCES: &str = "xtask/assets/english.txt";
/// Columns of a comment line, indentation included.
const COLUMNS: usize = 120;
/// Words of a sentence in a document.
const WORDS: usize = 25;
/// Words that hide the subject of a paragraph's first sentence.
const OPENINGS: [&[&str]; 6] =
    [&["what"], &["whether"], &["who"], &["the", "same"], &["one", "that"], &["those", "that"]];
/// The name of README.md, CHANGELOG.md and docs/ in place of a crate.
const DOCUMENTS: &str = "docs";
/// A program writes this document.
const GENERATED: &str = "published-figures.md";

/// Arguments of `cargo x english`.
#[derive(Args)]
pub(crate) struct English {
    /// Only this crate; `docs` for the documents
    #[arg(long = "crate", value_name = "NAME")]
    package: Option<String>,
    /// Lower the allowances in xtask/assets/english.txt to the violations that are left
    #[arg(long)]
    update: bool,
}

/// A place that the rules forbid.
#[derive(Debug, PartialEq)]
struct Violation {
    line: usize,
    problem: String,
}

/// A phrase that the glossary retires.
struct Retired {
    words: Vec<String>,
    instead: String,
}

impl English {
    /// Prints every violation with its file and line.
    pub(crate) fn run(&self) -> Result<()> {
        let found = violations()?;
        if let Some(name) = &self.package {
            ensure!(
                found.contains_key(name),
                "there is no crate {name}: name a directory of crates/, xtask, fuzz or docs"
            );
        }
        let shown: Vec<_> =
            found.iter().filter(|(name, _)| self.package.as_ref().is_none_or(|only| only == *name)).collect();
        for violation in shown.iter().flat_map(|(_, violations)| *violations) {
            println!("{violation}");
        }
        for (name, violations) in &shown {
            eprintln!("{name}: {} violations", violations.len());
        }
        if self.update { lower(&found) } else { Ok(()) }
    }
}

/// Returns a line for each crate that has more or fewer violations than its allowance.
pub(crate) fn check() -> Result<Vec<String>> {
    let allowed = allowances()?;
    Ok(compare(&violations()?, &allowed))
}

/// Compares the violations of each crate with its allowance. Returns a sentence for each difference, also for a crate
/// that improved.
fn compare(found: &BTreeMap<String, Vec<String>>, allowed: &BTreeMap<String, usize>) -> Vec<String> {
    let mut problems = Vec::new();
    for (name, violations) in found {
        let (left, allowance) = (violations.len(), allowed.get(name).copied().unwrap_or_default());
        if left > allowance {
            problems.push(format!(
                "{name} has {left} violations of the rules for English and may have {allowance}: \
                 `cargo x english --crate {name}` lists them"
            ));
        } else if left < allowance {
            problems.push(format!(
                "{name} has {left} violations and is allowed {allowance}: `cargo x english --update` lowers that"
            ));
        }
    }
    let unknown = allowed.keys().filter(|name| !found.contains_key(*name));
    problems.extend(unknown.map(|name| format!("{ALLOWANCES} names {name}, which is no crate")));
    problems
}

/// Writes the allowances that have become smaller. An allowance that would have to grow stays.
fn lower(found: &BTreeMap<String, Vec<String>>) -> Result<()> {
    let allowed = allowances()?;
    let mut text: String = read(ALLOWANCES)?
        .lines()
        .filter(|line| line.starts_with('#'))
        .map(|line| format!("{line}\n"))
        .collect();
    for (name, allowance) in allowed {
        let left = found.get(&name).map_or(0, Vec::len).min(allowance);
        if left > 0 {
            text += &format!("{name} {left}\n");
        }
    }
    fs::write(root().join(ALLOWANCES), text).with_context(|| format!("cannot write {ALLOWANCES}"))
}

/// Reads the number of violations that each crate may have.
fn allowances() -> Result<BTreeMap<String, usize>> {
    let mut allowed = BTreeMap::new();
    for line in read(ALLOWANCES)?.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let entry =
            line.split_once(' ').and_then(|(name, count)| Some((name.to_owned(), count.parse().ok()?)));
        let Some((name, count)) = entry else {
            bail!("{ALLOWANCES}: expected a crate and a number, found {line:?}")
        };
        allowed.insert(name, count);
    }
    Ok(allowed)
}

/// Returns the violations of each crate as lines `FILE:LINE: PROBLEM`.
fn violations() -> Result<BTreeMap<String, Vec<String>>> {
    let retired = retired(&read(GLOSSARY)?)?;
    let mut found = BTreeMap::new();
    for (name, files) in sources()? {
        let lines: &mut Vec<String> = found.entry(name).or_default();
        for path in files {
            let text =
                fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
            let shown = path.strip_prefix(root()).unwrap_or(&path).display().to_string();
            let own = if path.extension().is_some_and(|extension| extension == "md") {
                let paragraphs = markdown(before_retired(&shown, &text));
                let mut own = judge(&paragraphs, &retired);
                own.extend(long(&paragraphs));
                own.sort_by_key(|violation| violation.line);
                own
            } else {
                let mut own = judge(&comments(&text), &retired);
                own.extend(wide(&text));
                own.sort_by_key(|violation| violation.line);
                own
            };
            lines.extend(
                own.into_iter().map(|violation| format!("{shown}:{}: {}", violation.line, violation.problem)),
            );
        }
    }
    Ok(found)
}

/// The glossary names retired words only under the heading [`RETIRED`].
fn before_retired<'a>(path: &str, text: &'a str) -> &'a str {
    if path == GLOSSARY { text.split(RETIRED).next().unwrap_or_default() } else { text }
}

/// Reads the rows of the first table after the heading [`RETIRED`]: words separated by commas, and their replacement.
fn retired(glossary: &str) -> Result<Vec<Retired>> {
    let (_, section) =
        glossary.split_once(RETIRED).with_context(|| format!("{GLOSSARY} has no heading {RETIRED:?}"))?;
    let rows =
        section.lines().skip_while(|line| !line.starts_with('|')).take_while(|line| line.starts_with('|'));
    let mut found = Vec::new();
    for row in rows.skip(2) {
        let mut cells = row.trim_matches('|').split('|').map(str::trim);
        let (Some(words), Some(instead)) = (cells.next(), cells.next()) else {
            bail!("{GLOSSARY}: a row of the retired words needs two cells: {row}");
        };
        found.extend(words.split(',').map(|phrase| Retired {
            words: phrase.split_whitespace().map(str::to_lowercase).collect(),
            instead: instead.to_owned(),
        }));
    }
    ensure!(!found.is_empty(), "{GLOSSARY} retires no words");
    Ok(found)
}

/// Returns the violations in paragraphs: openings without a subject, and retired words.
fn judge(paragraphs: &[Paragraph], retired: &[Retired]) -> Vec<Violation> {
    let mut found = Vec::new();
    for paragraph in paragraphs {
        let words: Vec<&str> = paragraph.words.iter().map(|(word, _)| word.as_str()).collect();
        if paragraph.judge_opening
            && let Some(opening) = OPENINGS.iter().find(|opening| words.starts_with(opening))
            && let Some((_, line)) = paragraph.words.first()
        {
            let problem =
                format!("begins with {:?}: name the subject, or begin with a verb", opening.join(" "));
            found.push(Violation { line: *line, problem });
        }
        for (at, (_, line)) in paragraph.words.iter().enumerate() {
            for Retired { words: phrase, instead } in retired {
                if words[at..].iter().zip(phrase).filter(|(word, wanted)| word == wanted).count()
                    == phrase.len()
                {
                    let problem = format!("{:?} is retired: {instead}", phrase.join(" "));
                    found.push(Violation { line: *line, problem });
                }
            }
        }
    }
    found
}

/// Returns the sentences of a document that are too long. Headings and table rows are free.
fn long(paragraphs: &[Paragraph]) -> Vec<Violation> {
    let sentences = paragraphs
        .iter()
        .filter(|paragraph| paragraph.judge_opening)
        .flat_map(|paragraph| paragraph.words.split(|(word, _)| word == END));
    let long = sentences.filter(|words| words.len() > WORDS);
    long.filter_map(|words| {
        let problem = format!("a sentence of {} words: the limit is {WORDS}", words.len());
        Some(Violation { line: words.first()?.1, problem })
    })
    .collect()
}

/// Returns the comment lines that are wider than `COLUMNS`.
fn wide(source: &str) -> Vec<Violation> {
    let comment = |line: &str| line.trim_start().starts_with("//");
    source
        .lines()
        .enumerate()
        .filter(|(_, line)| comment(line) && line.chars().count() > COLUMNS)
        .map(|(index, _)| Violation { line: index + 1, problem: format!("is wider than {COLUMNS} columns") })
        .collect()
}

/// Returns the Rust sources of each crate, and the documents.
fn sources() -> Result<BTreeMap<String, Vec<PathBuf>>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(root().join("crates"))? {
        let entry = entry?;
        found.insert(entry.file_name().to_string_lossy().into_owned(), files(&entry.path(), "rs")?);
    }
    for name in ["xtask", "fuzz"] {
        let sources =
            ["src", "fuzz_targets", "examples"].map(|part| files(&root().join(name).join(part), "rs"));
        found.insert(name.to_owned(), sources.into_iter().collect::<Result<Vec<_>>>()?.concat());
    }
    let mut documents = files(&root().join("docs"), "md")?;
    documents.retain(|path| !path.ends_with(GENERATED));
    documents.extend(["README.md", "CHANGELOG.md"].map(|name| root().join(name)));
    found.insert(DOCUMENTS.to_owned(), documents);
    Ok(found)
}

/// Returns the files below a directory that have the extension, sorted; none if there is no such directory.
pub(crate) fn files(directory: &Path, extension: &str) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    if !directory.is_dir() {
        return Ok(found);
    }
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if path.is_dir() {
            if path.file_name().is_some_and(|name| name != "target") {
                found.extend(files(&path, extension)?);
            }
        } else if path.extension().is_some_and(|own| own == extension) {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

fn read(path: &str) -> Result<String> {
    fs::read_to_string(root().join(path)).with_context(|| format!("cannot read {path}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GLOSSARY: &str = "# Glossary\n\n## Retired words\n\nA list.\n\n| word | use |\n|---|---|\n\
                            | lane, lanes | volume |\n| under way | in progress |\n\n| cut | truncate |\n|---|---|\n";

    fn problems(source: &str) -> Vec<(usize, String)> {
        let retired = retired(GLOSSARY).unwrap();
        let found = judge(&comments(source), &retired);
        found.into_iter().map(|Violation { line, problem }| (line, problem)).collect()
    }

    #[test]
    fn the_first_table_of_retired_words_is_read_and_no_other() {
        let words: Vec<_> =
            retired(GLOSSARY).unwrap().into_iter().map(|retired| retired.words.join(" ")).collect();
        assert_eq!(words, ["lane", "lanes", "under way"]);
        assert!(retired("# Glossary\n").is_err());
    }

    #[test]
    fn paragraphs_of_doc_comments_need_a_subject() {
        let source = "//! Whether it works.\n\n/// Returns a size.\n///\n/// What is left\n/// goes.\nfn f() {\n    // What a plain comment says.\n}\n";
        let lines: Vec<_> = problems(source).into_iter().map(|(line, _)| line).collect();
        assert_eq!(lines, [1, 5]);
        assert_eq!(problems("/// The same as\nstruct A;\n/// Whoever\n/// One that\nstruct B;\n").len(), 1);
    }

    #[test]
    fn retired_words_are_found_in_comments_only() {
        let source = "/// The `lane` of\n/// a Lane, under\n/// way.\nlet lane = 1; // the lanes\nlet s = \"http://lane\";\n";
        let lines: Vec<_> = problems(source).into_iter().map(|(line, _)| line).collect();
        assert_eq!(lines, [2, 2, 4]);
        assert_eq!(
            problems("/// A lane_of planes, in `under\n/// way`.\n///\n/// ```\n/// lane\n/// ```\n").len(),
            0
        );
    }

    #[test]
    fn wide_comments_are_found() {
        let wide_code = format!("let x = 1;{}", " ".repeat(COLUMNS));
        let source =
            format!("// {}\n    /// {}\n{wide_code}\n", "a".repeat(COLUMNS - 3), "a".repeat(COLUMNS - 7));
        assert_eq!(wide(&source), [Violation { line: 2, problem: "is wider than 120 columns".to_owned() }]);
    }

    #[test]
    fn long_sentences_of_documents_are_found() {
        let words = |count| vec!["word"; count].join(" ");
        let text = format!(
            "{}. Short.\n\n{}: {}.\n\n| {} |\n",
            words(WORDS + 1),
            words(WORDS),
            words(WORDS),
            words(WORDS + 1)
        );
        let lines: Vec<_> = long(&markdown(&text)).into_iter().map(|violation| violation.line).collect();
        assert_eq!(lines, [1]);
    }

    #[test]
    fn the_glossary_may_name_retired_words_in_their_section() {
        assert_eq!(before_retired(super::GLOSSARY, "a\n## Retired words\nlane\n"), "a\n");
        assert_eq!(before_retired("README.md", "lane"), "lane");
    }

    #[test]
    fn an_allowance_must_be_exact() {
        let found = BTreeMap::from([
            ("disk".to_owned(), vec!["a".to_owned(), "b".to_owned()]),
            ("rpc".to_owned(), Vec::new()),
        ]);
        let allowed = |disk| BTreeMap::from([("disk".to_owned(), disk)]);
        assert_eq!(compare(&found, &allowed(2)), Vec::<String>::new());
        assert_eq!(compare(&found, &allowed(1)).len(), 1);
        assert_eq!(compare(&found, &allowed(3)).len(), 1);
        assert_eq!(
            compare(&found, &BTreeMap::from([("disk".to_owned(), 2), ("gone".to_owned(), 1)])).len(),
            1
        );
    }
}
