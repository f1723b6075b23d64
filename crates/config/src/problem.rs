//! Mistakes in a configuration and their places.

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// The place of a mistake.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// A position in a file.
    File {
        /// The file as the administrator named it.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
        /// Column in characters, from 1.
        column: usize,
    },
    /// A file that cannot be read.
    WholeFile(PathBuf),
    /// A flag or argument of the command line.
    Flag(String),
}

/// One mistake: its place, and a sentence with the defect and the remedy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Place of the mistake.
    pub place: Place,
    /// One sentence.
    pub message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.place {
            Place::File { path, line, column } => write!(f, "{}:{line}:{column}: ", path.display())?,
            Place::WholeFile(path) => write!(f, "{}: ", path.display())?,
            Place::Flag(flag) => write!(f, "{flag}: ")?,
        }
        f.write_str(&self.message)
    }
}

/// Every mistake that was found: those of the file in its order, then those of the flags. Never empty when it is an
/// error.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct Problems(pub Vec<Problem>);

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            problem.fmt(f)?;
        }
        Ok(())
    }
}

/// The source of a setting, so that the report of a failed check can name the place to correct.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Origin {
    /// Bytes of the configuration file.
    File(Range<usize>),
    /// A flag or argument.
    Flag(String),
}

impl Origin {
    pub(crate) fn flag(flag: impl Into<String>) -> Self {
        Self::Flag(flag.into())
    }
}

/// A collector of mistakes. It knows the file's text, to turn byte offsets into lines and columns.
pub(crate) struct Collector<'a> {
    file: Option<(&'a Path, &'a str)>,
    found: Vec<(usize, Problem)>,
}

impl<'a> Collector<'a> {
    /// Returns an empty collector. `file` is the path and the text of the configuration file, if there is one.
    pub(crate) fn new(file: Option<(&'a Path, &'a str)>) -> Self {
        Self { file, found: Vec::new() }
    }

    /// Notes a mistake. A message quotes values, and a value with a line break or an escape sequence stays on one line.
    pub(crate) fn add(&mut self, origin: &Origin, message: impl Into<String>) {
        let message = escaped(&message.into());
        let (order, place) = match (origin, self.file) {
            (Origin::File(span), Some((path, text))) => {
                let (line, column) = position(text, span.start);
                (span.start, Place::File { path: path.to_owned(), line, column })
            }
            (Origin::File(_), None) => (usize::MAX, Place::Flag("configuration".to_owned())),
            (Origin::Flag(flag), _) => (usize::MAX, Place::Flag(flag.clone())),
        };
        self.found.push((order, Problem { place, message }));
    }

    /// Returns the name of a place for use inside a message about another place: `line 12`, or the flag.
    pub(crate) fn describe(&self, origin: &Origin) -> String {
        match (origin, self.file) {
            (Origin::File(span), Some((_, text))) => format!("line {}", position(text, span.start).0),
            (Origin::File(_), None) => "the file".to_owned(),
            (Origin::Flag(flag), _) => flag.clone(),
        }
    }

    /// Returns the mistakes of the file in its order, then those of the flags.
    pub(crate) fn into_problems(mut self) -> Problems {
        self.found.sort_by_key(|(order, _)| *order);
        Problems(self.found.into_iter().map(|(_, problem)| problem).collect())
    }
}

/// Returns text in which control characters are written as escapes.
fn escaped(text: &str) -> String {
    let escape =
        |one: char| if one.is_control() { one.escape_default().to_string() } else { one.to_string() };
    text.chars().map(escape).collect()
}

/// Returns the line and column, from 1, of a byte offset. An offset beyond the end counts as the end.
fn position(text: &str, offset: usize) -> (usize, usize) {
    let before = text.get(..offset).unwrap_or(text);
    let line = before.matches('\n').count() + 1;
    let start = before.rfind('\n').map_or(0, |newline| newline + 1);
    (line, before[start..].chars().count() + 1)
}
